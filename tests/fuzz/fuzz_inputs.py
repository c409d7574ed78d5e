"""What a fuzzer's bytes are read as, and what it begins with."""

import json
import pathlib
import tempfile

from tests.ledger import reading
from tfdp.events import registry
from tfdp.ledger import LedgerFormatError, codec, json_lines

_GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "ledger" / "golden"
# Words that random bytes would take long to find.
WORDS = [
    *registry.registered_names(object),
    *sorted(
        {
            field
            for name in registry.registered_names(object)
            for field in codec.decoders(registry.registered(name))
        }
    ),
    *("type", "event", "count", "ledger_id", "entry_count", "total_count", "version", "format"),
    *("null", "true", "false", "NaN", "Infinity", "1e400", "9223372036854775808", "\\\\ud800"),
    *("add_or_remove_one", "replace_one", "zero_out", "example", "microbatch", "user"),
]


def one_input(data: bytes) -> None:
    """Reads a file (f), an event (e) or a text, as the first byte says."""
    kind, data = data[:1], data[1:]
    if kind == b"f":
        _read_file(data)
        return
    # Surrogates are what some JSON writers make of characters, and no UTF-8.
    text = data.decode("utf-8", "surrogateescape")
    if kind != b"e":
        reading.read(text)
        return
    try:
        value = codec.parse_json(text, "event")
    except LedgerFormatError:
        return
    reading.read_event(value)


def _read_file(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(data)
        file.flush()
        try:
            with json_lines.open_entries(file.name) as stream:
                entries = list(stream.entries)
        except LedgerFormatError:
            return
    ledger = reading.read(data.decode())
    assert ledger is not None, "the text is refused, and the file is not"
    assert ledger.total_count == sum(entry.count for entry in entries)


def write_seeds(folder: pathlib.Path) -> None:
    """Writes the golden ledgers of the tests, whole and event by event."""
    for path in _GOLDEN.glob("*.jsonl"):
        for kind in "tf":
            (folder / f"{path.stem}.{kind}").write_bytes(kind.encode() + path.read_bytes())
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()[1:]):
            event = json.dumps(json.loads(line)["event"])
            (folder / f"{path.stem}.{number}.e").write_text(f"e{event}", encoding="utf-8")
