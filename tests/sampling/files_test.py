"""Records of files by position are those that TensorFlow reads one after another."""

import contextlib
import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tfdp.sampling import Source, SourceError, TFRecords, memory_map

RNG = np.random.default_rng(0)
FIRST = [RNG.bytes(int(length)) for length in (5, 0, 1000, 17)]
SECOND = [RNG.bytes(int(length)) for length in (1, 300)]


@pytest.fixture
def paths(tmp_path):
    files = {"a.tfrecord": FIRST, "b.tfrecord": SECOND, "none.tfrecord": []}
    for name, records in files.items():
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            for record in records:
                writer.write(record)
    return [tmp_path / name for name in ("a.tfrecord", "none.tfrecord", "b.tfrecord")]


@pytest.mark.parametrize("index", [None, "new", "read again"])
def test_records_are_those_that_are_read_one_after_another(paths, tmp_path, index):
    if index is not None:
        index = tmp_path / "new" / "folders" / "index.json"
        first = TFRecords(paths, index=index)
        assert index.exists()
    found = TFRecords(paths, index=index) if index != "new" else first
    wanted = list(tf.data.TFRecordDataset([str(path) for path in paths]).as_numpy_iterator())
    assert wanted == FIRST + SECOND
    assert [found[i] for i in range(len(found))] == wanted
    assert [TFRecords(str(paths[0]))[i] for i in (3, 1)] == [FIRST[3], FIRST[1]]
    for beyond in (-1, 6):
        with pytest.raises(IndexError, match="6 records"):
            found[beyond]


def test_records_are_a_source(tmp_path):
    x, y = RNG.normal(size=(9, 4)).astype(np.float32), np.arange(9)
    path = str(tmp_path / "data.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for row in range(9):
            feature = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=x[row])),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[y[row]])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())

    def parse(record):
        features = {
            "x": tf.io.FixedLenFeature([4], tf.float32),
            "y": tf.io.FixedLenFeature([], tf.int64),
        }
        found = tf.io.parse_single_example(record, features)
        return found["x"], found["y"]

    source = Source(TFRecords(path), map=parse, workers=2)
    rows = np.array([8, 0, 3])
    for found, wanted in zip(source.read(rows), (x[rows], y[rows]), strict=True):
        np.testing.assert_array_equal(found, wanted)


def _cut(data):
    return data[:-3]


def _flip(data):
    return data[:30] + bytes([data[30] ^ 1]) + data[31:]


def _compress(data):
    import gzip

    return gzip.compress(data)


@pytest.mark.parametrize("damage", [_cut, _flip, _compress, lambda data: data + b"\0"])
def test_damaged_files_are_refused(paths, damage):
    paths[0].write_bytes(damage(paths[0].read_bytes()))
    with pytest.raises(SourceError, match="damaged|compressed"):
        TFRecords(paths)


def test_files_that_changed_are_refused(paths, tmp_path):
    found = TFRecords(paths, index=tmp_path / "index.json")
    with tf.io.TFRecordWriter(str(paths[2])) as writer:
        writer.write(b"x")
    with pytest.raises(SourceError, match="other files, or they changed"):
        TFRecords(paths, index=tmp_path / "index.json")
    with pytest.raises(SourceError, match="other files"):
        TFRecords(paths[:2], index=tmp_path / "index.json")
    with pytest.raises(SourceError, match="was cut"):
        found[5]


def test_an_index_of_other_files_of_the_same_sizes_and_times_gives_no_record(tmp_path):
    """A record would be the end of one and the beginning of the next."""
    lengths = {"a": (10, 30), "b": (30, 10)}
    for name, sizes in lengths.items():
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            for size in sizes:
                writer.write(name.encode() * size)
        os.utime(tmp_path / name, ns=(0, 0))
    found = TFRecords(tmp_path / "a", index=tmp_path / "index.json")
    assert [found[i] for i in range(2)] == [b"a" * 10, b"a" * 30]
    others = TFRecords(tmp_path / "b", index=tmp_path / "index.json")
    for position in range(2):
        with pytest.raises(SourceError, match="other records than those that were found"):
            others[position]


@pytest.mark.parametrize("seed", range(40))
def test_a_torn_index_is_refused(paths, tmp_path, seed):
    """Any byte of it may be wrong."""
    index = tmp_path / "index.json"
    TFRecords(paths, index=index)
    rng = np.random.default_rng(seed)
    data = bytearray(index.read_bytes())
    if seed % 4:
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    else:
        del data[rng.integers(len(data)) :]
    index.write_bytes(data)
    with pytest.raises(SourceError):
        TFRecords(paths, index=index)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"version": 1, "files": ' + "[" * 100_000])
def test_an_index_that_is_nested_too_deeply_is_refused(paths, tmp_path, text):
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(SourceError, match="no index of TFRecord files. Delete it"):
        TFRecords(paths, index=tmp_path / "index.json")


@contextlib.contextmanager
def _full_disk():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("what", ["index", "map"])
def test_a_full_disk_is_an_error_of_ours_and_leaves_nothing(paths, tmp_path, what):
    place = tmp_path / "new" / what
    place.parent.mkdir()
    data = tf.data.Dataset.from_tensor_slices(np.ones([5, 1000]))
    with pytest.raises(SourceError, match=f"new/{what} cannot be written: .*Free the disk"):
        with _full_disk():
            memory_map(data, place) if what == "map" else TFRecords(paths, index=place)
    assert not list(place.parent.iterdir())


def test_no_file_is_refused():
    with pytest.raises(ValueError, match="at least one file"):
        TFRecords([])


def _dataset(size=7):
    def element(i):
        x = {"a": tf.cast(i, tf.float32) * tf.ones([2, 3]), "b": tf.cast(i, tf.uint8)}
        return x, i % 2 == 0

    return tf.data.Dataset.range(size).map(element)


def test_a_memory_map_holds_what_the_data_set_gives(tmp_path, monkeypatch):
    monkeypatch.setattr("tfdp.sampling.files._ROWS", 3)
    folder = tmp_path / "deep" / "examples"
    for again in (False, True):
        found = memory_map(_dataset(), folder)
        assert folder.is_dir()
        for part in tf.nest.flatten(found):
            assert isinstance(part, np.memmap)
        for i, wanted in enumerate(_dataset().as_numpy_iterator()):
            tf.nest.assert_same_structure(wanted, found)
            for ours, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True):
                assert ours.dtype == theirs.dtype
                np.testing.assert_array_equal(ours[i], theirs, strict=True)
        if not again:
            written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert written == {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert [path.name for path in folder.parent.iterdir()] == ["examples"]
    assert len(Source(found)) == 7


def _claims(number):
    # The claim itself is checked by TensorFlow; a generator's is not.
    data = tf.data.Dataset.from_generator(
        lambda: iter(range(5)), output_signature=tf.TensorSpec([], tf.int64)
    )
    options = tf.data.Options()
    counted = data.with_options(options)
    counted.cardinality = lambda: tf.constant(number, tf.int64)
    return counted


@pytest.mark.parametrize("number", [4, 6])
def test_a_wrong_number_of_elements_is_refused(number, tmp_path):
    with pytest.raises(SourceError, match=f"5 elements, and not {number}"):
        memory_map(_claims(number), tmp_path / "examples")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_writing_leaves_nothing(tmp_path):
    def fails(i):
        tf.debugging.assert_less(i, tf.constant(3, tf.int64))
        return i

    with pytest.raises(tf.errors.InvalidArgumentError):
        memory_map(tf.data.Dataset.range(5).map(fails), tmp_path / "examples")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "data",
    [
        tf.data.Dataset.range(5).batch(2).unbatch(),
        tf.data.Dataset.range(5).filter(lambda i: i > 1),
        tf.data.Dataset.range(0),
        tf.data.Dataset.from_tensor_slices(["a", "b"]),
        tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])),
        tf.data.Dataset.range(5).map(lambda i: tf.ones([i])),
    ],
)
def test_what_cannot_be_laid_out_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match="must be known|must hold numbers"):
        memory_map(data, tmp_path / "examples")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "data",
    [
        tf.data.Dataset.range(4).repeat(3),
        tf.data.Dataset.range(4).repeat(),
        tf.data.Dataset.range(5).batch(2),
        tf.data.Dataset.range(5).padded_batch(2, padded_shapes=[]),
        tf.data.Dataset.range(4).batch(2, drop_remainder=True),
        tf.data.Dataset.range(4).batch(2, drop_remainder=True).map(tf.reduce_mean),
    ],
)
def test_what_repeats_or_batches_records_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match="Every element must be one record"):
        memory_map(data, tmp_path / "examples")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("other", [7, 6])
def test_a_folder_that_somebody_else_has_just_written_is_opened(other, tmp_path, monkeypatch):
    rename = os.rename

    def late(draft, folder):
        monkeypatch.setattr(os, "rename", rename)
        memory_map(_dataset(other), folder)
        rename(draft, folder)

    monkeypatch.setattr(os, "rename", late)
    if other == 7:
        _, is_even = memory_map(_dataset(), tmp_path / "examples")
        np.testing.assert_array_equal(is_even, np.arange(7) % 2 == 0)
    else:
        with pytest.raises(SourceError, match="another data set"):
            memory_map(_dataset(), tmp_path / "examples")
    assert [path.name for path in tmp_path.iterdir()] == ["examples"]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    def fails(draft, folder):
        raise OSError("disk")

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="disk"):
        memory_map(_dataset(), tmp_path / "examples")
    assert not list(tmp_path.iterdir())


def test_the_elements_of_another_data_set_are_refused(tmp_path):
    folder = tmp_path / "examples"
    memory_map(_dataset(), folder)
    others = (
        _dataset(6),
        _dataset().map(lambda x, y: (x, tf.cast(y, tf.int32))),
        _dataset().map(lambda x, y: (y, x)),
        _dataset().map(lambda x, y: ({"a": x["a"], "c": x["b"]}, y)),
    )
    for other in others:
        with pytest.raises(SourceError, match="another data set"):
            memory_map(other, folder)
    text = (folder / "examples.json").read_text()
    (folder / "examples.json").write_text(text[:-1])
    with pytest.raises(SourceError, match="something else"):
        memory_map(_dataset(), folder)
    (folder / "examples.json").write_text(json.dumps({}))
    with pytest.raises(SourceError, match="another data set"):
        memory_map(_dataset(), folder)
    (folder / "examples.json").write_text("[" * 100_000)
    with pytest.raises(SourceError, match="something else"):
        memory_map(_dataset(), folder)
    pathlib.Path(tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="something else"):
        memory_map(_dataset(), tmp_path / "file")


def _with_shape(words):
    return lambda file: file.write_bytes(file.read_bytes().replace(b"(7, 2, 3)", words))


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda file: file.unlink(), "has lost a file"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "has lost a file"),
        (lambda file: file.write_bytes(b""), "has lost a file"),
        (
            lambda file: file.write_bytes(file.read_bytes().replace(b"}", b" ", 1)),
            "has lost a file",
        ),
        (_with_shape(b"(7, True)"), "has lost a file"),
        (_with_shape(b"(9" + b"9" * 30 + b",)"), "has lost a file"),
        (lambda file: np.save(file, np.zeros([6, 2, 3], np.float32)), "something else"),
        (lambda file: np.save(file, np.zeros([7, 2, 3])), "something else"),
    ],
)
def test_a_folder_with_a_damaged_file_is_refused(damage, message, tmp_path):
    folder = tmp_path / "examples"
    memory_map(_dataset(), folder)
    damage(folder / "0.npy")
    with pytest.raises(SourceError, match=message):
        memory_map(_dataset(), folder)


def test_a_file_that_is_given_twice_is_refused(tmp_path, monkeypatch):
    """Each of its records would stand at two positions."""
    for name in "ab":
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            writer.write(b"record")
    monkeypatch.chdir(tmp_path)
    assert len(TFRecords(["a", "b"])) == 2
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.link("a", "other name")
    for paths in (["a", "b", "a"], ["a", tmp_path / "a"], ["link", "a"], ["other name", "a"]):
        with pytest.raises(ValueError, match="given twice"):
            TFRecords(paths)
