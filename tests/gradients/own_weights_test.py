"""Blocks with weights of their own, against the explicit loop."""

import keras
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    assert_engines_agree,
    assert_layer_is_exact,
    by_engine,
    floatx,
    model_of,
    normal,
    problem,
    traced_sum,
)
from tfdp.gradients import RecordWise, UnsupportedModelError, explain
from tfdp.gradients.dependence import which_reach
from tfdp.gradients.rules import rule

L, K = keras.layers, keras.ops


class Own(L.Layer):
    """A block whose code is a function of its layers, its weights and its input."""

    def __init__(self, code, shapes, initializer="uniform", **layers):
        super().__init__(name="block")
        self.code, self.shapes, self.initializer = code, shapes, initializer
        for name, layer in layers.items():
            setattr(self, name, layer)

    def build(self, shape):
        for name, own_shape in self.shapes.items():
            weight = self.add_weight(shape=own_shape, initializer=self.initializer, name=name)
            setattr(self, name, weight)

    def call(self, inputs):
        return self.code(self, inputs)


def own(code, layers=None, **shapes):
    return lambda: Own(code, shapes, **{k: make() for k, make in (layers or {}).items()})


def dense():
    return L.Dense(4, activation="tanh")


def class_token(block, x):
    token = K.tile(K.expand_dims(block.token, 0), (K.shape(x)[0], 1, 1))
    return block.dense(K.concatenate([token, x], axis=1))


def broadcast_token(block, x):
    token = K.broadcast_to(block.token, (K.shape(x)[0], 1, 4))
    return block.dense(K.concatenate([token, x], axis=1))


def repeated_token(block, x):
    token = K.repeat(block.token[None], K.shape(x)[0], axis=0)
    return block.dense(K.concatenate([token, x], axis=1))


def codes(block, x):
    rows = K.reshape(x, (-1, 4))
    distances = K.sum(rows**2, 1, keepdims=True) + K.sum(block.codes**2, 0)
    nearest = K.argmin(distances - 2 * K.matmul(rows, block.codes), axis=1)
    chosen = K.matmul(K.one_hot(nearest, 5), K.transpose(block.codes))
    return x * K.reshape(chosen, (K.shape(x)[0], -1, 4))


def routed(block, x):
    """Uses once more what a softmax was called on, which Keras attaches to its results."""
    logits = K.zeros((K.shape(x)[0], BATCH, 4))
    weights = block.softmax(logits)
    logits = logits + x
    return K.matmul(x * weights, block.kernel) + logits


def positions(block, x):
    return x + block.embedding(K.arange(x.shape[1])) * block.scale


def several(block, x):
    h = block.dense(x * block.scale)
    k = block.other(K.tanh(h + block.shift), h)
    return K.concatenate([h, k * block.scale], axis=-1)


class Pair(L.Layer):
    """A layer of two inputs."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(4)

    def call(self, first, second):
        return self.dense(first) * second


def rms(block, x):
    return x * K.rsqrt(K.mean(K.square(x), axis=-1, keepdims=True) + 1e-3) * (1 + block.scale)


def table(block, x):
    return x + K.slice(block.table, (0, 0), (x.shape[1], 4))


def cell_in_a_loop(block, x):
    states = block.cell.get_initial_state(K.shape(x)[0])
    for step in range(x.shape[1]):
        h, states = block.cell(x[:, step], states)
    return x + (h * block.scale)[:, None]


def masked_kernel(block, x):
    if not block.dense.built:
        block.dense.build((None, None, 4))
    return K.matmul(x, block.dense.kernel * K.tril(K.ones((4, 4)))) + block.dense.bias


def nested_reader():
    """A block in a block that reads a weight of a layer of both."""
    shared = dense()
    inner = Own(lambda b, x: K.matmul(x, K.transpose(b.dense.kernel)), {}, dense=shared)
    return Own(lambda b, x: x + b.inner(b.dense(x)), {}, dense=shared, inner=inner)


def nested():
    inner = Own(lambda b, x: b.dense(x) * b.gamma, {"gamma": (4,)}, dense=dense())
    return Own(lambda b, x: x + b.gamma * b.inner(x), {"gamma": (4,)}, inner=inner)


ON_BATCH = {
    "before_and_after": own(
        lambda b, x: b.dense(x * b.scale) + b.shift, {"dense": dense}, scale=(4,), shift=()
    ),
    "cell_in_a_loop": own(cell_in_a_loop, {"cell": lambda: L.LSTMCell(4)}, scale=(4,)),
    "class_token": own(class_token, {"dense": dense}, token=(1, 4)),
    "broadcast_token": own(broadcast_token, {"dense": dense}, token=(1, 4)),
    "codes": own(codes, codes=(4, 5)),
    "repeated_token": own(repeated_token, {"dense": dense}, token=(1, 4)),
    "broadcast_product": own(
        lambda b, x: K.matmul(x[:, None] * K.ones((1, 2, 1, 1)), b.kernel)[:, 1] * b.scale,
        kernel=(1, 4, 4),
        scale=(4,),
    ),
    "kernel": own(lambda b, x: K.einsum("btd,de->bte", x, b.kernel), kernel=(4, 4)),
    "kernel_of_a_dense_layer": own(
        lambda b, x: K.matmul(x, b.kernel) + b.bias, kernel=(4, 4), bias=(4,)
    ),
    "layer_gets_both": own(
        lambda b, x: (
            x
            + b.embedding(K.arange(BATCH))
            + b.scale * b.embedding(K.cast(x[..., 0] ** 2, "int32"))
        ),
        {"embedding": lambda: L.Embedding(BATCH + 4, 4)},
        scale=(4,),
    ),
    "layer_on_constants_and_places": own(
        lambda b, x: (
            x + b.embedding(K.arange(BATCH)) + b.scale * b.embedding(K.cast(x[..., 0] > 0, "int32"))
        ),
        {"embedding": lambda: L.Embedding(BATCH, 4)},
        scale=(4,),
    ),
    "layer_scale": own(lambda b, x: x + b.gamma * b.dense(x), {"dense": dense}, gamma=(4,)),
    "given_back": own(
        lambda b, x: (
            b.dense(b.same(x * b.scale)) + b.same(x) * b.shift + b.same(b.scale * x) * b.same(x)
        ),
        {"dense": dense, "same": L.Identity},
        scale=(4,),
        shift=(4,),
    ),
    "routed": own(routed, {"softmax": L.Softmax}, kernel=(4, 4)),
    "kernel_of_a_layer": own(
        lambda b, x: K.matmul(K.tanh(b.dense(x)), K.transpose(b.dense.kernel)), {"dense": dense}
    ),
    "kernel_of_a_layer_and_its_own": own(
        lambda b, x: b.other(b.dense(x)) * b.scale + x @ (b.dense.kernel * b.other.kernel),
        {"dense": dense, "other": dense},
        scale=(4,),
    ),
    "layer_on_constants_too": own(
        lambda b, x: b.dense(x) * b.dense(K.ones((1, BATCH, 4))) * b.scale,
        {"dense": dense},
        scale=(4,),
    ),
    "masked_kernel_of_a_layer": own(masked_kernel, {"dense": dense}),
    "nested": nested,
    "nested_reader": nested_reader,
    "positions": own(positions, {"embedding": lambda: L.Embedding(BATCH, 4)}, scale=()),
    "rms": own(rms, scale=(4,)),
    "several": own(several, {"dense": dense, "other": Pair}, scale=(4,), shift=(4, 1)),
    "softmax_and_layers": own(
        lambda b, x: b.dense(b.same(b.softmax(b.dense(x) * b.scale))) + b.same(b.softmax(x)),
        {"dense": dense, "same": lambda: L.Dropout(0.0), "softmax": L.Softmax},
        scale=(4,),
    ),
    "softmax_with_a_mask": own(
        lambda b, x: x * b.same(b.softmax(x * b.scale, mask=K.tril(K.ones((1, BATCH, 4), "bool")))),
        {"same": lambda: L.Dropout(0.0), "softmax": L.Softmax},
        scale=(4,),
    ),
    "table": own(table, table=(BATCH + 2, 4)),
    "table_at_places": own(
        lambda b, x: x * K.take(b.table, K.argmax(x, axis=-1), axis=0), table=(4, 4)
    ),
    "twice": own(lambda b, x: b.dense(b.dense(x) * b.scale), {"dense": dense}, scale=(4,)),
}


@pytest.mark.parametrize("name", sorted(ON_BATCH))
def test_own_weights_are_exact(name, record_by_record):
    if None in ON_BATCH[name]()(keras.Input((BATCH, 4))).shape[1:]:
        pytest.skip("Keras 3.12 does not know the shape of what it tiles.")
    assert_layer_is_exact(ON_BATCH[name], (BATCH, 4))
    assert not record_by_record


# Every axis is as long as the batch: records that are mixed give other numbers and no error.
RECORD_BY_RECORD = {
    "one_for_each_record": own(lambda b, x: x * b.weights_of_rows, weights_of_rows=(BATCH, 1, 1)),
    "mean": own(lambda b, x: b.scale * (x - K.mean(x, 0, keepdims=True)), scale=(4,)),
    "layer_gets_a_weight": own(
        lambda b, x: b.other(x, b.scale * K.ones_like(b.scale)), {"other": Pair}, scale=(4,)
    ),
}


@pytest.mark.parametrize("name", sorted(RECORD_BY_RECORD))
def test_own_weights_that_could_mix_records_run_record_by_record(name, record_by_record):
    with floatx("float64"):
        loss, variables, examples = problem(
            model_of(RECORD_BY_RECORD[name], (BATCH, 4)), normal(BATCH, 4)
        )
        if name == "one_for_each_record":  # A batch of one has another shape then.
            with pytest.raises(Exception, match="shape|broadcast|axis"):
                by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
        else:
            assert_engines_agree(loss, variables, examples, tolerance=1e-10)
    assert "block" in record_by_record


def test_frozen_weights_are_constants(record_by_record):
    model = model_of(ON_BATCH["before_and_after"], (BATCH, 4))
    block = model.get_layer("block")
    block.scale.trainable = block.shift.trainable = False
    loss, variables, examples = problem(model, normal(BATCH, 4))
    assert len(variables) == 6
    assert_engines_agree(loss, variables, examples)
    assert not record_by_record


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float64"])
def test_precision_of_own_weights(dtype):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        loss, variables, examples = problem(
            model_of(ON_BATCH["layer_scale"], (BATCH, 4)), normal(BATCH, 4)
        )
        tolerance = 0.03 if dtype == "mixed_bfloat16" else 1e-6
        assert_engines_agree(loss, variables, examples, tolerance=tolerance)
    finally:
        keras.config.set_dtype_policy(before)


def test_a_weight_that_the_loss_ignores_is_refused_by_name():
    make = own(lambda b, x: b.dense(x) * b.scale, {"dense": dense}, scale=(4,), unused=(4,))
    loss, variables, examples = problem(model_of(make, (BATCH, 4)), normal(BATCH, 4))
    with pytest.raises(ValueError, match="does not depend on these variables: block/unused"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


def test_a_weight_that_only_an_ignored_output_uses_is_refused_by_name():
    class Two(L.Layer):
        def build(self, shape):
            self.first = self.add_weight(shape=shape[-1:], name="first", initializer="ones")
            self.second = self.add_weight(shape=shape[-1:], name="second", initializer="ones")

        def call(self, inputs):
            return inputs * self.first, inputs * self.second

    x = keras.Input((4,))
    model = keras.Model(x, L.Dense(2)(Two(name="two")(x)[0]))
    loss, variables, examples = problem(model, normal(4))
    with pytest.raises(ValueError, match="does not depend on these variables: two/second"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


class Borrows(L.Layer):
    """Uses a weight of the block that it is in."""

    def call(self, inputs):
        return inputs * vars(self)["lender"][0].scale


@pytest.mark.parametrize("promised", [False, True])
def test_a_layer_that_uses_a_weight_of_its_block_is_refused(promised, monkeypatch):
    if promised:
        monkeypatch.setitem(rule._RULES, Borrows, RecordWise())

    def make():
        borrower = Borrows()
        block = Own(lambda b, x: b.borrower(x) + b.scale, {"scale": (4,)}, borrower=borrower)
        vars(borrower)["lender"] = [block]
        return block

    loss, variables, examples = problem(model_of(make, (BATCH, 4)), normal(BATCH, 4))
    with pytest.raises(UnsupportedModelError, match="outside of the layers that own them"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


@pytest.mark.parametrize("change", ["lengths", "operations"])
@pytest.mark.parametrize("call", [2, 3])
def test_a_block_that_changes_its_mind_is_refused(call, change):
    """The first two calls try it out, the third is on the batch, the fourth gives gradients."""
    calls = []

    def code(block, x):
        calls.append(x)
        is_other = len(calls) == call + 1
        if change == "operations":
            return x * K.exp(block.scale) if is_other else x * block.scale
        rows = K.slice(x, (0, 0, 0), (K.shape(x)[0], 1 if is_other else BATCH, 4))
        return x + rows * block.scale

    loss, variables, examples = problem(
        model_of(own(code, scale=(4,)), (BATCH, 4)), normal(BATCH, 4)
    )
    calls.clear()
    with pytest.raises(UnsupportedModelError, match="does something else each time"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


def test_microbatches_of_own_weights_agree():
    loss, variables, examples = problem(
        model_of(ON_BATCH["layer_scale"], (BATCH, 4)), normal(BATCH, 4)
    )
    ids = tf.constant([0, 0, 1, 1])
    assert_engines_agree(loss, variables, examples, num_microbatches=2, microbatch_ids=ids)


def test_explain_names_own_weights():
    model = model_of(ON_BATCH["layer_scale"], (BATCH, 4))
    assert "block: block, on the batch, with weights of its own: gamma" in explain(model)


def unrolled(block, x):
    """Steps whose state passes from one to the next beside the layers."""
    state, outputs = x[:, 0], []
    for step in range(x.shape[1]):
        state = K.tanh(state * block.scale + block.offset) + block.inner(x[:, step])
        outputs.append(block.outer(state))
    return K.stack(outputs, 1)


UNROLLED = own(unrolled, {"inner": dense, "outer": dense}, scale=(4,), offset=(4,))


def test_steps_of_a_state_are_exact():
    assert_layer_is_exact(UNROLLED, (5, 4))


def test_what_is_traced_grows_with_the_steps_and_no_faster():
    def operations(steps):
        loss, variables, examples = problem(model_of(UNROLLED, (steps, 4)), normal(steps, 4))
        total = traced_sum(loss, variables, tfdp.GaussianSumQuery(0.3, 1.0))
        traced = total.get_concrete_function(examples, tf.ones([BATCH], tf.bool))
        definition = traced.graph.as_graph_def()
        functions = definition.library.function
        return len(definition.node) + sum(len(function.node_def) for function in functions)

    few, more, many = (operations(steps) for steps in (4, 8, 16))
    assert many - more < 2.2 * (more - few)


def test_which_tensors_reach_another():
    with tf.Graph().as_default() as graph:
        a, b, c = (tf.compat.v1.placeholder(tf.float32, [2]) for _ in range(3))
        total = tf.function(lambda x: x + tf.ones([2]), autograph=False)(a * 2.0) + c
        rows = tf.IndexedSlices(b, tf.constant([0, 1]))
    reached = which_reach(graph, [a, b, c, a])
    assert (reached(total), reached(rows)) == ([0, 2, 3], [1])
    assert (reached(c), reached(rows.indices)) == ([2], [])


def test_a_weight_whose_gradient_is_zero_is_trained():
    code = own(lambda b, x: b.dense(x) * (2.0 + K.sign(b.scale)), {"dense": dense}, scale=(4,))
    loss, variables, examples = problem(model_of(code, (BATCH, 4)), normal(BATCH, 4))
    assert_engines_agree(loss, variables, examples)
