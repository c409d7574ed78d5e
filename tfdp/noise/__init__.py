"""Where random numbers come from."""

from tfdp.noise.host import HostGenerator
from tfdp.noise.source import (
    RandomSource,
    SeededRandomSource,
    SystemRandomSource,
    host_generator,
    system_random_source,
)
from tfdp.noise.staging import one_of, staged, zero_if

__all__ = [
    "HostGenerator",
    "RandomSource",
    "SeededRandomSource",
    "SystemRandomSource",
    "host_generator",
    "one_of",
    "staged",
    "system_random_source",
    "zero_if",
]
