"""Whatever text or value is read, the answer is the ledger that it says, or a refusal with a place.

`tests/fuzz/fuzz_ledger.py` asks the same of texts that are found by coverage.
"""

import json
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz import fuzz_inputs
from tests.ledger import reading
from tests.ledger.strategies import ledger_events
from tfdp.events import (
    ComposedEvent,
    FullBatchSampling,
    GaussianSumEvent,
    PoissonSampling,
    SampledEvent,
    ShuffledSampling,
    UnsupportedEventError,
)
from tfdp.ledger import LedgerFormatError, PrivacyLedger, codec, json_lines

# Surrogates included.
_texts = st.text(st.characters(), max_size=20)


_numbers = (
    st.integers() | st.sampled_from([0, -1, 2**53 + 1, 2**63 - 1, 2**63, 10**400]) | st.floats()
)


_json = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


_STEP = SampledEvent(
    PoissonSampling(0.25, 40),
    ComposedEvent((GaussianSumEvent(1.0, 2.0), GaussianSumEvent(3.0, 4.0))),
)


def _text(*entries):
    ledger = PrivacyLedger()
    for event, count in entries:
        ledger.append(event, count)
    return ledger.to_json_lines()


_TEXT = _text((_STEP, 3), (GaussianSumEvent(1.0, 1.0), 1), (_STEP, 2**40))


_ledger_texts = st.lists(st.tuples(ledger_events, st.integers(1, 2**40)), max_size=4).map(
    lambda entries: _text(*entries)
)


def _paths(value, path=()):
    yield path
    if isinstance(value, (dict, list)):
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(member, (*path, key))


def _replaced(value, path, new):
    if not path:
        return new
    members = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    changed = {k: _replaced(v, path[1:], new) if k == path[0] else v for k, v in members}
    return changed if isinstance(value, dict) else list(changed.values())


@given(_json)
def test_arbitrary_value_is_no_event_or_the_one_it_says(value):
    reading.read_event(value)


@settings(max_examples=300)
@given(ledger_events, st.randoms(use_true_random=False), _json)
def test_event_with_one_part_exchanged(event, generator, new):
    value = codec.encode(event)
    path = generator.choice(list(_paths(value)))
    reading.read_event(_replaced(value, path, new))


def test_every_part_of_an_event_is_looked_at():
    value = codec.encode(_STEP)
    for path in _paths(value):
        for wrong in ({}, [1], "\ud800", float("nan"), 10**400):
            assert reading.read_event(_replaced(value, path, wrong)) is None


@given(st.text(st.characters(), max_size=200))
@example("\ufeff" + _TEXT)
@example(_TEXT.replace("\n", "\r\n"))
@example(_TEXT.replace("\n", "\u2028"))
@example("null\n")
def test_arbitrary_text(text):
    reading.read(text)


_WORDS = [
    "NaN",
    "-",
    "1e400",
    "1e-400",
    "0.1e1",
    "null",
    "true",
    '"',
    "\\ud800",
    "\n",
    "{",
    "}",
    "[",
    ",",
    "0",
]


def _mutated(text, generator):
    at = generator.randrange(len(text) + 1)
    end = min(len(text), at + generator.choice([0, 1, 1, 2, 8, 60]))
    word = generator.choice([*_WORDS, "", chr(generator.randrange(0x110000)), text[at:end] * 2])
    return text[:at] + word + text[end:]


@settings(max_examples=300)
@given(_ledger_texts, st.randoms(use_true_random=False), st.integers(1, 3))
def test_valid_text_with_a_few_changes(text, generator, changes):
    original = text
    for _ in range(changes):
        text = _mutated(text, generator)
    found = reading.read(text)
    # The digest finds every accident.
    assert found is None or found == PrivacyLedger.from_json_lines(original)
    reading.read(reading.resealed(text))
    reading.read(reading.of_version_1(text))


def test_text_cut_off_anywhere_is_refused():
    assert reading.read(_TEXT) is not None
    for end in range(len(_TEXT) - 1):  # Without the last line's end it is still whole.
        assert reading.read(_TEXT[:end]) is None


def test_lines_left_out_doubled_or_exchanged_are_refused():
    header, *lines = _TEXT.splitlines(keepends=True)
    for i in range(len(lines)):
        for changed in ([*lines[:i], *lines[i + 1 :]], [*lines[: i + 1], *lines[i:]]):
            text = "".join([header, *changed])
            assert reading.read(text) is None
            if i < len(lines) - 1:
                assert reading.read(reading.resealed(text)) is None
                assert reading.read(reading.of_version_1(text)) is None


@pytest.mark.parametrize("place", range(4))
def test_member_given_twice_is_refused(place):
    members = ('"version": ', '"count": ', '"noise_stddev": ', '"type": ')
    text = _TEXT.replace(members[place], f"{members[place]}1, {members[place]}")
    assert text != _TEXT
    assert reading.read(text) is None


@pytest.mark.parametrize("depth", [10, 500, 900, 990, 1000, 5000, 100_000])
@pytest.mark.parametrize("brackets", ["[]", ('{"a":', "}")], ids=["list", "object"])
def test_deep_nesting_is_refused_wherever_it_stands(brackets, depth):
    deep = brackets[0] * depth + "1" + brackets[1] * depth
    header = json.loads(_TEXT.splitlines()[0])
    texts = [deep, *(_TEXT.replace(json.dumps(v), deep, 1) for v in header.values())]
    texts += [
        _TEXT.replace(old, deep, 1) for old in ("40", "2.0", "false", '"example"', "1099511627776")
    ]
    for text in texts:
        assert reading.read(text) is None


@pytest.mark.parametrize(
    "number",
    ["1" * 4000, "1" * 100_000, "1e999999999", "-1", "1E2", "0.5", "1" + "0" * 200_000 + ".0"],
)
@pytest.mark.parametrize("old", ["40", "2.0", "1099511627776"])
def test_huge_and_odd_numbers_are_refused_or_read_as_they_are(old, number):
    reading.read(_TEXT.replace(old, number, 1))  # Compares numbers with the standard library's.


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 2', '"version": 2.0'),
        ('"version": 2', '"version": true'),
        ('"entry_count": 3', '"entry_count": 3.0'),
        ('"total_count": 1099511627780', '"total_count": 1099511627780.0'),
        ('"count": 1}', '"count": true}'),
        ('"count": 1}', '"count": 1.0}'),
        ('"tfdp_version": "', '"tfdp_version": 1, "other": "'),
    ],
)
def test_equal_number_of_another_type_is_refused(old, new):
    assert old in _TEXT
    assert reading.read(_TEXT.replace(old, new, 1)) is None


def test_integers_are_bounded_on_both_ways():
    # Longer ones could be appended, and the ledger then not be written.
    largest = SampledEvent(FullBatchSampling(codec.LARGEST_INTEGER), GaussianSumEvent(1.0, 1.0))
    assert reading.read(_text((largest, 1))) is not None
    for size in (codec.LARGEST_INTEGER + 1, 10**5000):
        with pytest.raises(ValueError, match=r"population_size must be at most 2\^63 - 1"):
            FullBatchSampling(size)
        event = SampledEvent(ShuffledSampling(2, 9, size), GaussianSumEvent(1.0, 1.0))
        with pytest.raises(UnsupportedEventError, match="integers of at most"):
            PrivacyLedger().append(event)
    value = codec.encode(largest)
    value["sampling"]["population_size"] += 1
    with pytest.raises(
        LedgerFormatError, match=r"event\.sampling\.population_size must be at most"
    ):
        codec.decode(value)


def test_checker_finds_a_number_that_is_read_wrongly(monkeypatch):
    decoders = codec.decoders(GaussianSumEvent)
    monkeypatch.setitem(decoders, "noise_stddev", lambda value, where, depth: 2.0 * value)
    with pytest.raises(AssertionError):
        reading.read(_TEXT)
    with pytest.raises(AssertionError):
        reading.read_event(codec.encode(GaussianSumEvent(1.0, 1.0)))


@pytest.mark.parametrize("line", [1, 2, 3, 4])
def test_syntax_error_is_named_by_line_and_offset(line):
    lines = _TEXT.splitlines()
    offset = len(lines[line - 1]) // 2
    while lines[line - 1][offset] != ",":
        offset -= 1
    lines[line - 1] = lines[line - 1][:offset] + "!" + lines[line - 1][offset + 1 :]
    with pytest.raises(LedgerFormatError, match=rf"line {line} .* at offset {offset}\."):
        PrivacyLedger.from_json_lines("\n".join(lines))


def _from_file(path, data):
    path.write_bytes(data)
    with json_lines.open_entries(path) as stream:
        return [tuple(entry) for entry in stream.entries]


def test_file_that_is_not_utf8_is_refused_by_line_and_offset(tmp_path):
    data = _TEXT.encode()
    for line in (1, 3):
        lines = data.splitlines(keepends=True)
        lines[line - 1] = lines[line - 1][:5] + b"\xff" + lines[line - 1][5:]
        with pytest.raises(LedgerFormatError, match=rf"line {line} is not UTF-8.* offset 5\."):
            _from_file(tmp_path / "a.jsonl", b"".join(lines))


def test_file_with_bytes_flipped_is_read_as_its_text_or_refused(tmp_path):
    generator, path, data = random.Random(1), tmp_path / "a.jsonl", _TEXT.encode()
    for _ in range(400):
        flipped = bytearray(data)
        for _ in range(generator.choice([1, 1, 2])):
            flipped[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        with pytest.raises(LedgerFormatError):
            _from_file(path, bytes(flipped))


def test_file_of_version_1_with_bytes_flipped_is_read_as_its_text_or_refused(tmp_path):
    generator, path = random.Random(1), tmp_path / "a.jsonl"
    data = reading.of_version_1(_TEXT).encode()
    read = 0
    for _ in range(400):
        flipped = bytearray(data)
        for _ in range(generator.choice([1, 1, 2])):
            flipped[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        try:
            entries = _from_file(path, bytes(flipped))
        except LedgerFormatError:
            continue
        ledger = reading.read(flipped.decode())
        assert ledger is not None
        assert sum(count for _, count in entries) == ledger.total_count
        read += 1
    assert 0 < read < 200  # It has no digest: some numbers become others.


def test_seeds_and_words_of_the_fuzzer_are_read(tmp_path):
    fuzz_inputs.write_seeds(tmp_path)
    seeds = [path.read_bytes() for path in tmp_path.iterdir()]
    assert len(seeds) > 10
    for seed in seeds:
        fuzz_inputs.one_input(seed)
        fuzz_inputs.one_input(seed[:-9] + b"\xff" + seed[-8:])
    for word in fuzz_inputs.WORDS:
        fuzz_inputs.one_input(b"e" + word.encode())
