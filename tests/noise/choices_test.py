"""tfdp.noise.choices: what is only passed on is where it was, and zero where it is to be."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.noise import one_of, staged, zero_if


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_arguments_that_are_passed_on_are_forgotten_by_the_condition(again, jit_compile):
    # A result that is computed from a kept one is computed where the kept one was zeroed.
    def fn(step, kept, other):
        kept = [zero_if(tf.equal(step, 1), leaf) for leaf in kept]
        made = zero_if(tf.equal(step, 2), other + 1.0)
        kept = [tf.where(True, leaf, leaf) for leaf in kept] if again else kept
        return {"made": made, "kept": kept[::-1], "name": "kept"}

    @tf.function
    def function(step, kept, other):
        return staged(fn, step, kept, other, jit_compile=jit_compile)

    kept, other = [tf.fill([3, 4], 5.0), tf.fill([7], 6.0), tf.constant(7.0)], tf.ones([2, 2])
    for step in range(4):
        found = function(tf.constant(step), kept, other)
        assert [float(tf.reduce_max(leaf)) for leaf in found["kept"]] == (
            [0.0] * 3 if step == 1 else [7.0, 6.0, 5.0]
        )
        assert [leaf.shape for leaf in found["kept"]] == [leaf.shape for leaf in kept[::-1]]
        assert float(tf.reduce_max(found["made"])) == (0.0 if step == 2 else 2.0)


def test_what_is_passed_on_stays_where_it_is_in_memory():
    @tf.function
    def step(kept):
        return staged(lambda kept: [zero_if(tf.constant(False), kept), kept + 1.0], kept)[0]

    kept = tf.zeros([2**8, 2**8])
    # Outside of XLA: only what is made is a result of the compiled part.
    outputs = [
        op.outputs
        for op in step.get_concrete_function(kept).graph.get_operations()
        if op.type.endswith("PartitionedCall")
    ]
    assert [[out.shape for out in each if out.shape.rank] for each in outputs] == [[kept.shape]]


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("shape", [[], [7], [301, 333]])
def test_what_is_computed_and_used_twice_is_forgotten_by_the_condition(shape, jit_compile):
    @tf.function(autograph=False)
    def step(ends, leaf, earlier):
        def fn(leaf, earlier):
            noise = 3 * leaf + earlier
            kept = [zero_if(ends, each) for each in (noise, earlier, 2 * noise)]
            return leaf + noise, kept

        return staged(fn, leaf, earlier, jit_compile=jit_compile)

    leaf, earlier = tf.fill(shape, 1.0), tf.fill(shape, 5.0)
    for ends in (False, True):
        result, kept = step(tf.constant(ends), leaf, earlier)
        np.testing.assert_array_equal(result, np.full(shape, 9.0))
        for value, expected in zip(kept, (8.0, 5.0, 16.0), strict=True):
            np.testing.assert_array_equal(value, np.full(shape, 0.0 if ends else expected))


@pytest.mark.parametrize("staging", [None, False, True])
@pytest.mark.parametrize("shape", [[], [7], [301, 333]])
def test_one_of_several_is_an_argument_or_what_is_computed_or_zero(shape, staging):
    # Two results have the same index, and one has another.
    def fn(index, leaf, earlier):
        noise = 3 * leaf + earlier
        kept = [one_of(index, [earlier, noise]), one_of(index, [leaf, earlier])]
        return leaf + noise, [*kept, one_of(2 - index, [noise, leaf])], kept[0] + 1.0

    @tf.function(autograph=False)
    def step(*args):
        return fn(*args) if staging is None else staged(fn, *args, jit_compile=staging)

    leaf, earlier = tf.fill(shape, 1.0), tf.fill(shape, 5.0)
    for index, kept in enumerate([(5.0, 1.0, 0.0), (8.0, 5.0, 1.0), (0.0, 0.0, 8.0)]):
        for run in (step, fn):
            result, found, used = run(tf.constant(index), leaf, earlier)
            np.testing.assert_array_equal(result, np.full(shape, 9.0))
            np.testing.assert_array_equal(used, np.full(shape, kept[0] + 1))
            for value, expected in zip(found, kept, strict=True):
                np.testing.assert_array_equal(value, np.full(shape, expected))


def test_xla_does_not_compute_what_may_be_forgotten_once_more():
    # A selection would be an operation of its own, into which XLA would fuse the noise once more.
    @tf.function(autograph=False)
    def step(ends, leaf):
        def fn(leaf):
            noise = 3 * leaf
            return leaf + noise, zero_if(ends, noise)

        return staged(fn, leaf, jit_compile=True)

    operations = step.get_concrete_function(
        tf.constant(False), tf.zeros([3, 100, 300])
    ).graph.get_operations()
    (branch,) = [op for op in operations if op.type in ("If", "StatelessIf")]
    compiled = branch.inputs[1].op.inputs[0].op
    assert compiled.type.endswith("PartitionedCall")
    assert branch.inputs[1].op.type == "Reshape"
