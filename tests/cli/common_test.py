"""What commands share: numbers, keys, output files, and text for a terminal."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.accounting import MonteCarloAccountant
from tfdp.accounting.registry import ACCOUNTANTS
from tfdp.cli.common import (
    authentication,
    check_out,
    epsilon_line,
    finite,
    one_line,
    printable,
    read_delta,
    read_key,
    rounded_down,
    rounded_up,
)
from tfdp.ledger import LedgerFormatError, PrivacyLedger
from tfdp.ledger.entry import Evidence


def test_delta_is_between_0_and_1():
    assert read_delta("1e-5") == 1e-5
    for text in ("0", "1", "-1", "nan", "inf", "small", ""):
        with pytest.raises(ValueError, match="--delta must be a number between 0 and 1"):
            read_delta(text)


@given(st.floats(1e-12, 1e12), st.integers(2, 8))
def test_numbers_are_rounded_to_the_side_that_is_asked_for(value, digits):
    low, high = float(rounded_down(value, digits)), float(rounded_up(value, digits))
    assert value * (1 - 10.0 ** (1 - digits)) <= low <= value <= high
    assert high <= value * (1 + 10.0 ** (1 - digits)) + 1e-300
    # So many digits are there, and no zeros behind them.
    assert rounded_up(high, digits) == rounded_down(high, digits) == f"{high:.{digits}g}"


def test_epsilon_is_rounded_up_and_delta_not_at_all():
    assert epsilon_line(1.0000041, 1.23456789e-5, "prv") == (
        "epsilon = 1.00001 at delta = 1.23456789e-05 (prv)"
    )
    assert epsilon_line(2.0, 1e-5, "prv") == "epsilon = 2 at delta = 1e-05 (prv)"
    assert epsilon_line(0.0, 0.001, "prv") == "epsilon = 0 at delta = 0.001 (prv)"
    assert epsilon_line("inf", 0.1, "prv") == epsilon_line(math.inf, 0.1, "prv")


def test_key_is_read_as_it_is(tmp_path):
    assert read_key(None) is None
    (tmp_path / "key").write_bytes(b"secret\n")
    assert read_key(str(tmp_path / "key")) == b"secret\n"
    (tmp_path / "long").write_bytes(bytes(4097))
    with pytest.raises(LedgerFormatError, match="4097 bytes; a key has at most 4096"):
        read_key(str(tmp_path / "long"))


def test_what_is_not_authenticated_stands_first():
    kinds = [Evidence.KEY, Evidence.DIGESTS]
    assert authentication(["a"], [Evidence.KEY]) == Evidence.KEY.value
    assert authentication(["a", "b"], kinds) == (
        f"{Evidence.DIGESTS.value} (b); {Evidence.KEY.value} (a)"
    )
    # A name is no line of its own.
    assert "\n" not in authentication(["a\nepsilon = 0.1", "b"], kinds)


def test_output_must_be_possible(tmp_path):
    ledger = tmp_path / "run.ledger"
    ledger.write_text("")
    check_out(str(tmp_path / "curve.csv"), (".csv",), [str(ledger)])
    with pytest.raises(ValueError, match="must end in"):
        check_out(str(tmp_path / "curve.txt"), (".csv",), [])
    with pytest.raises(FileNotFoundError, match="folder of --out"):
        check_out(str(tmp_path / "gone" / "curve.csv"), (".csv",), [])
    with pytest.raises(ValueError, match="overwrite the ledger"):
        check_out(str(ledger), (), [str(ledger)])
    with pytest.raises(ValueError, match="regular file"):
        check_out(str(tmp_path), (), [])


def test_terminals_get_no_commands():
    assert printable("a\x1b[2J\nb\u202e") == "a\\x1b[2J\nb\\u202e"
    assert one_line("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"


def test_infinity_is_text_in_json():
    assert (finite(1.5), finite(math.inf)) == (1.5, "inf")


def test_no_ledger_is_written_over(tmp_path):
    ledger, key = PrivacyLedger(), tmp_path / "key"
    ledger.save(tmp_path / "other.md")
    ledger.to_json_lines(tmp_path / "other.jsonl")
    key.write_bytes(b"k" * 32)
    for name in ("other.md", "other.jsonl"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(ValueError, match="overwrite a ledger"):
            check_out(str(tmp_path / name), (), [])
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(ValueError, match="file that is read"):
        check_out(str(key), (), ["", str(key)])
    for name in ("run.ledger-journal", "run.ledger-wal", "run.ledger-shm"):
        with pytest.raises(ValueError, match="must not end in"):
            check_out(str(tmp_path / name), (), [])


def test_what_is_not_certain_is_not_called_so(monkeypatch):
    monkeypatch.setitem(
        ACCOUNTANTS, "drawn", lambda relation: MonteCarloAccountant(10**5, 1 - 1e-12)
    )
    assert "probability 0.999999999999 only" in epsilon_line(1.0, 1e-3, "drawn")
