"""What tests of sampling policies draw and measure."""

import itertools

import tensorflow as tf
from scipy import stats

from tfdp.noise import host_generator
from tfdp.sampling import FixedSize
from tfdp.sampling.sizes import Sizes

# Samples, the units that they are drawn from, and their (expected) size.
STEPS, UNITS, BATCH = 4000, 50, 10


def take(policy, steps):
    """Returns the first samples that a policy draws, with secret random bits."""
    return list(itertools.islice(policy.draw(host_generator()), steps))


def take_fixed_size():
    """Returns samples of `BATCH` of `UNITS` units."""
    return take(FixedSize().resolve(UNITS, BATCH), STEPS)


def subset_p_value(samples, probabilities):
    """Returns the chi-square test of the distribution over whole samples, as sets."""
    counts = dict.fromkeys(probabilities, 0)
    for units in samples:
        key = tuple(sorted(units.tolist()))
        if key not in counts:
            return 0.0
        counts[key] += 1
    expected = [probability * len(samples) for probability in probabilities.values()]
    return stats.chisquare(list(counts.values()), expected).pvalue


def contradiction(policy, sizes):
    """Returns the first thing that a policy says against samples of these sizes, or None."""
    seen = Sizes()
    for size in sizes:
        seen.add(int(size))
        found = policy.contradiction(seen)
        if found is not None:
            return found
    return None


def elements(dataset):
    """Yields what `as_numpy_iterator` does, which in TensorFlow 2.18 takes no element with None."""
    for element in dataset:
        yield tf.nest.map_structure(lambda part: None if part is None else part.numpy(), element)
