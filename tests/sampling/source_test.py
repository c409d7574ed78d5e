"""A source gives what the same rows in memory give, and says where it cannot."""

import collections
import itertools
import threading
import time
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import h5py
import keras
import numpy as np
import pytest

from tests.sampling.draws import elements
from tfdp.sampling import FullBatch, Poisson, RandomAllocation, Source, SourceError, Users, batches
from tfdp.sampling.arrays import samples

N = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = np.arange(N) % 3
W = RNG.random(N)


class Examples:
    """Tuples of single examples, by position only."""

    def __len__(self):
        return N

    def __getitem__(self, row):
        assert type(row) is int
        return X[row], Y[row], W[row]


class Together(Examples):
    """As Grain's sources and the data sets of Hugging Face: all positions at once."""

    def __getitems__(self, rows):
        return [Examples.__getitem__(self, row) for row in rows]

    def __getitem__(self, row):
        raise RuntimeError("one by one")


class Keras(keras.utils.PyDataset):
    __len__ = Examples.__len__
    __getitem__ = Examples.__getitem__


def memory_maps(folder):
    parts = []
    for name, array in {"x": X, "y": Y, "w": W}.items():
        np.save(folder / f"{name}.npy", array)
        parts.append(np.load(folder / f"{name}.npy", mmap_mode="r"))
    return tuple(parts)


def hdf5(folder):
    file = h5py.File(folder / "data.h5", "w")
    return tuple(
        file.create_dataset(name, data=array, chunks=(7, *array.shape[1:]))
        for name, array in {"x": X, "y": Y, "w": W}.items()
    )


def hdf5_as_in_memory(folder, rows_of_piece):
    with h5py.File(folder / "data.h5", "w") as file:
        for name, array in {"x": X, "y": Y, "w": W}.items():
            chunks = rows_of_piece and (rows_of_piece, *array.shape[1:])
            file.create_dataset(name, data=array, chunks=chunks)
    file = h5py.File(folder / "data.h5")
    return tuple(file[name] for name in "xyw")


def _as_dict(row):
    return {"x": X[row].tolist(), "y": int(Y[row]), "w": float(W[row])}


SOURCES = {
    "arrays": lambda folder: Source((X, Y, W)),
    "memory maps": lambda folder: Source(memory_maps(folder)),
    "hdf5": lambda folder: Source(hdf5(folder)),
    "hdf5 in one piece": lambda folder: Source(hdf5_as_in_memory(folder, None)),
    "hdf5 in pieces": lambda folder: Source(hdf5_as_in_memory(folder, 7)),
    "hdf5 in threads": lambda folder: Source(hdf5(folder), workers=3),
    "one by one": lambda folder: Source(Examples()),
    "one by one in threads": lambda folder: Source(Examples(), workers=4),
    "together": lambda folder: Source(Together()),
    "PyDataset": lambda folder: Source(Keras()),
    "columns one by one": lambda folder: Source((X.copy(), Y, W), map=lambda example: example),
    "dicts of lists": lambda folder: Source(
        [_as_dict(row) for row in range(N)],
        map=lambda e: (np.array(e["x"], np.float32), np.int64(e["y"]), np.float64(e["w"])),
        workers=2,
    ),
}


class Repeats:
    """A generator whose draws are those of a seed, so that two batches are of one sample."""

    def __new__(cls):
        return np.random.default_rng(7)


@pytest.mark.parametrize(
    ("name", "policy", "constant_size"),
    [
        *((name, Poisson(), True) for name in SOURCES),
        ("hdf5", RandomAllocation(), False),
        ("one by one in threads", FullBatch(), True),
    ],
)
def test_a_sample_is_that_of_arrays_bit_for_bit(name, policy, constant_size, tmp_path):
    policy = policy.resolve(N, N if isinstance(policy, FullBatch) else 8)
    options = {"constant_size": constant_size, "row_multiple": 2}
    found = batches(
        SOURCES[name](tmp_path), None, None, policy, generator=Repeats(), **options
    ).take(3)
    wanted = batches(X, Y, W, policy, generator=Repeats(), **options).take(3)
    for ours, theirs in zip(elements(found), elements(wanted), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def test_users_of_a_source_are_those_of_arrays(tmp_path):
    users = Users(np.arange(N) % 9, 3)
    policy = Poisson().resolve(9, 4)
    pair = [
        elements(batches(*data, policy, users=users, generator=Repeats()).take(4))
        for data in ((Source(hdf5(tmp_path)), None, None), (X, Y, W))
    ]
    for ours, theirs in zip(*pair, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("map", [None, lambda example: example], ids=["arrays", "mapped"])
def test_zeros_follow_the_examples_in_memory_that_is_used_again(map, workers):
    wide = RNG.normal(size=(N, 1 << 13)).astype(np.float32)  # 20 rows are above 64 KiB.
    source = Source((wide, Y), map=map, workers=workers)
    rows = np.array([5, 0, 39, 5])
    with ThreadPoolExecutor(workers) as threads:
        pool = threads if workers > 1 else None
        for count in (20, 20, 4):  # What was read before must not shine through.
            found = source.read(np.arange(count), pool=pool, room=20)
            assert [leaf.shape for leaf in found] == [(20, 1 << 13), (20,)]
            del found
        x, y = source.read(rows, pool=pool, room=20)
    np.testing.assert_array_equal(x[:4], wide[rows])
    np.testing.assert_array_equal(y[:4], Y[rows])
    assert not x[4:].any() and not y[4:].any()


def test_structures_of_examples():
    source = Source(({"b": X, "a": (Y, W)}, Y))
    x, y, weight = source.example
    assert x["b"].shape == (1, 3) and x["a"][1].dtype == np.float64 and y.shape == (1,)
    assert weight is None
    b = source.read(np.array([5, 2]))
    np.testing.assert_array_equal(b[2], X[[5, 2]])  # Leaves in the order of keys.
    only_x = Source([[1.0, 2.0], [3.0, 4.0]])
    assert only_x.example[0].shape == (1, 2) and only_x.example[1] is None
    x, y, weight = Source((X, None, W)).example
    assert y is None and weight.shape == (1,)


def test_floats_are_cast_and_nothing_else():
    source = Source((X.astype(np.float16), Y, W)).with_floats("float32")
    leaves = source.read(np.array([3]))
    assert [leaf.dtype for leaf in leaves] == [np.float32, np.int64, np.float32]
    mapped = Source(Examples(), map=lambda e: e).with_floats("float32")
    assert mapped.read(np.array([3]))[2].tobytes() == leaves[2].tobytes()


@pytest.mark.parametrize("workers", [1, 3])
def test_map_sees_one_example_and_a_seed_of_its_own(workers):
    seen, lock = [], threading.Lock()

    def view(example, seed):
        with lock:
            seen.append((int(example[1]), seed.tobytes()))
        return example[0] * 0 + seed[0] % 7, example[1]

    count = np.arange(N)
    source = Source((X, count), map=view, workers=workers, seeded=True)
    seen.clear()
    found = batches(source, None, None, FullBatch(N), generator=Repeats()).take(2)
    first, second = elements(found)
    np.testing.assert_array_equal(first.y, count)
    assert (first.x != second.x).any()
    # A source runs ahead; whole samples are read.
    assert sorted({row for row, _ in seen}) == list(range(N))
    assert len({seed for _, seed in seen}) == len(seen) >= 2 * N
    again = batches(source, None, None, FullBatch(N), generator=Repeats()).take(1)
    np.testing.assert_array_equal(next(elements(again)).x, first.x)


def test_seeds_come_from_the_secure_source_by_default():
    source = Source(X, map=lambda example, seed: seed, seeded=True)
    first, second = (next(elements(batches(source, None, None, FullBatch(N)))).x for _ in range(2))
    assert len(np.unique(np.concatenate([first, second]))) == 4 * N
    with pytest.raises(ValueError, match="needs seeds"):
        source.read(np.array([1]))


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (np.zeros(4, np.float32), "Example 3 differs in shape or dtype"),
        (np.zeros(3, np.float64), "Example 3 differs in shape or dtype"),
        ((X[0], Y[0]), "Example 3 differs"),
        ({"a": X[0]}, "Example 3 has another structure"),
        ([[1.0], [1.0, 2.0]], "Example 3 holds something else"),
        ((X[0],) * 4, "must be"),
        (None, "Example 3"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_an_example_unlike_the_first_is_an_error(odd, message, workers):
    examples = list(X)
    examples[3] = odd
    source = Source(examples, workers=workers)
    with pytest.raises(SourceError, match=message):
        source.read(np.array([1, 3]))
    assert len(source.read(np.array([1, 2]))[0]) == 2  # Others are not the worse for it.
    with pytest.raises(SourceError, match=message):
        source.check()


def test_what_cannot_be_read_is_an_error():
    def broken(example):
        if example[0] == X[3, 0]:
            raise OSError("disk")
        return example

    source = Source(X, map=broken, workers=2)
    for rows in ([3], [1, 3]):
        with pytest.raises(OSError, match="disk"):
            source.read(np.array(rows))
    Source(X, map=lambda e: e).check()


def test_length_must_stay(tmp_path):
    rows = list(X)
    source = Source(rows)
    rows.append(X[0])
    with pytest.raises(SourceError, match="changed their size"):
        source.read(np.array([0]))
    file = h5py.File(tmp_path / "grows.h5", "w")
    column = file.create_dataset("x", data=X, maxshape=(None, 3), chunks=(4, 3))
    source = Source(column)
    column.resize(N + 1, axis=0)
    with pytest.raises(SourceError, match="changed their size"):
        source.read(np.array([0]))


def test_a_memory_map_whose_file_was_cut_does_not_end_the_process(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2000, 100), np.float32))
    source = Source(np.load(tmp_path / "x.npy", mmap_mode="r"))
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(8192)
    with pytest.raises(SourceError, match="changed their size"):
        source.read(np.array([1999]))


@pytest.mark.parametrize("kind", ["memory maps", "hdf5 in pieces"])
def test_nothing_is_asked_for_in_a_file_that_was_cut(kind, tmp_path, monkeypatch):
    """What looks whether rows are in memory touches them."""
    monkeypatch.setattr("tfdp.sampling.mapped._WORTH_ASKING_BYTES", 0)
    touched = []

    def look(self, probe):
        touched.append(probe())
        return False

    monkeypatch.setattr("tfdp.sampling.mapped._Reads.wait_for_disk", look)
    source = SOURCES[kind](tmp_path)
    policy = FullBatch().resolve(N, N)
    next(samples(source, None, None, policy).make())
    assert touched
    for file in (*tmp_path.glob("*.npy"), *tmp_path.glob("*.h5")):
        with open(file, "r+b") as opened:
            opened.truncate(1)
    with pytest.raises(SourceError, match="changed their size"):
        next(samples(source, None, None, policy).make())


def test_an_hdf5_file_in_pieces_that_was_cut_does_not_end_the_process(tmp_path):
    x, _, _ = hdf5_as_in_memory(tmp_path, 7)
    source = Source(x)
    with open(tmp_path / "data.h5", "r+b") as file:
        file.truncate(512)
    with pytest.raises(SourceError, match="changed their size"):
        source.read(np.array([39]))


def test_others_than_asked_for_are_an_error():
    class Loses(Together):
        def __getitems__(self, rows):
            return super().__getitems__(rows)[:1]

    with pytest.raises(SourceError, match="others came back"):
        Source(Loses()).read(np.array([1, 2]))


def test_parts_are_consecutive():
    source = Source((X, Y, W)).part(10, 30)
    assert len(source) == 20
    np.testing.assert_array_equal(source.read(np.array([0, 19]))[0], X[[10, 29]])
    mapped = Source(Examples()).part(10, 30).part(5, 20)
    assert len(mapped) == 15
    np.testing.assert_array_equal(mapped.read(np.array([0, 14]))[0], X[[15, 29]])
    mapped.check()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Source(iter([1])), TypeError, "length and positions"),
        (lambda: Source([]), ValueError, "at least one example"),
        (lambda: Source((X, Y[1:])), ValueError, "one length"),
        (lambda: Source(()), ValueError, "one length"),
        (lambda: Source((X, X, X, X)), ValueError, "must be"),
        (lambda: Source(X, map=3), TypeError, "must be a function"),
        (lambda: Source(X, seeded=True), TypeError, "needs a map"),
        (lambda: Source(X, map=lambda x, seed: x, seeded=1), TypeError, "must be a bool"),
        (lambda: Source(X, workers=0), ValueError, "workers"),
        (lambda: Source(X, batch_size=0), ValueError, "batch_size"),
        (lambda: Source(["a", "bc"]), TypeError, "must hold numbers"),
        (lambda: Source([{"a": object()}]), TypeError, "must hold numbers"),
    ],
)
def test_what_is_no_source_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_reads_nobody_who_was_not_drawn():
    asked = []

    class Watched(Examples):
        def __getitem__(self, row):
            asked.append(row)
            return super().__getitem__(row)

    source = Source(Watched())
    asked.clear()
    source.read(np.array([9, 4]))
    assert asked == [9, 4]
    empty = source.read(np.array([], np.int64))
    assert asked == [9, 4] and [leaf.shape for leaf in empty] == [(0, 3), (0,), (0,)]


@pytest.mark.parametrize("kind", ["memory maps", "hdf5 in pieces", "arrays that are mapped"])
def test_the_system_is_asked_for_what_the_next_samples_hold(kind, tmp_path, monkeypatch):
    asked, start = [], 4
    for module in ("source", "arrays"):
        monkeypatch.setattr(
            f"tfdp.sampling.{module}.ask_for", lambda column, rows: asked.append(rows.tolist())
        )
    if kind == "arrays that are mapped":
        data = tuple(part[start:] for part in memory_maps(tmp_path))
        offset = 0
    else:
        data = SOURCES[kind](tmp_path).part(start, N), None, None
        offset = start
    policy = Poisson().resolve(N - start, 8)
    drawn = samples(*data, policy, generator=Repeats()).make()
    expected = [u.tolist() for u in itertools.islice(policy.draw(Repeats()), 6)]
    for step in range(4):
        x, *_, mask = next(drawn)
        np.testing.assert_array_equal(x[mask], X[start:][expected[step]])
        # Its own rows were asked for before, and those of two more: for each of three columns.
        wanted = [[row + offset for row in rows] for rows in expected[: step + 3]]
        assert asked == [rows for rows in wanted for _ in range(3)]


@pytest.mark.parametrize("name", ["arrays", "one by one", "hdf5"])
def test_no_sample_is_drawn_ahead_where_nothing_is_asked_for(name, tmp_path):
    drawn = []

    class Watched(Poisson):
        def draw(self, generator):
            for units in super().draw(generator):
                drawn.append(units)
                yield units

    policy = Watched().resolve(N, 8)
    next(samples(SOURCES[name](tmp_path), None, None, policy).make())
    assert len(drawn) == 1


@pytest.mark.parametrize("name", ["arrays", "memory maps"])
def test_draws_that_end_are_all_taken(name, tmp_path):
    class Ending(Poisson):
        def draw(self, generator):
            return itertools.islice(super().draw(generator), 4)

    policy = Ending().resolve(N, 8)
    found = list(samples(SOURCES[name](tmp_path), None, None, policy, generator=Repeats()).make())
    drawn = list(policy.draw(Repeats()))
    for parts, units in zip(found, drawn, strict=True):
        np.testing.assert_array_equal(parts[0][parts[-1]], X[units])


class Labelled:
    """As a Series of pandas whose rows were shuffled: [i] is the row that is called i."""

    def __init__(self, rows, labels):
        self._rows, self._labels = rows, labels
        self.iloc = None

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, label):
        return self._rows[self._labels.tolist().index(label)]


class Convertible(Labelled):
    def to_numpy(self):
        return self._rows


def test_rows_that_have_names_are_read_by_position():
    order = RNG.permutation(N)
    rows = np.array([7, 0, 39, 7])
    for source in (
        Source((X[order], Convertible(Y[order], order))),
        Source((X[order], Convertible(Y[order], order)), map=lambda example: example),
    ):
        x, y = source.read(rows)
        np.testing.assert_array_equal(x, X[order][rows])
        np.testing.assert_array_equal(y, Y[order][rows])
    with pytest.raises(TypeError, match="Pass an array"):
        Source((X[order], Labelled(Y[order], order)))


def test_pandas_is_read_by_position():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed.")
    order = RNG.permutation(N)
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y}).iloc[order]
    for data in ((frame[["a", "b"]], frame["y"]), {"x": frame[["a", "b"]], "y": frame["y"]}):
        x, y = Source(data).read(np.arange(N))
        np.testing.assert_array_equal(x, X[order, :2], strict=True)
        np.testing.assert_array_equal(y, Y[order], strict=True)
    twice = pandas.concat([frame["y"], frame["y"]])
    np.testing.assert_array_equal(Source(twice).read(np.arange(N))[0], Y[order])
    texts = Source(frame["y"].astype(str), map=lambda text: np.int64(text))
    np.testing.assert_array_equal(texts.read(np.array([3]))[0], Y[order[[3]]])


def test_objects_are_examples_that_are_looked_at():
    source = Source(np.array([1, 2, 2.5], object))
    assert source.read(np.array([1]))[0] == 2
    with pytest.raises(SourceError, match="Example 2 differs in shape or dtype"):
        source.read(np.array([2]))


def test_what_has_no_end_is_refused():
    class Endless(Examples):
        def __len__(self):
            return 2**63 - 1

    with pytest.raises(ValueError, match="must have an end"):
        Source(Endless())


def test_data_sets_of_grain_in_which_a_record_is_not_one_element_are_refused():
    grain = pytest.importorskip("grain", reason="Grain is not installed.")
    data = grain.MapDataset.source(X)

    class Halves(grain.experimental.FlatMapTransform):
        max_fan_out = 2

        def flat_map(self, element):
            return [element, element]

    for changed in (
        data.repeat(3),
        data.repeat(),
        data.seed(1).shuffle().repeat().map(lambda x: x)[:N],
        data.batch(2),
        data.batch(2).map(lambda x: x.mean(0)),
        grain.experimental.ZipMapDataset([data, data[:5].repeat(8)]),
        grain.experimental.FlatMapMapDataset(data, Halves()),
    ):
        with pytest.raises(ValueError, match="Every element must be one record"):
            Source((X[: len(changed)], changed) if len(changed) <= N else changed)
    shuffled = data.seed(1).shuffle().map(lambda x: x)[::2]
    assert len(Source(shuffled)) == N // 2
    assert len(Source(grain.experimental.WindowShuffleMapDataset(data, window_size=4, seed=0))) == N


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("map", [None, lambda example: example], ids=["arrays", "mapped"])
def test_nothing_tells_of_a_number_that_does_not_fit(map, workers):
    """A warning, or an error where NumPy is asked for one, would say that it was sampled."""
    wide = X.astype(np.float64)
    wide[5] = 1e300
    source = Source(wide, map=map, workers=workers).with_floats("float32")
    policy = FullBatch().resolve(N, N)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        (x, _) = next(samples(source, None, None, policy).make())
    assert np.isinf(x[5]).all() and np.isfinite(np.delete(x, 5, 0)).all()


def _rows(source):
    found = source.read(np.array([7, 0, 39, 7]))
    for ours, theirs in zip(found, (X, Y), strict=True):
        np.testing.assert_array_equal(ours, theirs[[7, 0, 39, 7]])


def test_data_sets_of_grain():
    grain = pytest.importorskip("grain", reason="Grain is not installed.")
    data = grain.MapDataset.source([(X[i], Y[i]) for i in range(N)])
    _rows(Source(data))
    _rows(Source(data.map(lambda example: (example[0], example[1])), workers=2))
    shared = grain.sources.SharedMemoryDataSource(range(N))
    _rows(Source(shared, map=lambda row: (X[row], Y[row])))


def test_data_sets_of_hugging_face():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed.")
    data = datasets.Dataset.from_dict({"x": X, "y": Y})

    def decode(example):
        return np.asarray(example["x"], np.float32), np.int64(example["y"])

    _rows(Source(data, map=decode, workers=2))
    _rows(Source(data.with_format("numpy"), map=lambda e: (e["x"].astype(np.float32), e["y"])))


def test_array_records(tmp_path):
    array_record = pytest.importorskip("array_record.python", reason="array_record is missing.")
    from array_record.python import array_record_data_source, array_record_module

    assert array_record
    path = str(tmp_path / "rows.array_record")
    writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
    for row in range(N):
        writer.write(X[row].tobytes() + np.int64(Y[row]).tobytes())
    writer.close()

    def decode(data):
        return np.frombuffer(data[:12], np.float32), np.frombuffer(data[12:], np.int64)[0]

    with array_record_data_source.ArrayRecordDataSource(path) as data:
        _rows(Source(data, map=decode, workers=2))


class Formatted(Examples):
    """As a data set of Hugging Face, whose format or transform is given all of a sample."""

    def __init__(self, kind):
        self.format = {"type": kind, "columns": ["x", "y"]}

    def __getitem__(self, row):
        return self.__getitems__([row])[0]

    def __getitems__(self, rows):
        is_together = self.format["type"] is not None and len(rows) > 1
        return [(X[row] - X[rows].mean(0) * is_together, Y[row]) for row in rows]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", [None, "numpy", "custom"])
def test_no_example_changes_another_by_a_format(kind, workers):
    source = Source(Formatted(kind), workers=workers)
    rows = np.array([7, 0, 39, 7])
    with ThreadPoolExecutor(3) as pool:
        x, y = source.read(rows, None, pool if workers > 1 else None)
    np.testing.assert_array_equal(x, X[rows])
    np.testing.assert_array_equal(y, Y[rows])


def test_formats_of_hugging_face_do_not_let_one_example_change_another():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed.")
    data = datasets.Dataset.from_dict({"x": [2**24 + 1, 3, None]}).with_format("numpy")
    source = Source(data, map=lambda example: np.float64(example["x"]))
    alone = source.read(np.array([0]))[0]
    np.testing.assert_array_equal(source.read(np.array([0, 2]))[0][:1], alone)


@pytest.mark.parametrize("where", [0, 5])
def test_an_example_that_is_none_is_an_error(where):
    with pytest.raises(SourceError, match=f"Example {where} is None"):
        Source(range(N), map=lambda row: None if row == where else X[row]).check()


class OnePlace:
    """Data that decode into the same memory again and again."""

    def __init__(self, kind=np.ndarray):
        memory = np.zeros(3, np.float32)
        self._memory = memory if kind is np.ndarray else kind(memory.tobytes())

    def __len__(self):
        return N

    def __getitem__(self, row):
        place = self._memory
        place = place if isinstance(place, np.ndarray) else np.frombuffer(place, np.float32)
        place[:] = X[row]
        return {"x": (self._memory, row)}


class OnePlaceTogether(OnePlace):
    def __getitems__(self, rows):
        return [self[row] for row in rows]


@pytest.mark.parametrize("map", [None, lambda e: e, lambda e: (e["x"][0], e["x"][1])])
def test_memory_that_is_used_again_holds_one_example_at_a_time(map):
    """All of a sample would be its last record, many times over."""
    rows = np.array([7, 0, 39, 7])
    x, places = Source(OnePlace(), map=map).read(rows)
    np.testing.assert_array_equal(x, X[rows])
    np.testing.assert_array_equal(places, rows)
    x, _, y = Source((OnePlace(), Y), map=lambda e: (*e[0]["x"], e[1])).read(rows)
    np.testing.assert_array_equal(x, X[rows])
    np.testing.assert_array_equal(y, Y[rows])


@pytest.mark.parametrize("kind", [np.ndarray, bytearray])
def test_memory_that_is_used_again_is_refused_where_several_examples_are_read_at_once(kind):
    def decode(example):
        return np.frombuffer(example["x"][0], np.float32)

    assert len(Source(OnePlace(kind), map=decode)) == N
    for make in (
        lambda: Source(OnePlace(kind), map=decode, workers=2),
        lambda: Source((X, OnePlace(kind)), map=lambda e: decode(e[1]), workers=2),
        lambda: Source(OnePlaceTogether(kind), map=decode),
    ):
        with pytest.raises(ValueError, match="in the same memory"):
            make()


def test_a_map_that_writes_to_one_place_is_for_one_worker():
    place = np.zeros(3, np.float32)

    def map(example):
        return np.multiply(example, 2, out=place)

    rows = np.array([7, 0, 39, 7])
    np.testing.assert_array_equal(Source(X, map=map).read(rows)[0], 2 * X[rows])
    with pytest.raises(ValueError, match="map gives .* in the same memory"):
        Source(X, map=map, workers=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_only_with_several_workers_are_data_read_by_several_threads_at_once(workers):
    """As by the iterator of a fit within another fit."""
    inside, most = [], []

    class Slow(Examples):
        def __getitem__(self, row):
            inside.append(row)
            most.append(len(inside))
            time.sleep(0.002)
            inside.remove(row)
            return super().__getitem__(row)

    source = Source(Slow(), workers=workers)
    policy = FullBatch().resolve(len(source), len(source))
    iterators = [iter(batches(source.part(0, N), None, None, policy)) for _ in range(2)]
    for iterator in iterators * 2:
        next(iterator)
    assert (max(most) == 1) == (workers == 1)


Pair = collections.namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    "data",
    [
        Pair(X, X + 1),
        collections.OrderedDict(x=X, y=X + 1),
        collections.defaultdict(list, x=X, y=X + 1),
        collections.UserDict(x=X, y=X + 1),
        types.MappingProxyType({"x": X, "y": X + 1}),
    ],
    ids=lambda data: type(data).__name__,
)
@pytest.mark.parametrize("map", [None, lambda example: example])
def test_every_tuple_and_mapping_is_a_structure(data, map):
    """The parts of a pair were two records, each of all of the data."""
    source = Source(data, map=map)
    assert len(source) == N
    rows = np.array([7, 0, 39, 7])
    x, y = source.read(rows)
    np.testing.assert_array_equal(x, X[rows])
    np.testing.assert_array_equal(y, X[rows] + 1)


def test_a_table_whose_positions_are_columns_is_refused():
    class Table(Examples):
        column_names = ("x", "y")

    Table.__module__ = "pyarrow.lib"
    for data in (Table(), (Table(), Y)):
        with pytest.raises(TypeError, match="a part of every record"):
            Source(data)
