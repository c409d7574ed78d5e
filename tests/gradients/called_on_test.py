"""Layers called on fewer axes than they are made for, which may take records for something else."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import BATCH, assert_engines_agree, by_engine, problem
from tfdp.gradients import ModelLoss, UnsupportedModelError
from tfdp.gradients.explaining import explain
from tfdp.gradients.mapping import meets_records
from tfdp.gradients.rules.rule import RecordWise, rule_for

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*with a mask attached to it"),
    pytest.mark.filterwarnings("ignore:You are using a softmax over axis"),
]

L = keras.layers
# As many positions and features as records, so that nothing fails where they are mixed up.
N = BATCH
SEQUENCE, VECTOR, MASK, MASKS, BIT = (N, N), (N,), (N,), (N, N), ()
# Of all heads, and of each; there are as many heads as records.
OF_HEADS, OF_EACH_HEAD = (1, N, N), (N, N, N)


class Noted(L.Layer):
    """Hangs a mask of records, [n], on what it returns."""

    def call(self, x):
        return x

    def compute_mask(self, inputs, previous_mask=None):
        return inputs[:, 0, 0] > inputs[:, 0, 1]


class Padded(L.Layer):
    """Hangs a mask of steps, [n, t], on what it returns."""

    def call(self, x):
        return x

    def compute_mask(self, inputs, previous_mask=None):
        return inputs[..., 0] > 0.0


class OwnMask(L.Layer):
    """A block that makes masks for attention, [n, 1, 1, t], of those that are hung on its input."""

    def __init__(self):
        super().__init__()
        self.attention, self.supports_masking = L.MultiHeadAttention(N, N), True

    def call(self, x, mask=None):
        mask = None if mask is None else mask[:, None, None, :]
        return self.attention(x, x, attention_mask=mask)


def _attention_takes_any_rank():
    # Keras 3.12 refuses attention of anything but [n, t, d]; newer versions take it.
    try:
        L.Attention()([tf.ones([2, 3]), tf.ones([2, 3])])
    except (ValueError, tf.errors.InvalidArgumentError):
        return False
    return True


# name -> (shapes of the inputs, what is made of them). In every one of them, a layer that is called
# on all records at once would mix them.
MIXING = {
    "additive_attention_mask": (
        [SEQUENCE, BIT],
        lambda x, m: L.AdditiveAttention(use_scale=False)([x, x], mask=[m, m]),
    ),
    "additive_attention_of_vectors": (
        [VECTOR],
        lambda x: L.AdditiveAttention(use_scale=False)([x, x]),
    ),
    "attention_mask": ([SEQUENCE, BIT], lambda x, m: L.Attention()([x, x], mask=[m, m])),
    "attention_of_images": (
        [(N, *SEQUENCE), MASK],
        lambda x, m: L.Attention()([x, x], mask=[None, m]),
    ),
    "attention_of_vectors": ([VECTOR], lambda x: L.Attention()([x, x])),
    "attention_to_vectors": ([SEQUENCE, VECTOR], lambda x, v: L.Attention()([x, v])),
    "grouped_attention_mask": (
        [SEQUENCE, MASK],
        lambda x, m: L.GroupQueryAttention(N, 2, 1)(x, x, attention_mask=m),
    ),
    "grouped_attention_masks_of_heads_and_of_steps": (
        [SEQUENCE, OF_HEADS, MASK],
        lambda x, m, steps: L.GroupQueryAttention(N, N, 2)(
            x, x, value_mask=steps, attention_mask=m
        ),
    ),
    "mean_over_steps_mask": (
        [(1, N), (1, N)],
        lambda x, m: L.GlobalAveragePooling1D()(x, mask=keras.ops.exp(m)),
    ),
    "multi_head_attention_mask": (
        [SEQUENCE, MASK],
        lambda x, m: L.MultiHeadAttention(1, N)(x, x, attention_mask=m),
    ),
    "multi_head_attention_mask_of_heads": (
        [SEQUENCE, OF_HEADS],
        lambda x, m: (lambda e: L.MultiHeadAttention(N, N)(e, e, attention_mask=m))(Padded()(x)),
    ),
    "multi_head_attention_mask_of_heads_and_of_keys": (
        [SEQUENCE, OF_EACH_HEAD, MASK],
        lambda x, m, steps: L.MultiHeadAttention(N, N)(
            x, x, x, key_mask=steps, attention_mask=m, use_causal_mask=True
        ),
    ),
    "multi_head_attention_mask_of_heads_for_everybody": (
        [SEQUENCE],
        lambda x: L.MultiHeadAttention(N, N)(
            Padded()(x), x, attention_mask=np.tri(N, dtype=bool)[None, None]
        ),
    ),
    "multi_head_attention_mask_of_each_head_with_dropout": (
        [SEQUENCE, OF_EACH_HEAD, MASK],
        # Even with one that drops nothing, Keras goes another way.
        lambda x, m, steps: L.MultiHeadAttention(N, N, dropout=1e-12)(
            x, x, value_mask=steps, attention_mask=m
        ),
    ),
    "multi_head_attention_mask_in_a_block": ([SEQUENCE], lambda x: OwnMask()(Padded()(x))),
    "multi_head_attention_value_mask": (
        [SEQUENCE, BIT],
        lambda x, m: L.MultiHeadAttention(1, N)(x, x, value_mask=m),
    ),
    "multi_head_attention_mask_that_is_hung": (
        [SEQUENCE, MASK],
        lambda x, m: L.MultiHeadAttention(1, N)(Noted()(x), x, query_mask=m),
    ),
    "softmax_mask": ([SEQUENCE, MASK], lambda x, m: L.Softmax()(x, mask=m)),
    "softmax_mask_of_axes": (
        [(N, *SEQUENCE), MASKS],
        lambda x, m: L.Softmax(axis=(2, 3))(x, mask=m),
    ),
    "softmax_mask_of_numbers": ([VECTOR, BIT], lambda x, m: L.Softmax()(x, mask=m)),
    "softmax_mask_that_is_hung": (
        [VECTOR],
        lambda x: L.Softmax()(L.Masking(0.0)(L.ReLU(threshold=1.5)(x))),
    ),
}
APART = {
    "mean_over_steps_mask": (
        [SEQUENCE, MASK],
        lambda x, m: L.GlobalAveragePooling1D()(x, mask=m),
    ),
    "attention": ([SEQUENCE], lambda x: L.Attention()([x, x])),
    "attention_mask": ([SEQUENCE, MASK], lambda x, m: L.Attention()([x, x], mask=[m, m])),
    "attention_of_images": ([(N, *SEQUENCE)], lambda x: L.Attention()([x, x])),
    "grouped_attention_mask": (
        [SEQUENCE, MASKS],
        lambda x, m: L.GroupQueryAttention(N, 2, 1)(x, x, attention_mask=m),
    ),
    "grouped_attention_mask_of_heads": (
        [SEQUENCE, OF_HEADS],
        lambda x, m: L.GroupQueryAttention(N, N, 2)(x, x, attention_mask=m, use_causal_mask=True),
    ),
    "multi_head_attention_mask_and_padding": (
        [SEQUENCE, MASKS],
        lambda x, m: (lambda e: L.MultiHeadAttention(N, N)(e, e, attention_mask=m))(Padded()(x)),
    ),
    "multi_head_attention_mask_of_each_head": (
        [SEQUENCE, OF_EACH_HEAD],
        lambda x, m: L.MultiHeadAttention(N, N)(x, x, attention_mask=m, use_causal_mask=True),
    ),
    "multi_head_attention_mask_of_two_axes": (
        [(2, 2, N), (2, 2, 2, 2)],
        lambda x, m: L.MultiHeadAttention(N, N, attention_axes=(1, 2))(x, x, attention_mask=m),
    ),
    "multi_head_attention_mask_of_heads_for_everybody": (
        [SEQUENCE],
        lambda x: L.MultiHeadAttention(N, N)(
            x, x, attention_mask=np.tri(N, dtype=bool)[None, None], use_causal_mask=True
        ),
    ),
    "multi_head_attention_causal_and_masked": (
        [SEQUENCE],
        lambda x: (lambda e: L.MultiHeadAttention(1, N)(e, e, use_causal_mask=True))(
            L.Masking(0.0)(L.ReLU()(x))
        ),
    ),
    "multi_head_attention_mask": (
        [SEQUENCE, MASKS],
        lambda x, m: L.MultiHeadAttention(1, N)(x, x, attention_mask=m),
    ),
    "multi_head_attention_mask_of_an_axis": (
        [(2, *SEQUENCE), MASKS],
        lambda x, m: L.MultiHeadAttention(1, N, attention_axes=(2,))(x, x, attention_mask=m),
    ),
    "multi_head_attention_mask_of_everybody": (
        [SEQUENCE],
        lambda x: L.MultiHeadAttention(1, N)(x, x, attention_mask=np.tri(N, dtype=bool)),
    ),
    "softmax_mask": ([SEQUENCE, MASKS], lambda x, m: L.Softmax()(x, mask=m)),
}

if not _attention_takes_any_rank():
    for _name in ("attention_of_images", "attention_of_vectors", "attention_to_vectors"):
        MIXING.pop(_name)
        APART.pop(_name, None)


def make_problem(shapes, build):
    """A model whose first input goes through a dense layer; the others may be masks."""
    keras.utils.set_random_seed(1)
    first, *others = inputs = [keras.Input(shape) for shape in shapes]
    of_attention = (MASK, MASKS, BIT, OF_HEADS, OF_EACH_HEAD, (2, 2, 2, 2))
    masks = [x > 0 if x.shape[1:] in of_attention else x for x in others]
    h = build(L.Dense(N)(first), *masks)
    model = keras.Model(inputs, L.Dense(2)(L.Flatten()(h)))
    rng = np.random.default_rng(0)
    data = [tf.constant(rng.normal(size=(BATCH, *shape)), tf.float32) for shape in shapes]
    loss, variables, (_, y) = problem(model, data[0])
    return loss, variables, (tuple(data) if others else data[0], y)


@pytest.fixture
def by_record(monkeypatch):
    """Calls for which a promise does not hold."""
    classes = []
    holds_on = RecordWise.holds_on

    def watched(rule, layer, *args, **kwargs):
        holds = holds_on(rule, layer, *args, **kwargs)
        if not holds:
            classes.append(type(layer).__name__)
        return holds

    monkeypatch.setattr(RecordWise, "holds_on", watched)
    return classes


@pytest.mark.parametrize("name", sorted(MIXING))
def test_records_are_kept_apart(name, by_record):
    assert_engines_agree(*make_problem(*MIXING[name]))
    assert len(set(by_record)) == 1


@pytest.mark.parametrize("name", sorted(MIXING))
def test_running_it_on_a_batch_would_differ(name, monkeypatch):
    """Power: the test above fails without the check."""
    monkeypatch.setattr(RecordWise, "holds_on", lambda *args, **kwargs: True)
    with pytest.raises(AssertionError):
        assert_engines_agree(*make_problem(*MIXING[name]))


@pytest.mark.parametrize("name", sorted(APART))
def test_layers_that_get_what_they_are_made_for_run_on_the_batch(name, by_record):
    assert_engines_agree(*make_problem(*APART[name]))
    assert not by_record


@pytest.mark.parametrize(
    "layer",
    [L.Attention(score_mode="concat"), L.Attention(use_scale=True)],
    ids=["concat", "scale"],
)
def test_attention_with_weights_of_its_own_has_their_gradients_by_record(layer):
    loss, variables, examples = make_problem([SEQUENCE], lambda x: layer([x, x]))
    assert f"{layer.name}: on the batch, with weights of its own" in explain(loss.model)
    assert_engines_agree(loss, variables, examples)


def holds_on_records(layer, shape, **kwargs):
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, *shape])
        return rule_for(layer).holds_on(layer, x, x, **kwargs)


@pytest.mark.parametrize("axes, holds", [((1,), True), ((2,), False), ((1, 2), False)])
def test_attention_holds_along_positions(axes, holds):
    assert holds_on_records(L.MultiHeadAttention(N, N, attention_axes=axes), SEQUENCE) == holds


@pytest.mark.parametrize(
    "shape, holds", [((1, N, N), True), ((1, 1, N, N), True), ((1, 1, 1, N, N), False)]
)
def test_attention_holds_for_masks_of_no_more_axes_than_scores(shape, holds):
    layer, mask = L.MultiHeadAttention(N, N), np.ones(shape, bool)
    assert holds_on_records(layer, SEQUENCE, attention_mask=mask) == holds


def back_in_front():
    return L.Lambda(lambda x: tf.transpose(x, [1, 0, 2]), output_shape=(N, N))


@pytest.mark.parametrize("then", [L.ReLU, back_in_front])
def test_records_that_are_not_in_front_are_refused(then):
    """Numbers of three axes move the axis of records, of which Keras knows nothing."""
    x = keras.Input(VECTOR)
    moved = L.Rescaling(np.ones((N, 1, N)).tolist())(L.Dense(N)(x))
    model = keras.Model(x, then()(moved))
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(tf.square(outputs)))
    x = tf.constant(np.random.default_rng(0).normal(size=(BATCH, N)), tf.float32)
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(UnsupportedModelError, match="axis of records in front"):
        by_engine(loss, model.trainable_variables, (x, x), query, "bookkeeping")
    actual = by_engine(loss, model.trainable_variables, (x, x), query, "auto")
    expected = by_engine(loss, model.trainable_variables, (x, x), query, "loop")
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-7)


def test_constants_meet_all_records():
    for shape in [(), (3,), (1, 3)]:
        assert meets_records(np.zeros(shape), 2)
    for shape in [(4, 3), (1, 1, 3)]:
        assert not meets_records(np.zeros(shape), 2)
