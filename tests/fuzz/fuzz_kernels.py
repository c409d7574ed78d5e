"""Calls TensorFlow's operations on numbers that could end a run: run by hand.

    python tests/fuzz/fuzz_kernels.py --seconds 10 --out kernels.json
    python tests/fuzz/fuzz_kernels.py --only Cholesky Svd
    python tests/fuzz/fuzz_kernels.py --gradients --out gradients.json

An operation is first called on ordinary numbers, with arguments drawn at random until it takes
them. Then the numbers that a record could hold are replaced by others: not finite, zero, huge,
negative. Where that raises, crashes, does not come back or gives a result of another size, a record
could do it, or be told by it.
`kernels.py` and `total_kernels.py` in `tfdp/gradients` have what was found. With `--gradients`
nothing is attacked: the results name the operations that TensorFlow's gradients have in them.
"""

import argparse
import inspect
import json
import os
import pathlib
import queue
import random
import subprocess
import sys
import threading
import time
from typing import Any

# A call on so few numbers that takes longer follows them; one that takes far longer does not end.
LONG_S, PATIENCE_S = 1, 30


def main() -> None:
    """Runs the operations in processes of their own, as a crash ends one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", nargs="+", help="names of operations; by default those that tfdp lets through"
    )
    parser.add_argument("--seconds", type=float, default=10, help="for each operation, at most")
    parser.add_argument("--enough", type=int, default=60, help="sets of arguments to be tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradients", action="store_true", help="name operations of gradients")
    parser.add_argument("--checked", action="store_true", help="also inputs that have a check")
    parser.add_argument("--out", type=pathlib.Path, help="file for all results")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, os.fspath(pathlib.Path(__file__).resolve().parents[2]))
    if arguments.worker:
        import tensorflow as tf

        tf.zeros([])
        for line in sys.stdin:
            name, seed = line.split()
            limits = arguments.seconds, arguments.enough
            if arguments.gradients:
                found = gradients_of(name, *limits, int(seed))
            else:
                found = attack(name, *limits, int(seed), arguments.checked)
            print(json.dumps(found), flush=True)
        return
    results = {}
    limits = arguments.seconds, arguments.enough
    options = ["--checked"] * arguments.checked + ["--gradients"] * arguments.gradients
    worker = Worker(*limits, *options, seed=arguments.seed)
    for name in arguments.only or operations():
        results[name] = found = worker.result(name)
        if found["verdict"] != "takes all":
            print(name, found["verdict"], found.get("how", ""), flush=True)
    worker.stop()
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))


class Worker:
    """A process that attacks one operation after the other, and is replaced where it ends.

    Args:
        seconds, enough, seed: As those of `attack`.
        options: Of the command line.
    """

    def __init__(self, seconds: float, enough: int, *options: str, seed: int = 0):
        self._seconds, self._seed = seconds, seed
        self._command = [sys.executable, __file__, "--worker", "--seconds", str(seconds)]
        self._command += ["--enough", str(enough), *options]
        self._start()

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=[self._process, self._lines], daemon=True).start()

    @staticmethod
    def _read(process: Any, lines: "queue.Queue[str]") -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    def result(self, name: str) -> dict[str, Any]:
        """Returns what came of one operation."""
        ends = 0
        while True:
            print(name, self._seed + ends, file=self._process.stdin, flush=True)
            doing, line = "", self._line()
            while line.startswith("doing"):
                doing, line = line[6:].strip(), self._line()
            if line:
                return json.loads(line)
            self.stop()
            self._start()
            if doing:
                return {"verdict": "crashes or hangs", "how": doing}
            ends += 1
            if ends == 6:
                return {"verdict": "not called", "how": "crashes on arguments that do not fit"}

    def _line(self) -> str:
        try:
            return self._lines.get(timeout=self._seconds + PATIENCE_S)
        except queue.Empty:
            return ""

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def operations() -> list[str]:
    """Returns those that tfdp calls on a record's numbers, without those of lists and variables."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    from tfdp.gradients import indices, kernels
    from tfdp.gradients.total_kernels import TOTAL

    handles = {tf.variant.as_datatype_enum, tf.resource.as_datatype_enum}
    known = sorted(TOTAL | set(kernels.KERNELS) | set(indices.CHECKS))
    definitions = [definition for name in known if (definition := op_def_registry.get(name))]
    return [d.name for d in definitions if not handles & {a.type for a in d.input_arg}]


def attack(
    name: str, seconds: float, enough: int, seed: int, checked: bool = False
) -> dict[str, Any]:
    """Returns what an operation does on numbers of any kind.

    Args:
        name: The operation.
        seconds: How long to try, at most.
        enough: So many sets of arguments that it takes are tried with other numbers.
        seed: Of what is drawn.
        checked: Whether inputs that have a check are given such numbers, too.
    """
    from tensorflow.python.framework import kernels

    found = kernels.get_registered_kernels_for_op(name).kernel
    if not any(kernel.device_type in ("CPU", "DEFAULT") for kernel in found):
        return {"verdict": "has no kernel on a CPU"}
    draw = random.Random(f"{name} {seed}")
    end = time.monotonic() + seconds
    tries = taken = 0
    why: dict[str, int] = {}
    while time.monotonic() < end and taken < enough:
        tries += 1
        call = Call(name, draw)
        message = call.outcome(call.inputs)
        shapes = call.shapes
        if message is not None:
            if "GraphDef version" in message:
                return {"verdict": "is no longer there"}
            why[message[:80]] = why.get(message[:80], 0) + 1
            continue
        taken += 1
        for numbers in call.others(checked):
            start = time.monotonic()
            print("doing", call.described(numbers), flush=True)
            message = call.outcome(numbers)
            if message is not None:
                how = f"{call.described(numbers)}: {message[:300]}"
                return {"verdict": "refuses numbers", "how": how}
            if call.shapes != shapes:
                how = f"{call.described(numbers)}: {shapes}, then {call.shapes}"
                return {"verdict": "results of another size", "how": how}
            if time.monotonic() - start > LONG_S:
                # Again, as the machine may have been busy.
                start = time.monotonic()
                call.outcome(numbers)
                if time.monotonic() - start > LONG_S:
                    return {"verdict": "takes long", "how": call.described(numbers)}
        print("doing", flush=True)
    if not taken:
        return {
            "verdict": "not called",
            "how": max(why, key=why.get) if why else "",
            "tries": tries,
        }
    return {"verdict": "takes all", "taken": taken, "tries": tries}


def gradients_of(name: str, seconds: float, enough: int, seed: int) -> dict[str, Any]:
    """Returns which operations TensorFlow's gradients of an operation have in them.

    Args:
        name, seconds, enough, seed: As those of `attack`.
    """
    import tensorflow as tf

    draw = random.Random(f"{name} {seed}")
    end = time.monotonic() + seconds
    kinds: set[str] = set()
    taken = without = 0
    while time.monotonic() < end and taken < enough and without < 20:
        call = Call(name, draw)
        if call.outcome(call.inputs) is not None:
            continue
        with tf.Graph().as_default() as graph:
            inputs = {k: tf.nest.map_structure(tf.constant, v) for k, v in call.inputs.items()}
            results = [t for t in call.outputs(inputs) if _is_smooth(t)]
            sources = [t for t in tf.nest.flatten(inputs) if _is_smooth(t)]
            if not results or not sources:
                without += 1
                continue
            before = len(graph.get_operations())
            try:
                tf.gradients(results, sources, [tf.ones_like(t) for t in results])
            except LookupError:
                return {"verdict": "no gradient", "kinds": []}
            except (TypeError, ValueError, NotImplementedError):  # Not for these arguments.
                without += 1
                continue
            taken += 1
            kinds |= {op.type for op in graph.get_operations()[before:]}
    if not taken:
        return {"verdict": "no gradient" if without else "not called", "kinds": []}
    return {"verdict": "gradient", "kinds": sorted(kinds)}


def _is_smooth(tensor: Any) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


class Call:
    """Arguments of an operation, drawn at random.

    Attributes:
        inputs: NumPy arrays, or lists of them, by their names.
        shapes: Of the results of the last call.
    """

    def __init__(self, name: str, draw: random.Random):
        import tensorflow as tf
        from tensorflow.python.framework import op_def_registry

        from tfdp.gradients.indices import CHECKS
        from tfdp.gradients.kernels import KERNELS
        from tfdp.gradients.total_kernels import TOTAL

        self._call = getattr(tf.raw_ops, name)
        parameters = list(inspect.signature(self._call).parameters)
        self._draw = draw
        definition = op_def_registry.get(name)
        self._attributes = {a.name: self._attribute(a) for a in definition.attr}
        rank = draw.choice([0, 1, 2, 2, 3, 3, 4, 4, 5])
        self._base = [draw.choice([1, 2, 3, 4]) for _ in range(rank)]
        if draw.random() < 0.3:
            self._base = [draw.choice([2, 3, 4])] * rank
        self.shapes: list[Any] = []
        self.inputs: dict[str, Any] = {}
        self._is_number: dict[str, bool] = {}
        for argument in definition.input_arg:
            self.inputs[argument.name] = self._input(argument, definition)
        named = {a.name for a in definition.input_arg}
        given = {a.type_attr for a in definition.input_arg if a.type_attr}
        given |= {a.number_attr for a in definition.input_arg if a.number_attr}
        given |= {a.type_list_attr for a in definition.input_arg if a.type_list_attr}
        check = KERNELS.get(name) or CHECKS.get(name)
        if check and name in TOTAL and self.inputs[definition.input_arg[0].name].dtype.kind == "f":
            check = None  # It has one for integers only.
        arguments = [a.name for a in definition.input_arg]
        places = () if check is None else check.places
        self._checked = [arguments[i] for i in places if i < len(arguments)]
        fitting = _fitting(name, draw)
        if fitting is not None:
            arrays, attributes = fitting
            self.inputs |= {k: v for k, v in arrays.items() if k in named}
            self._attributes |= {k: v for k, v in attributes.items() if k in self._attributes}
        # Some have other names in Python.
        attributes = {a.name for a in definition.attr}
        renamed = [a for a in (*self.inputs, *attributes - given) if a not in parameters]
        others = [p for p in parameters if p not in named | attributes | {"name"}]
        self._names = dict(zip(renamed, others, strict=False))
        self._given = {
            self._names.get(k, k): v for k, v in self._attributes.items() if k not in given | named
        }

    def _attribute(self, attribute: Any) -> Any:
        import tensorflow as tf

        draw = self._draw
        has_default = attribute.HasField("default_value")
        if attribute.type == "type":
            allowed = [tf.as_dtype(t) for t in attribute.allowed_values.list.type]
            usual = [*[tf.float32] * 5, tf.float64, tf.float16, tf.bfloat16]
            usual += [tf.int32, tf.int64, tf.complex64, tf.bool]
            fit = [t for t in usual if not allowed or t in allowed]
            return draw.choice(fit or allowed or usual)
        if has_default and draw.random() < 0.75:
            return _plain(attribute.default_value, attribute.type)
        small = [1, 1, 2, 3, 4]
        if attribute.type == "int":
            return (
                max(attribute.minimum, draw.choice(small))
                if attribute.has_minimum
                else (draw.choice([0, *small]))
            )
        if attribute.type == "list(int)":
            if attribute.name in ("strides", "dilations", "ksize", "ksizes", "rates"):
                size = draw.choice(small)
                return draw.choice([[1, 1, 1, 1], [1, size, size, 1], [1, size, size, size, 1]])
            return [draw.choice([0, *small]) for _ in range(draw.choice(small))]
        if attribute.type == "bool":
            return draw.random() < 0.5
        if attribute.type == "float":
            return draw.choice([0.1, 0.5, 1.0, 2.0])
        if attribute.type == "string":
            values = [v.decode() for v in attribute.allowed_values.list.s]
            equations = ["ij,jk->ik", "bij,bjk->bik", "ij->ji", "i,i->", "abc,cd->abd"]
            return draw.choice(values or equations)
        if attribute.type == "list(type)":
            return [tf.float32] * draw.choice([1, 2])
        if attribute.type == "shape":
            return [draw.choice(small) for _ in range(draw.choice([0, 1, 2, 3]))]
        return _plain(attribute.default_value, attribute.type) if has_default else []

    def _input(self, argument: Any, definition: Any) -> Any:
        import tensorflow as tf

        if argument.type_list_attr:
            types = self._attributes[argument.type_list_attr]
            self._is_number[argument.name] = True
            return [self._array(t, argument.name) for t in types]
        dtype = tf.as_dtype(argument.type or self._attributes[argument.type_attr])
        integers = {tf.int8, tf.int16, tf.int32, tf.int64}
        allowed = {dtype}
        for attribute in definition.attr:
            if argument.type_attr and attribute.name == argument.type_attr:
                allowed = {tf.as_dtype(t) for t in attribute.allowed_values.list.type}
        self._is_number[argument.name] = not (allowed and allowed <= integers)
        if argument.number_attr:
            count = max(1, self._draw.choice([1, 2, 3]))
            return [self._array(dtype, argument.name) for _ in range(count)]
        return self._array(dtype, argument.name)

    def _array(self, dtype: Any, name: str) -> Any:
        import numpy as np

        draw, base = self._draw, self._base
        kind = draw.random()
        if kind < 0.55:
            shape = base
        elif kind < 0.65:
            shape = []
        elif kind < 0.72:
            shape = base[-1:]
        elif kind < 0.77:
            shape = base[:1]
        elif kind < 0.82:
            shape = base[:-1]
        elif kind < 0.86:
            shape = base[-2:]
        elif kind < 0.9:
            shape = [len(base)]
        else:
            shape = [
                draw.choice([1, 2, 3, 4]) for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 4, 5]))
            ]
        if not self._is_number.get(name, True):
            if draw.random() < 0.6:
                shape = draw.choice([[], [], [1], [2], [len(base)], [len(base), 2], [4]])
            size = int(np.prod(shape))
            lowest, highest = draw.choice([(0, 1), (0, 2), (-1, 1), (1, 4), (0, 4)])
            values = np.array([draw.randint(lowest, highest) for _ in range(size)])
            if draw.random() < 0.3:
                values = np.arange(size)
            if draw.random() < 0.15 and size == len(base):
                values = np.array(base)
            if draw.random() < 0.1:
                values, shape = np.array(base or [1]), [len(base) or 1]
            return values.reshape(shape).astype(dtype.as_numpy_dtype)
        size = int(np.prod(shape))
        if dtype.is_bool:
            return np.array([draw.random() < 0.5 for _ in range(size)], bool).reshape(shape)
        if dtype.as_numpy_dtype is object:
            return np.array([b"a"] * size, object).reshape(shape)
        if dtype.is_integer or dtype.is_quantized:
            values = np.array([draw.randint(0, 4) for _ in range(size)])
            return values.reshape(shape).astype(dtype.as_numpy_dtype)
        values = np.array([draw.gauss(0, 1) for _ in range(size)]).reshape(shape)
        if draw.random() < 0.4:
            values = np.abs(values) + 0.1
        if draw.random() < 0.1:
            values = np.sort(values, -1) if values.ndim else values
        return values.astype(dtype.as_numpy_dtype)

    def outputs(self, inputs: dict[str, Any]) -> list[Any]:
        """Returns the tensors that the operation makes of tensors."""
        import tensorflow as tf

        named = {self._names.get(key, key): value for key, value in inputs.items()}
        leaves = tf.nest.flatten(self._call(**named, **self._given))
        return [t for t in leaves if hasattr(t, "dtype")]

    def outcome(self, inputs: dict[str, Any]) -> str | None:
        """Returns what the operation raises, or None where it does not."""
        import tensorflow as tf

        try:
            with tf.device("CPU:0"):
                tensors = self.outputs(
                    {k: tf.nest.map_structure(tf.convert_to_tensor, v) for k, v in inputs.items()}
                )
                self.shapes = [t.shape for t in tensors]
                for tensor in tensors:
                    if tensor.dtype not in (tf.variant, tf.resource):
                        tensor.numpy()
        except (tf.errors.OpError, ValueError, TypeError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def others(self, checked: bool) -> Any:
        """Yields inputs with other numbers."""
        places = [key for key, is_number in self._is_number.items() if is_number]
        places = [key for key in places if checked or key not in self._checked]
        for which in [places, *([p] for p in places if len(places) > 1)]:
            for kind in range(12):
                yield {
                    key: self._changed(value, kind) if key in which else value
                    for key, value in self.inputs.items()
                }

    def _changed(self, value: Any, kind: int) -> Any:
        import numpy as np
        import tensorflow as tf

        if isinstance(value, list):
            return [self._changed(v, kind) for v in value]
        if value.dtype == object:
            texts = [
                b"",
                b"\xff\xfe",
                b"\x00",
                b"a" * 10**3,
                "\u00fc\u4e2d".encode(),
                b"-1e999",
                b"\\",
            ]
            return np.full_like(value, texts[kind % len(texts)])
        if value.dtype == bool:
            return np.full_like(value, kind % 2 == 0)
        if np.issubdtype(value.dtype, np.integer):
            info = np.iinfo(value.dtype)
            numbers = [0, 1, info.max, info.min, -1 if info.min else 7, 5, 100, info.max // 2]
            return np.full_like(value, numbers[kind % len(numbers)])
        dtype = tf.as_dtype(value.dtype)
        if not (dtype.is_floating or dtype.is_complex):
            return value
        numbers = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e30, -1e30, 1e-40, 3e38, 0.5]
        if kind < len(numbers):
            return np.full_like(value, numbers[kind])
        mixed = [self._draw.choice(numbers) for _ in range(value.size)]
        return np.array(mixed).reshape(value.shape).astype(value.dtype)

    def described(self, inputs: dict[str, Any]) -> str:
        """Returns the arguments, in a line."""
        return f"{inputs} {self._given}".replace("\n", "")[:400]


def _fitting(name: str, draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns inputs that fit each other, and attributes, where chance hardly finds such. Some are
    for other versions of an operation.
    """
    import numpy as np

    def normal(*shape: int) -> Any:
        count = int(np.prod(shape))
        return np.array([draw.gauss(0, 1) for _ in range(count)], "float32").reshape(shape)

    n, c, o = (draw.choice([1, 2, 3]) for _ in range(3))
    size, kernel, stride = draw.choice([3, 4, 5]), draw.choice([1, 2, 3]), draw.choice([1, 1, 2])
    padding = draw.choice(["SAME", "VALID"])
    out = -(-size // stride) if padding == "SAME" else (size - kernel) // stride + 1
    axes = 3 if "3D" in name else 2
    outer = {"padding": padding, "data_format": "NDHWC" if axes == 3 else "NHWC"}
    strides = [1, *[stride] * axes, 1]
    image, many = [n, *[size] * axes, c], [n, *[out] * axes]
    if name.startswith(("Conv2D", "Conv3D", "DepthwiseConv2d")) or name == "Conv":
        depthwise = name.startswith("Depthwise")
        filters = [*[kernel] * axes, c, o]
        gradient = [*many, c * o if depthwise else o]
        outer |= {"strides": strides, "dilations": [1] * (axes + 2), "explicit_paddings": []}
        outer |= {"T": _float32(), "use_cudnn_on_gpu": True}
        if name == "Conv":
            outer |= {"data_format": "CHANNELS_LAST", "batch_dims": 1, "groups": 1}
        if "BackpropInput" in name:
            sizes = "input_sizes"
            given = {sizes: np.array(image, "int32"), "filter": normal(*filters)}
            return given | {"out_backprop": normal(*gradient)}, outer
        if "BackpropFilter" in name:
            given = {"filter_sizes": np.array(filters, "int32"), "input": normal(*image)}
            return given | {"out_backprop": normal(*gradient)}, outer
        return {"input": normal(*image), "filter": normal(*filters)}, outer
    if name.startswith("Dilation2D"):
        rates = [1, 1, 1, 1]
        given = {"input": normal(*image), "filter": normal(kernel, kernel, c)}
        if "Backprop" in name:
            given["out_backprop"] = normal(*many, c)
        return given, {"T": _float32(), "strides": strides, "rates": rates, "padding": padding}
    if name.startswith(("AvgPool", "MaxPool")) and "Grad" in name:
        windows = [1, *[kernel] * axes, 1]
        outer |= {"T": _float32(), "TInput": _float32(), "ksize": windows, "strides": strides}
        outer |= {"explicit_paddings": [], "Targmax": _int64(), "include_batch_in_index": False}
        result = normal(*many, c)
        if name.startswith("Avg"):
            return {"orig_input_shape": np.array(image, "int32"), "grad": result}, outer
        if "Argmax" in name:
            places = np.zeros(result.shape, "int64")
            return {"input": normal(*image), "grad": result, "argmax": places}, outer
        gradient = normal(*image) if "GradGrad" in name else result
        given = {"orig_input": normal(*image), "orig_output": result, "grad": gradient}
        if name.endswith("V2"):
            given |= {k: np.array(outer[k], "int32") for k in ("ksize", "strides")}
        return given, outer
    if name.startswith("FusedBatchNorm"):
        outer = {"T": _float32(), "U": _float32(), "data_format": "NHWC"}
        image, rows = normal(n, size, size, c), [normal(c) for _ in range(4)]
        if "Grad" in name:
            given = {"y_backprop": image, "x": -image, "scale": rows[0], "reserve_space_1": rows[1]}
            given |= {"reserve_space_2": abs(rows[2]), "reserve_space_3": rows[3]}
            return given, outer
        given = {"x": image, "scale": rows[0], "offset": rows[1], "mean": rows[2]}
        return given | {"variance": abs(rows[3])}, outer
    if name.startswith(("AvgPool", "MaxPool")):
        windows = {"ksize": [1, *[kernel] * axes, 1], "strides": strides}
        outer |= {"T": _float32(), "explicit_paddings": [], **windows}
        given = {k: np.array(v, "int32") for k, v in windows.items()}
        images = normal(*image)
        return given | {"value" if name.startswith("Avg") else "input": images}, outer
    if name.startswith(("RFFT", "IRFFT")):
        axes = int(name[-2]) if name[-1] == "D" else 1
        given = {"input": normal(n, *[size] * axes), "fft_length": np.full([axes], size, "int32")}
        if name.startswith("I"):
            given["input"] = given["input"].astype("complex64")
        return given, {"Treal": _float32()}
    if name == "LRNGrad":
        same = [normal(*image) for _ in range(3)]
        return dict(zip(["input_grads", "input_image", "output_image"], same, strict=True)), {
            "T": _float32()
        }
    if name.startswith("FakeQuantWithMinMaxVarsPerChannel"):
        low = -abs(normal(c)) - 0.1
        return {"gradients": normal(n, c), "inputs": normal(n, c), "min": low, "max": -low}, {}
    if name.startswith("ImageProjectiveTransform"):
        given = {"images": normal(n, size, size, c), "transforms": normal(n, 8)}
        return given | {"output_shape": np.array([size, size], "int32")}, {"dtype": _float32()}
    if name.startswith("CropAndResize"):
        given = {"boxes": abs(normal(c, 4)), "box_ind": np.zeros([c], "int32")}
        given |= {"crop_size": np.array([2, 2], "int32"), "grads": normal(c, 2, 2, o)}
        given |= {"image": normal(n, size, size, o), "extrapolation_value": normal()}
        return given | {"image_size": np.array([n, size, size, o], "int32")}, {"T": _float32()}
    if name.startswith("ScaleAndTranslate"):
        given = {"images": normal(n, size, size, c), "size": np.array([size] * 2, "int32")}
        given |= {"scale": abs(normal(2)) + 0.5, "translation": normal(2)}
        return given | {
            "grads": normal(n, size, size, c),
            "original_image": normal(n, size, size, c),
        }, {"T": _float32()}
    if name.startswith(("BatchToSpace", "SpaceToBatch")):
        block, none = [stride] * 2, np.zeros([2, 2], "int32")
        images = normal(n * stride**2, 2 * size, 2 * size, c)
        given = {"input": images, "block_shape": np.array(block, "int32")}
        return given | {"crops": none, "paddings": none}, {"T": _float32(), "block_size": 2}
    if name in ("MatrixDiagV2", "MatrixDiagV3"):
        given = {"diagonal": normal(n, size), "k": np.array(0, "int32")}
        given |= {"num_rows": np.array(-1, "int32"), "num_cols": np.array(-1, "int32")}
        return given | {"padding_value": normal()}, {"T": _float32()}
    if name in ("Transpose", "ConjugateTranspose"):
        order = list(range(axes))
        draw.shuffle(order)
        return {"x": normal(*[size] * axes), "perm": np.array(order, "int32")}, {"T": _float32()}
    return None


def _float32() -> Any:
    import tensorflow as tf

    return tf.float32


def _int64() -> Any:
    import tensorflow as tf

    return tf.int64


def _plain(value: Any, kind: str) -> Any:
    import tensorflow as tf

    if kind == "type":
        return tf.as_dtype(value.type)
    if kind == "tensor":
        return value.tensor
    if kind == "shape":
        return tf.TensorShape(value.shape)
    if kind.startswith("list("):
        values = getattr(
            value.list, {"int": "i", "float": "f", "bool": "b", "string": "s"}.get(kind[5:-1], "i")
        )
        return list(values)
    found = getattr(value, {"int": "i", "float": "f", "bool": "b", "string": "s"}[kind])
    return found.decode() if isinstance(found, bytes) else found


if __name__ == "__main__":
    main()
