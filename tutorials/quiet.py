"""TensorFlow without what it writes to stderr while it starts."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Keeps stderr back, and shows it only where what is within fails.

    TensorFlow's libraries log before they read TF_CPP_MIN_LOG_LEVEL, and past `sys.stderr`. What
    they read there, unless it was set, keeps later lines away.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        real = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            kept.seek(0)
            os.write(real, kept.read())
            raise
        finally:
            os.dup2(real, 2)
            os.close(real)
