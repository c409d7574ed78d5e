"""Where random numbers come from."""

from tfdp.noise.choices import one_of, zero_if
from tfdp.noise.host import HostGenerator
from tfdp.noise.source import (
    RandomSource,
    SeededRandomSource,
    SystemRandomSource,
    host_generator,
    system_random_source,
)
from tfdp.noise.staging import staged

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
