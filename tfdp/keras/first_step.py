"""What is said while the first step is traced, which takes longer than those after it."""

import contextlib
import logging
import threading
from collections.abc import Iterator

_logger = logging.getLogger("tfdp")

_PATIENCE_S = 5.0


@contextlib.contextmanager
def said_where_slow() -> Iterator[None]:
    """Says what the first step does, if the block takes longer than somebody waits in patience."""
    message = "Tracing the first private step. Those after it take a fraction of the time."
    notice = threading.Timer(_PATIENCE_S, _logger.warning, [message])
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()
        notice.join()
