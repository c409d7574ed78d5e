"""A ledger as an SQLite file: what it must look like, how it is written, read and verified."""

from tfdp.ledger.storage.read import open_book as open_book
from tfdp.ledger.storage.read import open_entries as open_entries
from tfdp.ledger.storage.verify import Verified as Verified
from tfdp.ledger.storage.verify import verify as verify
from tfdp.ledger.storage.write import create as create
from tfdp.ledger.storage.write import write as write
from tfdp.ledger.storage.write import write_text as write_text
