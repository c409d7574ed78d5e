"""tfdp.sampling.pipelines: no thread tunes what samples come from, and elements are records.

That the end would wait for it is not shown here: now and then that test would take minutes.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.sampling import Poisson, batches
from tfdp.sampling.pipelines import check_elements


def is_tuned(dataset):
    return dataset.options().autotune.enabled is not False


def test_samples_are_not_tuned():
    x = np.zeros([10, 2], np.float32)
    assert not is_tuned(batches(x, None, None, Poisson().resolve(10, 5)))
    assert is_tuned(tf.data.Dataset.from_tensor_slices(x))


@pytest.mark.parametrize("rows", [20, 40_000], ids=["small", "large"])
def test_fit_goes_through_data_sets_that_are_not_tuned(rows, monkeypatch):
    seen = []
    iterate = tf.data.Dataset.__iter__
    iterators = type(tf.data.Dataset.range(1))
    for kind in (iterators, *iterators.__mro__[1:-1]):
        if "__iter__" in vars(kind):
            monkeypatch.setattr(kind, "__iter__", lambda d: seen.append(d) or iterate(d))
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(1)])
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=rows)
    model = tfdp.keras.make_private(model)
    model.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query), "mse")
    x = np.zeros([rows, 40], np.float32)
    model.fit(x, x[:, :1], batch_size=rows // 2, epochs=2, verbose=0)
    assert seen and not any(map(is_tuned, seen))


def _data(size=12):
    return tf.data.Dataset.range(size)


class Node:
    """As a data set of Grain."""

    def __init__(self, *parents):
        self._parents = parents


class RepeatMapDataset(Node):
    pass


class Other(RepeatMapDataset):
    pass


class BatchMapDataset(Node):
    pass


class FlatMapMapDataset(Node):
    pass


class FilterMapDataset(Node):
    pass


class WindowShuffleMapDataset(Node):
    pass


class ZipMapDataset(Node):
    pass


class MapMapDataset(Node):
    pass


class SourceMapDataset(Node):
    def __init__(self, source):
        super().__init__()
        self._source = source


class Labelled:
    iloc = None


@pytest.mark.parametrize(
    "make",
    [
        lambda: _data().repeat(2),
        lambda: _data().repeat(2).take(12).map(lambda i: i),
        lambda: _data().concatenate(_data().repeat(2)),
        lambda: tf.data.Dataset.zip((_data(), _data(6).repeat(2))),
        lambda: _data().apply(tf.data.experimental.shuffle_and_repeat(3, 2)),
        lambda: _data().batch(2, drop_remainder=True).prefetch(1),
        lambda: _data().batch(2, num_parallel_calls=2),
        lambda: _data().padded_batch(2, padded_shapes=[]),
        lambda: _data().ragged_batch(2),
        lambda: _data().batch(2).batch(3).unbatch(),
        lambda: _data().batch(2).unbatch().batch(2),
        lambda: _data().batch(4).rebatch(2),
        lambda: _data().window(2, shift=1).flat_map(lambda part: part.batch(2)),
        lambda: _data().group_by_window(lambda i: i % 2, lambda key, part: part.batch(2), 2),
        lambda: _data().apply(
            tf.data.experimental.group_by_reducer(
                lambda i: i % 2,
                tf.data.experimental.Reducer(
                    lambda _: np.int64(0), lambda a, b: a + b, lambda a: a
                ),
            )
        ),
        lambda: (lambda d: d.concatenate(d))(_data()),
        lambda: (lambda d: d.map(lambda i: i).concatenate(d.shuffle(3)))(_data()),
        lambda: (lambda d: tf.data.Dataset.choose_from_datasets([d, d], _data()))(_data()),
        lambda: (lambda d: tf.data.Dataset.zip((d, d.skip(1))))(_data()),
        lambda: (lambda d: tf.data.Dataset.zip((d.shuffle(3), d.map(lambda i: i))))(_data()),
        lambda: _data().interleave(lambda i: tf.data.Dataset.from_tensors(i).repeat(2)),
        lambda: _data().flat_map(
            lambda i: tf.data.Dataset.range(2).flat_map(
                lambda j: tf.data.Dataset.from_tensors(i).repeat(2)
            )
        ),
        lambda: _data().interleave(lambda i: tf.data.Dataset.from_tensors(i).batch(2)),
        lambda: (lambda d: _data(2).flat_map(lambda i: d))(_data()),
        lambda: (lambda d: d.map(lambda i: i - d.reduce(np.int64(0), lambda a, b: a + b)))(_data()),
        lambda: _data().scan(np.int64(0), lambda state, i: (state + i, state + i)),
        lambda: RepeatMapDataset(Node()),
        lambda: (lambda d: Node(Node(d), d))(Node()),
        lambda: (lambda d: Node(SourceMapDataset(d), SourceMapDataset(d)))([1, 2]),
        lambda: (lambda d: ZipMapDataset(d, Node(d)))(Node()),
        lambda: Node(Node(), Node(Other(Node()))),
        lambda: BatchMapDataset(Node()),
        lambda: FlatMapMapDataset(Node()),
        lambda: MapMapDataset(FilterMapDataset(Node())),
        lambda: _data().take_while(lambda i: i < 5).map(lambda i: i),
        lambda: _data(2).flat_map(lambda i: tf.data.Dataset.range(4).take_while(lambda j: j < i)),
        lambda: SourceMapDataset(BatchMapDataset(Node())),
    ],
)
def test_data_sets_in_which_a_record_is_not_one_element_are_refused(make):
    with pytest.raises(ValueError, match="Every element must be one record"):
        check_elements(make())


def test_a_data_set_that_reads_a_table_by_columns_is_refused():
    class Table:
        column_names = ("x",)

    Table.__module__ = "pyarrow.lib"
    with pytest.raises(TypeError, match="a part of every record"):
        check_elements(MapMapDataset(SourceMapDataset(Table())))


def test_a_data_set_that_reads_by_names_is_refused():
    with pytest.raises(ValueError, match="the one in place i"):
        check_elements(SourceMapDataset(Labelled()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: _data().map(lambda i: i + 1).cache().shuffle(3).prefetch(1).take(5).skip(1),
        lambda: _data().enumerate().concatenate(_data().enumerate()),
        lambda: tf.data.Dataset.zip((_data(), _data())).with_options(tf.data.Options()),
        lambda: (lambda d: tf.data.Dataset.zip((d.map(lambda i: -i), d.prefetch(1))))(
            _data().shuffle(3)
        ),
        lambda: (lambda d: _data(2).interleave(lambda i: d.shard(2, i)))(_data()),
        lambda: _data(2).interleave(lambda i: tf.data.Dataset.from_tensors(i).batch(2)).unbatch(),
        lambda: tf.data.Dataset.from_tensor_slices(["a", "b"]).interleave(
            lambda path: tf.data.TFRecordDataset(path).map(tf.strings.length).skip(1),
            num_parallel_calls=2,
        ),
        lambda: (lambda d: ZipMapDataset(MapMapDataset(d), d))(Node(Node())),
        lambda: _data().batch(4).map(lambda i: 2 * i).unbatch(),
        lambda: _data().batch(4).batch(3).unbatch().unbatch(),
        lambda: _data().interleave(lambda i: tf.data.Dataset.from_tensors(i)),
        lambda: tf.data.Dataset.from_generator(
            lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int64)
        ),
        lambda: _data().filter(lambda i: i > 3).apply(tf.data.experimental.assert_cardinality(8)),
        lambda: WindowShuffleMapDataset(Node(), SourceMapDataset([1, 2])),
        lambda: [1, 2],
        lambda: np.zeros([3]),
    ],
)
def test_data_sets_whose_elements_are_records_are_taken(make):
    check_elements(make())
