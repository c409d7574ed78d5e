"""An optimizer around others: what it shows of them, and several of them in one."""

import keras
import numpy as np
import pytest
import toy
from toy import N

from tfdp.keras import AdamBC, LedgerMismatchError
from tfdp.keras.wrapping import parts

pytestmark = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="This Keras has no MultiOptimizer."
)


def several(first, second, by_function=False):
    """Returns an optimizer that updates the layers of `toy.dense` by two others."""
    if by_function:
        return keras.optimizers.MultiOptimizer(lambda v: first if "first" in v.path else second)
    chosen = keras.optimizers.OptimizerMap(second, {".*first.*": first})
    return keras.optimizers.MultiOptimizer(chosen)


def sgd(rate, **kwargs):
    return keras.optimizers.SGD(rate, **kwargs)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("by_function", [False, True])
def test_every_variable_is_updated_by_its_own_optimizer(by_function, jit_compile):
    inner = several(sgd(0.5), sgd(0.1), by_function)
    model = toy.private(optimizer=toy.dp(inner), jit_compile=jit_compile)
    start, losses = toy.weights(model), [lambda i=i: toy.crossentropy(model, i) for i in range(N)]
    moved, _ = toy.step_by_hand(model, losses, learning_rate=1.0)
    rates = [0.5 if "first" in v.path else 0.1 for v in model.trainable_variables]
    expected = [s + r * (m - s) for r, s, m in zip(rates, start, moved, strict=True)]
    toy.fit_step(model)
    toy.assert_weights(model, expected)
    assert sorted(set(rates)) == [0.1, 0.5] and model.ledger.total_count == 1
    assert int(model.optimizer.iterations) == 1


def test_slots_are_those_of_all_and_no_counters_or_rates():
    first, second = sgd(0.5, momentum=0.9), keras.optimizers.Adam(0.1)
    model = toy.private(optimizer=toy.dp(several(first, second)))
    toy.fit_step(model)
    names = [v.name for v in model.optimizer.slots]
    assert sum("momentum" in name for name in names) == 4
    assert sum("velocity" in name for name in names) == 2 and len(names) == 6
    second.learning_rate = 0.01  # Nothing of gradients is in it.
    toy.fit_step(model)
    slot = next(v for v in model.optimizer.slots if np.any(v.numpy()))
    slot.assign(slot + 1.0)
    with pytest.raises(LedgerMismatchError, match="something else has changed them"):
        toy.fit_step(model)


def test_checkpoint_fits_the_same_optimizers_and_no_others(tmp_path):
    path = tmp_path / "model.weights.h5"
    model = toy.private(optimizer=toy.dp(several(sgd(0.5, momentum=0.9), sgd(0.1))))
    toy.fit_step(model)
    model.save_weights(path)
    same = toy.private(optimizer=toy.dp(several(sgd(0.5, momentum=0.9), sgd(0.1))))
    same.load_weights(path)
    for ours, theirs in zip(same.optimizer.slots, model.optimizer.slots, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    toy.fit_step(same)
    assert same.ledger.total_count == 2
    lion = keras.optimizers.Lion(0.5)  # Its slots have the shapes of momenta.
    other = toy.private(optimizer=toy.dp(several(lion, sgd(0.1))))
    with pytest.raises(ValueError, match="does not match this one"):
        other.load_weights(path)


def test_those_that_would_void_the_accounting_are_refused_wherever_they_are():
    with pytest.raises(ValueError, match="physical_batch_size"):
        toy.dp(several(sgd(0.5), sgd(0.1, gradient_accumulation_steps=2)))
    with pytest.raises(ValueError, match="physical_batch_size"):
        toy.dp(several(several(sgd(0.5), sgd(0.1, gradient_accumulation_steps=2)), sgd(0.1)))
    accumulates = several(sgd(0.5), sgd(0.1, gradient_accumulation_steps=2), by_function=True)
    model = toy.private(optimizer=toy.dp(accumulates))  # Which it has is known by variables only.
    with pytest.raises(ValueError, match="physical_batch_size"):
        toy.fit_step(model)
    assert model.ledger.total_count == 0


def test_noise_is_told_to_each_that_wants_it():
    inner = several(AdamBC(0.1), sgd(0.1))
    toy.dp(inner, stddev=3.0)
    assert [p.noise_stddev for p in parts(inner) if isinstance(p, AdamBC)] == [0.3]


def test_the_inner_optimizer_is_not_replaced():
    model = toy.private()
    toy.fit_step(model)
    inner = model.optimizer.inner_optimizer
    with pytest.raises(AttributeError, match="cannot be replaced.*compile again"):
        model.optimizer.inner_optimizer = keras.optimizers.SGD(1.0)
    assert model.optimizer.inner_optimizer is inner
