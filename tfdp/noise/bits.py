"""Random bits on the host: AES-256 in counter mode, under a new key for every draw."""

import hashlib
import os
import threading
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Fill = Callable[[np.ndarray], None]  # Overwrites a contiguous array with random bits.

# Zeros, which are encrypted in the place of a message. They are few enough to stay in a cache.
_ZEROS = memoryview(bytes(1 << 18))
_LONGEST = 2**36 - 32


def keystream(key: bytes, out: np.ndarray) -> None:
    """Overwrites `out` with AES-256 of the counter blocks 0^96 || 2, 0^96 || 3, ...

    That is AES-256-CTR as AES-256-GCM uses it with a nonce of zeros. It is called by its name in
    GCM because OpenSSL's is twice as fast as its plain CTR on processors with vector AES.

    Args:
        key: 32 bytes, used for this call only: the same key gives the same bits.
        out: A contiguous array of at most 2^36 - 32 bytes: the counter has 32 bits.

    Raises:
        ValueError: the key is not 32 bytes long, or `out` is too long.

    References:
        NIST SP 800-38A, section 6.5 (CTR); NIST SP 800-38D, section 7.1 (its use in GCM).
    """
    if len(key) != 32:
        raise ValueError(f"key must be 32 bytes long. Received {len(key)} bytes.")
    if out.nbytes > _LONGEST:
        raise ValueError(
            f"A draw is at most {_LONGEST} bytes long, where the counter ends. Received: "
            f"{out.nbytes} bytes. Draw in parts."
        )
    if not out.size:
        return
    encryptor = Cipher(algorithms.AES(key), modes.GCM(bytes(12))).encryptor()
    left = memoryview(out).cast("B")
    while left:
        part = left[: len(_ZEROS)]
        encryptor.update_into(_ZEROS[: len(part)], part)
        left = left[len(part) :]


def system_fill(out: np.ndarray) -> None:
    """Overwrites `out` with bits under a key that the operating system gives for this call alone.

    There is no state to repeat: not in another thread, a forked process, a restored snapshot or a
    resumed run. The key is forgotten when the call returns.
    """
    keystream(os.urandom(32), out)


class Buffered:
    """Serves many small arrays from blocks of random bits; each bit is given once.

    A key for every 64 bits would take most of the time. It lives as long as one call on the host
    does, so no state is kept between draws.

    Args:
        fill: Overwrites arrays with random bits.
    """

    def __init__(self, fill: Fill):
        self._fill = fill
        self._block = np.empty(4096, np.uint8)
        self._used = self._block.size

    def __call__(self, out: np.ndarray) -> None:
        """Overwrites `out`, an array of integers that need not be contiguous.

        Raises:
            TypeError: it holds something else: the bytes of random bits are hardly ever False.
        """
        if out.dtype.kind not in "iu":
            raise TypeError(
                "Random bits are written into arrays of integers; make of these what is wanted. "
                f"Received: dtype={out.dtype}."
            )
        if not out.flags.c_contiguous:
            # As a row it may be a copy, which would be overwritten in its place.
            whole = np.empty(out.shape, out.dtype)
            self(whole)
            out[...] = whole
            return
        if out.nbytes > self._block.size:
            self._fill(out)
            return
        if self._used + out.nbytes > self._block.size:
            self._fill(self._block)
            self._used = 0
        part = self._block[self._used : self._used + out.nbytes]
        out.reshape(-1).view(np.uint8)[:] = part
        self._used += out.nbytes


class SeededFill:
    """Overwrites arrays with bits that depend on a seed and on the number of earlier calls."""

    def __init__(self, seed: int):
        self._seed = str(seed).encode()
        self._calls = 0
        self._lock = threading.Lock()

    def __call__(self, out: np.ndarray) -> None:
        """Overwrites `out`."""
        with self._lock:
            number, self._calls = self._calls, self._calls + 1
        keystream(hashlib.sha256(b"tfdp seed %b draw %d" % (self._seed, number)).digest(), out)
