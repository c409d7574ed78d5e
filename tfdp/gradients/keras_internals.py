"""Everything that tfdp uses and that Keras and TensorFlow do not promise to keep, in one place, but
for TensorFlow's vectorization, which is in `vectorizing`.

`tests/gradients/keras_internals_test.py` has a test of each, which fails by name where a new
version has changed it. Where a change would go unnoticed, and records could then be mixed in
silence, `refuse_unknown_versions` looks for it before the first private step.
"""

import concurrent.futures
import contextlib
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.compile_utils import CompileLoss
from keras.src.utils import io_utils
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import ops as gradient_registry
from tensorflow.python.ops import control_flow_util

# Operations that call Python on the host.
HOST_OPERATIONS = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
# What Keras attaches to a tensor for layers and losses that come later: the mask of padded steps,
# and the logits from which a softmax or sigmoid was computed.
MASK = "_keras_mask"
LOGITS = "_keras_logits"
ATTACHED = (MASK, LOGITS)
# Keras' losses take the logits of a tensor that has none attached from the operation that made it.
OF_LOGITS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.nn.sigmoid}
# What a class has whose body is empty, or that is exported or decorated as Keras' classes are.
OF_EMPTY_CLASSES = frozenset(
    {
        *("__annotations__", "__doc__", "__firstlineno__", "__module__", "__static_attributes__"),
        *("_api_export_path", "_api_export_symbol_id"),
    }
)
# Methods that Keras wraps. The wrapped method is an attribute of the object, in every layer.
WRAPPED_METHODS = ("build", "quantize")


class UnknownVersionError(ImportError):
    """This version of Keras or TensorFlow does not do what the gradient engines rely on."""


# Operations and graphs.


def is_operation(kind: str) -> bool:
    """Returns whether TensorFlow has a kind of operation of this name. What a graph calls may also
    be a function of the kind that TensorFlow 1 had, whose name then stands for a kind.
    """
    return op_def_registry.get(kind) is not None


def is_stateful(kind: str) -> bool:
    """Returns whether TensorFlow says of a kind of operation that it does more than compute its
    outputs; True of kinds that it does not know.

    TensorFlow shows this of an operation in a graph, but not of one in a function's definition.
    """
    definition = op_def_registry.get(kind)
    return definition is None or definition.is_stateful


def forgets_length(op: tf.Operation) -> bool:
    """Returns whether an operation was made by `tf.compat.v1.placeholder_with_default`, by which
    the book-keeping engine makes the number of records unknown.
    """
    return op.type == "PlaceholderWithDefault"


def is_compiled_by_xla() -> bool:
    """Returns whether operations are added to a graph that XLA compiles."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


# The attribute that says with which operations one must share a device. A copy of the operation in
# another graph must do without it.
COLOCATION = "_class"


# The attribute of an operation that has a gradient of its own (`tf.custom_gradient`).
CUSTOM_GRADIENT = "_gradient_op_type"


def gradient_in_tensorflow(op: tf.Operation) -> str | None:
    """Returns the name of the function that is an operation's own gradient, if it is TensorFlow's;
    None of any other.
    """
    function = gradient_registry.get_gradient_function(op)
    for name in ("tape_grad_fn", "grad_fn"):
        function = inspect.getclosurevars(function).nonlocals.get(name)
        if not inspect.isfunction(function):
            return None
    name = f"{function.__module__}.{function.__qualname__}"
    return name if function.__code__.co_filename.startswith(_TENSORFLOW) else None


def results_of_own_gradient(op: tf.Operation) -> int | None:
    """Returns how many of the inputs of an operation with a gradient of its own are the results of
    a function under `tf.custom_gradient`: they come before its arguments. None if the operation's
    gradient is no such function's.
    """
    function = gradient_registry.get_gradient_function(op)
    if not inspect.isfunction(function):
        return None
    function = inspect.getclosurevars(function).nonlocals.get("tape_grad_fn")
    if function is None:
        return None
    return inspect.getclosurevars(function).nonlocals["flat_result_len"]


_TENSORFLOW = os.path.join(os.path.dirname(os.path.dirname(op_def_registry.__file__)), "")


def function_in(graph: Any, name: str) -> Any:
    """Returns the graph of a function that operations of a graph call by this name: there is no
    public way from an operation to the functions that it calls.
    """
    return graph._get_function(name.encode()).graph


def knows_function(graph: Any, name: str) -> bool:
    """Returns whether `function_in` finds the graph of a function."""
    return hasattr(graph._get_function(name.encode()), "graph")


def shape_in_definition(node: Any) -> Any:
    """Returns the shape of the first result of a node in `as_graph_def(add_shapes=True)`; None
    where it is not recorded.
    """
    (shape,) = node.attr["_output_shapes"].list.shape or [None]
    return shape


# Layers.

# Everything that is made here has a name, because Keras numbers what has none, and the layers of
# whoever imports this would begin at another number.
_probe = keras.Input((1,), name="tfdp_probe")
# The class that keras.Model(inputs, outputs) makes.
_functional = keras.Model(
    _probe, keras.layers.Identity(name="tfdp_identity")(_probe), name="tfdp_model"
)
_sequential = keras.Sequential(name="tfdp_sequential")
FUNCTIONAL = type(_functional)
# What these models and sequential ones are made of.
OF_PLAIN_MODELS = frozenset({*FUNCTIONAL.__mro__, *keras.Sequential.__mro__})
# What Keras calls on a batch, around the `call` of a layer.
AROUND_CALL = (
    "__call__",
    "_assert_input_compatibility",
    "_resolve_and_populate_arg",
    "_set_mask_metadata",
)
_PUBLIC_IN_FORWARD_PASS = (
    *("__call__", "__getattribute__", "call", "compute_mask"),
    *("inputs", "layers", "operations", "outputs"),
)


def is_of_forward_pass(name: str) -> bool:
    """Returns whether something of this name in a class derived from functional or sequential
    models could change what their forward pass does. Of what Keras keeps private, that is all that
    is not for training.
    """
    if name in _PUBLIC_IN_FORWARD_PASS:
        return True
    for_training = hasattr(keras.Model, name) and not hasattr(keras.Layer, name)
    private = name.startswith("_") and not name.startswith("__")
    of_keras = hasattr(_functional, name) or hasattr(_sequential, name)
    return private and of_keras and not for_training


def functional_in(model: Any) -> Any:
    """Returns the functional model that a sequential one runs, or None."""
    return getattr(model, "_functional", None)


def layers_in(layer: keras.Layer, *, deep: bool = False) -> list[Any]:
    """Returns the layers in a layer, attributes of classes of one's own included.

    Args:
        layer: Any layer or model.
        deep: Whether with those in them, and itself.
    """
    return list(layer._flatten_layers(include_self=deep, recursive=deep))


def draws_when_called(layer: keras.Layer) -> bool:
    """Returns whether a layer, or one in it, seems to draw when it is called: it has a seed
    generator, and is no recurrent cell, which always has one, without dropout.
    """

    def draws(one):
        shares = [getattr(one, name, 1) for name in ("dropout", "recurrent_dropout")]
        return bool(getattr(one, "_seed_generators", ())) and any(shares)

    return any(map(draws, layers_in(layer, deep=True)))


def loops_in(layer: keras.Layer) -> list[Any]:
    """Returns the recurrent layers in a layer, itself included, that have a loop."""
    layers = layers_in(layer, deep=True)
    return [one for one in layers if isinstance(one, keras.layers.RNN) and not one.unroll]


def class_of_operation(output: Any) -> type:
    """Returns the class of the operation that a symbolic output of `keras.ops` comes from."""
    return type(output._keras_history.operation)


def calls_of(operation: Any) -> list[tuple[list[Any], Any, Any]]:
    """Returns (tensors, args, kwargs) of every symbolic call of an operation."""
    nodes = operation._inbound_nodes
    return [(n.input_tensors, n.arguments.args, n.arguments.kwargs) for n in nodes]


# The attributes of `kernel_of` and `table_of`.
KERNEL = "_kernel"
TABLE = "_embeddings"


def kernel_of(layer: Any) -> Any:
    """Returns the kernel of a dense or convolutional layer itself: with LoRA, `layer.kernel` is its
    sum with a product.
    """
    return getattr(layer, KERNEL)


def table_of(layer: Any) -> Any:
    """Returns the table of an embedding itself; with LoRA, as for `kernel_of`."""
    return getattr(layer, TABLE)


def index_of(optimizer: keras.optimizers.Optimizer, variable: Any) -> int:
    """Returns which of the variables that an optimizer was built with this one is. Keras hands
    `update_step` TensorFlow's own variables.
    """
    return optimizer._get_variable_index(variable)


def is_recomputed(layer: Any) -> bool:
    """Returns whether a layer was made in a `keras.RematScope`, and is called again in the backward
    pass.
    """
    return getattr(layer, "_remat_mode", None) is not None


def is_quantized(layer: Any) -> bool:
    """Returns whether a layer computes with quantized weights."""
    return getattr(layer, "quantization_mode", None) is not None


def takes(layer: Any, argument: str) -> bool:
    """Returns whether a layer's `call` takes "mask", or "training"."""
    return getattr(layer, f"_call_has_{argument}_arg")


# The class of the cells of ConvLSTM1D, 2D and 3D. One that is made here would start devices.
CONV_LSTM_CELL: Any = sys.modules[keras.layers.ConvLSTM1D.__base__.__module__].ConvLSTMCell


# Where recurrent layers have their loop: a method of (sequences, initial state, mask, training)
# that returns (last output, outputs, states).
LOOP = "inner_loop"

# Where an STFTSpectrogram convolves: a method of (inputs, kernel) that returns
# [n, channels, frequencies, frames].
SPECTROGRAM_CONVOLUTION = "_apply_conv"


def frame_step_of(layer: Any) -> int:
    """Returns how far frames of an STFTSpectrogram are apart; `layer.frame_step` may be None."""
    return layer._frame_step


class BuiltBeforeTraining:
    """Mixin of `keras.Model` for models that know all shapes before a training step is traced.

    `fit` and `train_on_batch` call a hook that finds out shapes from a batch. Under a strategy
    Keras would first average that batch over the replicas, labels and masks too. There is no
    public way around it.
    """

    def _is_ready_to_train(self) -> bool:
        """Returns whether the shapes are known."""
        raise NotImplementedError

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        if not self._is_ready_to_train():
            super()._maybe_symbolic_build(iterator, data_batch)  # type: ignore[misc]


# Tensors.


def mask_of(tensor: Any) -> Any:
    """Returns the mask of padded steps that Keras attached to a tensor, or None."""
    return getattr(tensor, MASK, None)


def attach_mask(tensor: Any, mask: Any) -> None:
    """Attaches a mask of padded steps."""
    setattr(tensor, MASK, mask)


# Scopes.


def values_in(scope: keras.StatelessScope) -> dict[int, Any]:
    """Returns what variables are read as in a scope, by their identity; it may be changed."""
    return scope.state_mapping


# Losses that layers add.


def owner_of_loss(layer: keras.Layer, loss: tf.Tensor) -> Any:
    """Returns which of a layer and those in it has added a loss."""
    return next(one for one in layer._flatten_layers() if id(loss) in one._loss_ids)


def forget_losses(layer: keras.Layer) -> None:
    """Makes a layer, and those in it, forget which losses they have added, as Keras does before
    each call. Keras knows them by their identity, which another tensor may have later.
    """
    layer._clear_losses()


# Losses of outputs.


def function_of_loss(loss: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the function whose values a loss of Keras reduces, and its options; (None, {}) of a
    loss with code of its own.
    """
    of_functions, kind = keras.losses.MeanSquaredError, type(loss)
    if (
        not isinstance(loss, keras.losses.Loss)
        or kind.call is not of_functions.call
        or kind.__call__ is not of_functions.__call__
        or "call" in vars(loss)
    ):
        return None, {}
    return loss.fn, loss._fn_kwargs


def loss_of_output(model: keras.Model, y: Any, y_pred: Any) -> Any:
    """Returns the loss that a compiled model computes from tensors of targets and predictions; None
    where it has several, weighs it, or has none.
    """
    compiled = model._compile_loss
    if type(compiled) is not CompileLoss:
        return None
    if not compiled.built:
        compiled.build(y, y_pred)
    losses = compiled._flat_losses
    if len(losses) != 1 or losses[0].path != () or losses[0].loss_weights is not None:
        return None
    return losses[0].loss if compiled.dtype == losses[0].loss.dtype else None


# What could change in silence.


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an object another value for an attribute in the block, unseen by Keras, which tracks
    those that are assigned.
    """
    attributes = vars(owner)
    before = attributes.get(name, attributes)
    attributes[name] = value
    try:
        yield
    finally:
        if before is attributes:
            del attributes[name]
        else:
            attributes[name] = before


@contextlib.contextmanager
def changing_inputs(
    graph: Any, change: Callable[[str, list[tf.Tensor]], list[tf.Tensor]]
) -> Iterator[None]:
    """Lets operations that are made in a graph in the block take other inputs.

    Args:
        graph: A graph.
        change: From a kind of operation and its inputs to those that it shall take.
    """
    create = graph._create_op_internal

    def changed(kind, inputs, *args, **kwargs):
        return create(kind, change(kind, list(inputs)), *args, **kwargs)

    graph._create_op_internal = changed  # A graph does not show its attributes: no `replaced`.
    try:
        yield
    finally:
        if inspect.ismethod(create):
            del graph._create_op_internal
        else:  # That of a block around.
            graph._create_op_internal = create


class _Inlining(threading.local):
    """Whether this thread takes the code of functions in the place of calls of them."""

    on = False


_inlining, _inlining_blocks, _inlining_lock = _Inlining(), 0, threading.Lock()


@contextlib.contextmanager
def functions_inlined(inlined: bool = True) -> Iterator[None]:
    """Lets the code of what `tf.function` decorates run in the current graph in the block, in this
    thread, as if it were not decorated, but for what XLA is to compile. For other threads, and
    afterwards, TensorFlow is as it was.

    Args:
        inlined: False for calls in such a block that are calls nevertheless.
    """
    global _inlining_blocks
    kind = type(_A_FUNCTION)

    def runs_code(function):
        inlines = _inlining.on and not function._jit_compile
        return inlines or _RUNS_CODE.fget(function)

    before = _inlining.on
    with _inlining_lock:
        _inlining_blocks += 1
        kind._run_functions_eagerly = property(runs_code)
    _inlining.on = inlined
    try:
        yield
    finally:
        _inlining.on = before
        with _inlining_lock:
            _inlining_blocks -= 1
            if not _inlining_blocks:
                kind._run_functions_eagerly = _RUNS_CODE


_A_FUNCTION = tf.function(lambda: None)
_RUNS_CODE = type(_A_FUNCTION)._run_functions_eagerly


def without_jit_compile(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Makes `model.jit_compile` False in the block. To set it would ask whether layers support what
    it was before.
    """
    return replaced(model, "_jit_compile", False)


def _calls_what_an_object_has(method: str) -> bool:
    layer, called = keras.layers.ReLU(), []
    masked = keras.layers.Masking()(tf.ones([1, 1, 1]))
    own = getattr(layer, method)

    def watched(*args: Any, **kwargs: Any) -> Any:
        called.append(method)
        return own(*args, **kwargs)

    with replaced(layer, method, watched):
        layer(masked)
    return bool(called)


def _finds_layers() -> bool:
    inner = keras.layers.Identity()
    outer = keras.layers.TimeDistributed(inner)
    return any(layer is inner for layer in layers_in(outer, deep=True)) and any(
        layer is inner for layer in layers_in(outer)
    )


def _attaches_masks() -> bool:
    return mask_of(keras.layers.Masking()(tf.ones([1, 1, 1]))) is not None


def _attaches_logits() -> bool:
    return hasattr(keras.ops.softmax(tf.ones([1, 2])), LOGITS) or hasattr(
        keras.activations.softmax(tf.ones([1, 2])), LOGITS
    )


def _marks_recomputed_layers() -> bool:
    with keras.RematScope("full"):
        layer = keras.layers.Identity()
    return is_recomputed(layer) and not is_recomputed(keras.layers.Identity())


def _says_what_is_quantized() -> bool:
    return hasattr(keras.layers.Dense(1), "quantization_mode")


def _scope_sees_reads_and_assignments() -> bool:
    seen = []

    class Watching(keras.StatelessScope):
        def get_current_value(self, variable):
            seen.append("read")
            return super().get_current_value(variable)

        def add_update(self, update):
            seen.append("assigned")

    variable = keras.Variable(1.0)
    with Watching():
        variable.assign(variable + 1.0)
    return set(seen) == {"read", "assigned"} and float(variable.numpy()) == 1.0


def _knows_losses_of_layers() -> bool:
    layer = keras.layers.ActivityRegularization(1.0)
    with keras.StatelessScope(collect_losses=True) as scope:
        layer(tf.ones([1, 1]))
        known = len(scope.losses) == 1 and owner_of_loss(layer, scope.losses[0]) is layer
        known = known and len(layer.losses) == 1
        seen: list[Any] = []
        with (
            replaced(layer, "add_loss", seen.append),
            replaced(layer, "activity_regularizer", lambda output: tf.zeros([])),
        ):
            layer(tf.ones([1, 1]))
        return known and len(seen) == 1 and not layer.losses


def _marks_unknown_lengths() -> bool:
    with tf.Graph().as_default():
        tensor = tf.compat.v1.placeholder_with_default(tf.ones([2]), [None])
    return forgets_length(tensor.op) and tensor.shape[0] is None


def _knows_stateful_operations() -> bool:
    return is_stateful("AssignVariableOp") and is_stateful("EagerPyFunc") and not is_stateful("Add")


def _shows_own_gradients() -> bool:
    @tf.custom_gradient
    def function(first: tf.Tensor, second: tf.Tensor) -> Any:
        return first * second, lambda at: (at * second, at * first)

    with tf.Graph().as_default() as graph:
        function(tf.constant(1.0), tf.constant(2.0))
    own = [op for op in graph.get_operations() if CUSTOM_GRADIENT in op.node_def.attr]
    return len(own) == 1 and results_of_own_gradient(own[0]) == 1 and len(own[0].inputs) == 3


# Files.


def may_overwrite(filepath: Any) -> bool:
    """Asks whoever is at the terminal, in Keras' words, whether a file may be overwritten."""
    return bool(io_utils.ask_to_proceed_with_overwrite(str(filepath)))


SILENT: dict[str, Callable[[], bool]] = {
    "calls the `call` of an object": lambda: _calls_what_an_object_has("call"),
    "calls the `compute_mask` of an object": lambda: _calls_what_an_object_has("compute_mask"),
    "finds layers in layers": _finds_layers,
    "attaches masks to tensors": _attaches_masks,
    "attaches logits to tensors": _attaches_logits,
    "marks layers of a RematScope": _marks_recomputed_layers,
    "says which layers are quantized": _says_what_is_quantized,
    "shows a StatelessScope what is read and assigned": _scope_sees_reads_and_assignments,
    "knows whose a loss is, and calls the `add_loss` of an object": _knows_losses_of_layers,
    "keeps placeholders of unknown length": _marks_unknown_lengths,
    "knows which operations are stateful": _knows_stateful_operations,
    "shows which functions have a gradient of their own": _shows_own_gradients,
}


def _missing() -> list[str]:
    """Returns what of `SILENT` this Keras and TensorFlow do not do."""
    return [what for what, holds in SILENT.items() if not holds()]


@functools.cache
def refuse_unknown_versions() -> None:
    """Looks, once, whether this Keras and TensorFlow still do what would be missed in silence.

    It computes, and whoever imports tfdp may still want to configure TensorFlow's devices, so this
    is called by what takes private steps and not at import. It computes in a thread of its own,
    where none of the caller's scopes (graphs, replicas, `keras.StatelessScope`) is in force.

    Raises:
        UnknownVersionError: names what they do not.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        missing = thread.submit(_missing).result()
    if missing:
        raise UnknownVersionError(
            f"Keras {keras.__version__} on TensorFlow {tf.__version__} no longer "
            f"{'; no longer '.join(missing)}. Without that, records could be mixed unseen. Install "
            "versions that this release of tfdp allows (setup.py has them)."
        )
