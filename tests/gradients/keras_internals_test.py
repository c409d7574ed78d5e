"""What Keras and TensorFlow do not promise to keep: each test fails by name where it has changed.

`make canary` runs this on the oldest and the newest versions that setup.py allows.
"""

import concurrent.futures

import keras
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients import keras_internals as internals

L = keras.layers


@pytest.mark.parametrize("what", internals.SILENT)
def test_what_would_be_missed_in_silence(what):
    assert internals.SILENT[what]()


def compile_a_model():
    model = tfdp.keras.DPSequential([keras.Input((2,)), L.Dense(1)])
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=4)
    model.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query), loss="mse")


def sum_gradients():
    v = tf.Variable(1.0)
    tfdp.clipped_gradient_sum(lambda x: v * x, [v], tf.ones([3]), tfdp.GaussianSumQuery(1.0, 1.0))


@pytest.mark.parametrize("use", [compile_a_model, sum_gradients])
def test_unknown_version_is_refused_by_what_it_lacks(use, monkeypatch):
    use()
    monkeypatch.setitem(internals.SILENT, "finds layers in layers", lambda: False)
    internals.refuse_unknown_versions.cache_clear()
    with pytest.raises(internals.UnknownVersionError, match="no longer finds layers in layers"):
        use()


def test_check_of_versions_takes_no_part_in_what_surrounds_it():
    internals.refuse_unknown_versions.cache_clear()
    with keras.StatelessScope(), tf.Graph().as_default() as graph:
        internals.refuse_unknown_versions()
    assert graph.get_operations() == []
    keras.backend.clear_session()
    internals.refuse_unknown_versions.cache_clear()
    internals.refuse_unknown_versions()
    assert L.ReLU().name == "re_lu"


@pytest.mark.parametrize("jit", [False, True])
def test_graphs_that_xla_compiles(jit):
    found = []

    def note(x):
        found.append(internals.is_compiled_by_xla())
        return x

    @tf.function(jit_compile=jit, autograph=False)
    def call(x):
        x = tf.function(note, autograph=False)(note(x))
        return tf.while_loop(lambda x: x < 1, lambda x: [note(x) + 1], [x])

    note(call(tf.constant(0)))
    assert found == [jit] * 3 + [False]


def test_operations_that_call_python():
    @tf.function
    def call(x):
        return tf.numpy_function(lambda x: x, [x], tf.float32), tf.py_function(
            lambda x: x, [x], tf.float32
        )

    graph = call.get_concrete_function(tf.TensorSpec([], tf.float32)).graph
    kinds = {op.type for op in graph.get_operations()}
    assert len(kinds & set(internals.HOST_OPERATIONS)) == 2


def test_operations_that_are_not_known_are_stateful():
    assert internals.is_stateful("NoSuchOperation")


def test_shapes_in_definitions():
    with tf.Graph().as_default() as graph:
        tf.zeros([2, 3], name="zeros")
    nodes = graph.as_graph_def(add_shapes=True).node
    shapes = [internals.shape_in_definition(node) for node in nodes if node.name == "zeros"]
    assert [[d.size for d in shape.dim] for shape in shapes] == [[2, 3]]


def test_captures_of_a_function():
    variable = tf.Variable(1.0)
    graph = tf.function(lambda: variable + 1.0).get_concrete_function().graph
    assert [outside is variable.handle for outside, _ in graph.captures] == [True]


def test_functional_models():
    inputs = keras.Input((2,))
    outputs = keras.ops.add(L.Dense(2)(inputs), 1.0)
    model = keras.Model(inputs, outputs)
    assert type(model) is internals.FUNCTIONAL
    assert len(model.operations) == 3


def test_operations_of_symbols_and_their_calls():
    inputs = keras.Input((2,))
    output = keras.ops.add(inputs, 1.0)
    model = keras.Model(inputs, output)
    assert internals.class_of_operation(output).__name__ == "Add"
    (operation,) = [o for o in model.operations if type(o).__name__ == "Add"]
    ((tensors, args, kwargs),) = internals.calls_of(operation)
    assert [t is inputs for t in tensors] == [True]
    assert [type(a) for a in tf.nest.flatten((args, kwargs))] == [type(inputs), float]


@pytest.mark.parametrize("of", ["kernel", "table"])
def test_weights_without_lora(of):
    layer = L.Dense(2) if of == "kernel" else L.Embedding(3, 2)
    layer(tf.zeros([1, 3], "float32" if of == "kernel" else "int32"))
    get = internals.kernel_of if of == "kernel" else internals.table_of
    before = get(layer)
    layer.enable_lora(1)
    assert get(layer) is before
    assert [v.path for v in layer.weights].count(before.path) == 1


def test_kernels_of_all_layers_with_a_rule_for_them():
    for layer, shape in (
        (L.Conv2D(2, 1), (1, 2, 2, 1)),
        (L.EinsumDense("ab,bc->ac", 2), (1, 2)),
    ):
        layer(tf.zeros(shape))
        assert internals.kernel_of(layer) is layer.weights[0]


def test_index_of_a_variable_in_an_update():
    found = []

    class Update(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            found.append(internals.index_of(self, variable))

    variables = [keras.Variable(1.0), keras.Variable(2.0)]
    Update(0.1).apply([tf.constant(1.0), tf.constant(1.0)], variables)
    assert found == [0, 1]


def test_quantized_layers():
    layer = L.Dense(2)
    layer(tf.zeros([1, 2]))
    assert not internals.is_quantized(layer)
    layer.quantize("int8")
    assert internals.is_quantized(layer)


@pytest.mark.parametrize("argument", ["mask", "training"])
def test_arguments_that_a_layer_takes(argument):
    class Takes(L.Layer):
        def call(self, inputs, mask=None, training=None):
            return inputs

    assert internals.takes(Takes(), argument)
    assert not internals.takes(L.Dense(1), "mask")
    assert not internals.takes(L.ReLU(), argument)


@pytest.mark.parametrize("cls", [L.SimpleRNN, L.LSTM, L.GRU])
def test_loop_of_recurrent_layers(cls):
    layer, x = cls(2, return_sequences=True, return_state=True), tf.ones([1, 3, 2])
    layer.build(x.shape)
    calls = []

    def loop(sequences, initial_state, mask, training=False):
        calls.append((sequences, initial_state, mask, training))
        states = [state + i for i, state in enumerate(initial_state, 4)]
        return tf.fill([1, 2], 2.0), tf.fill([1, 3, 2], 3.0), states

    with internals.replaced(layer, internals.LOOP, loop):
        outputs, *states = layer(x, mask=tf.constant([[True, False, True]]), training=True)
        layer.return_sequences = False
        last, *_ = layer(x)
    assert [float(tf.reduce_max(t)) for t in (outputs, last)] == [3, 2]
    assert [float(tf.reduce_max(t)) for t in states] == [4, 5][: len(states)]
    (sequences, initial, mask, training), _ = calls
    tf.debugging.assert_equal(sequences, x)
    assert [t.shape for t in initial] == [(1, 2)] * len(states)
    assert mask.shape == (1, 3) and training
    assert internals.LOOP not in vars(layer)


@pytest.mark.parametrize("step", [None, 3])
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_convolution_of_spectrograms(data_format, step):
    layer = L.STFTSpectrogram(
        "stft", frame_length=8, frame_step=step, data_format=data_format, padding="same"
    )
    assert internals.frame_step_of(layer) == (step or 4)
    x = tf.ones([1, 12, 2] if data_format == "channels_last" else [1, 2, 12])
    layer.build(x.shape)
    calls = []

    def convolve(inputs, kernel):
        calls.append((inputs, kernel))
        return tf.fill([1, 2, 5, 4 if step else 3], float(len(calls)))

    with internals.replaced(layer, internals.SPECTROGRAM_CONVOLUTION, convolve):
        outputs = layer(x)
    assert [inputs is not None and inputs.shape == x.shape for inputs, _ in calls] == [True] * 2
    assert [kernel is k for (_, kernel), k in zip(calls, layer.weights, strict=True)] == [True] * 2
    assert {float(value) for value in tf.reshape(outputs, [-1])} == {1.0, 2.0}


def test_cells_of_convolutions():
    for cls in (L.ConvLSTM1D, L.ConvLSTM2D, L.ConvLSTM3D):
        assert type(cls(1, 1).cell) is internals.CONV_LSTM_CELL


def test_masks_come_and_go():
    tensor = tf.ones([1])
    assert internals.mask_of(tensor) is None
    internals.attach_mask(tensor, tf.ones([1], tf.bool))
    assert internals.mask_of(tensor) is not None


def test_values_in_a_scope():
    variable = keras.Variable(1.0)
    with keras.StatelessScope([(variable, tf.constant(2.0))]) as scope:
        assert float(variable.value) == 2.0
        internals.values_in(scope)[id(variable)] = tf.constant(3.0)
        assert float(variable.value) == 3.0


def test_wrapped_methods_are_all_that_keras_puts_into_an_object():
    for layer in (L.Dense(2), L.Lambda(lambda x: x), L.MultiHeadAttention(1, 2)):
        own = {n for n, v in vars(layer).items() if callable(getattr(type(layer), n, None))}
        assert own <= set(internals.WRAPPED_METHODS)


def test_seeds_come_from_the_scope_whoever_holds_the_generator():
    seeds = tf.constant([[5, 6]], tf.int64)
    scopes = [tfdp.gradients.record_scope.RecordScope(tfdp.gradients.record_scope.Seeds(seeds[0]))]
    generator = keras.random.SeedGenerator(1)
    with scopes[0]:
        drawn = [generator.next().numpy().tolist() for _ in range(2)]
        keras.random.normal([1])  # From the generator of all who have none.
    assert drawn[0][0] == drawn[1][0] == 5
    assert drawn[0] != drawn[1]
    assert generator.state.numpy().tolist() == [1, 0]


def test_name_of_the_hook_by_which_fit_builds_a_model():
    # tfdp.keras overrides it; Keras would average a batch over replicas there.
    assert callable(keras.Model._maybe_symbolic_build)


def test_a_model_is_not_compiled_meanwhile():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(jit_compile=True)
    with internals.without_jit_compile(model):
        assert model.jit_compile is False
    assert model.jit_compile is True


@pytest.mark.parametrize("answer", ["y", "n"])
def test_whether_a_file_may_be_overwritten_is_asked_in_keras_words(monkeypatch, answer):
    asked = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)
    assert internals.may_overwrite("a.weights.h5") is (answer == "y")
    assert "a.weights.h5 already exists" in asked[0]


def test_what_keras_calls_on_a_batch_around_a_call():
    layer, called = L.ReLU(), []
    layer.supports_masking = True
    for name in internals.AROUND_CALL:
        method = getattr(layer, name, None)
        if method is None:  # Older versions of Keras have not all of them.
            continue

        def watched(*args, name=name, method=method, **kwargs):
            called.append(name)
            return method(*args, **kwargs)

        vars(layer)[name] = watched
    layer(tf.ones([1, 2]))
    # Python looks for `__call__` in classes only.
    assert {"_assert_input_compatibility", "_set_mask_metadata"} <= set(called)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("call", "layers", "_standardize_inputs", "_functional")),
        *((name, True) for name in ("_run_through_graph", "_nodes_by_depth")),
        *((name, False) for name in ("build", "fit", "train_step", "__init__", "_of_my_own")),
        *((name, False) for name in ("_maybe_symbolic_build", "_symbolic_build")),
    ],
)
def test_what_could_change_a_forward_pass(name, is_one):
    assert internals.is_of_forward_pass(name) == is_one


def test_functional_model_in_a_sequential_one():
    sequential = keras.Sequential([keras.Input((2,)), L.Dense(1)])
    assert type(internals.functional_in(sequential)) is internals.FUNCTIONAL
    assert internals.functional_in(keras.Sequential([L.Dense(1)])) is None
    assert keras.layers.Layer in internals.OF_PLAIN_MODELS


def test_operations_are_told_from_functions():
    assert internals.is_operation("MatMul")
    assert not internals.is_operation("NoSuchOperation")


@tf.function(autograph=False)
def twice(x):
    return 2 * x


@tf.function(autograph=False, jit_compile=True)
def twice_by_xla(x):
    return 2 * x


def kinds_of(function):
    graph = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([2])).graph
    return [op.type for op in graph.get_operations()]


def test_functions_are_inlined_in_this_thread_and_block_only():
    calls = ("PartitionedCall", "StatefulPartitionedCall")

    def is_called(function):
        return bool(set(calls) & set(kinds_of(function)))

    with internals.functions_inlined():
        assert not is_called(twice) and not is_called(lambda x: twice(twice(x)))
        assert is_called(twice_by_xla)
        with internals.functions_inlined(False):
            assert is_called(twice)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            assert thread.submit(is_called, twice).result()
        assert not is_called(twice)
    assert is_called(twice)
    assert vars(type(twice))["_run_functions_eagerly"] is internals._RUNS_CODE


def test_inputs_of_operations_are_changed():
    """In the block, in this graph."""

    def change(kind, inputs):
        return [inputs[1], inputs[0]] if kind == "Sub" else inputs

    @tf.function(autograph=False)
    def run(x):
        graph = tf.compat.v1.get_default_graph()
        with internals.changing_inputs(graph, change):
            with internals.changing_inputs(graph, change):
                same = x - 1.0
            changed, inside = x - 1.0, tf.map_fn(lambda y: y - 1.0, x)
        return same, changed, inside, x - 1.0

    found = [list(map(float, result)) for result in run(tf.constant([3.0, 5.0]))]
    assert found == [[2, 4], [-2, -4], [2, 4], [2, 4]]
