"""Norms of clipped records, and their sum, where the device rounds the factors of products.

    python benchmarks/rounded_norms.py --model two_layers audio --xla

Meant for a GPU with TensorFloat-32, which is TensorFlow's default there. Each model of `fit.py` is
clipped at a small norm by `engine="auto"`: one record at a time, whose norm must not exceed the
clip, and all together, against explicit gradients of the loop engine without TensorFloat-32. Models
that draw at random have no such sum.

    python benchmarks/rounded_norms.py --sums

shows instead what sums lose of numbers that vanish beside others, in units of u = 2^-24: sums by
TensorFlow's kernels and norms by one of them, one sum by XLA, and `rounding.sums` in graphs with
XLA and without, beside their bounds.
"""

import os

import step_time

RECORDS, CLIP = 4, 0.05
# Of records whose numbers are added up.
SHAPES = [(16384,), (4096, 4), (16384, 1), (3, 3, 64, 64), (2**18, 1), (2**20 + 7,), (2**22, 1)]


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import fit_models

    parser = step_time.parser_of(__doc__)
    parser.add_argument("--model", choices=list(fit_models.MODELS), nargs="+")
    parser.add_argument("--xla", action="store_true", help="also compiled by XLA")
    parser.add_argument("--sums", action="store_true", help="only what sums lose, of numbers")
    arguments = parser.parse_args()
    if arguments.sums:
        return what_sums_lose()
    print("| model | sum, full factors | sum, rounded factors | largest norm / clip |")
    print("| --- | ---: | ---: | ---: |")
    exceeded = []
    for name in arguments.model or fit_models.MODELS:
        for jit_compile in (False, True) if arguments.xla else (False,):
            full, rounded, norm = measured(fit_models.MODELS[name], jit_compile)
            label = f"{name}, XLA" if jit_compile else name
            print(f"| {label} | {full:.1e} | {rounded:.1e} | {norm:.5f} |", flush=True)
            exceeded += [label] if norm > 1 + 1e-6 else []
    if exceeded:
        raise SystemExit(f"Larger than the clip: {', '.join(exceeded)}.")


def what_sums_lose() -> None:
    import numpy as np
    import tensorflow as tf

    from tfdp.numerics import rounding

    def in_graph(function, **options):
        return tf.function(function, autograph=False, **options)

    print("| numbers | kernels: sum | norm | bound | XLA: one sum | parts: XLA | not | bound |")
    print("| --- " + "| ---: " * 7 + "|")
    for shape in SHAPES:
        size, axes = int(np.prod(shape)), list(range(1, 1 + len(shape)))

        def in_parts(x, axes=axes):
            return rounding.sums(x, axes)[0]

        def norm(x, axes=axes):
            return tf.square(tf.math.reduce_euclidean_norm(tf.sqrt(x), axes))

        def plain(x, axes=axes):
            return tf.reduce_sum(x, axes)

        functions = [in_graph(plain), in_graph(norm), in_graph(plain, jit_compile=True)]
        functions += [in_graph(in_parts, jit_compile=True), in_graph(in_parts)]
        bound_of_parts = in_graph(lambda x, axes=axes: tf.constant(rounding.sums(x, axes)[1]))
        worst = np.zeros(len(functions))
        for large in (1, 4, 16, 32, 64, 256, 1024):
            for places in (slice(large), slice(None, None, size // large)):
                vector = np.full(size, 0.99 * 2.0**-24, np.float32)
                vector[places] = 1
                exact = np.sum(vector, dtype=np.float64)
                records = tf.constant(np.tile(vector, RECORDS).reshape(RECORDS, *shape))
                lost = [(1 - np.min(f(records)) / exact) * 2.0**24 for f in functions]
                worst = np.maximum(worst, lost)
        numbers = " x ".join(map(str, shape))
        kernels, norms, xla, parts_xla, parts = (f"{x:.0f}" for x in worst)
        bound, of_parts = rounding.sum_error(size, tf.float32), float(bound_of_parts(records))
        print(
            f"| {numbers} | {kernels} | {norms} | {bound:.0f} | {xla} | {parts_xla} | {parts} "
            f"| {of_parts:.0f} |",
            flush=True,
        )


def measured(model, jit_compile: bool) -> tuple[float, float, float]:
    """Returns relative distances of sums to the loop's, and the largest norm of a record.

    The distances are those without and with rounded factors.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdp
    from tfdp.gradients import ModelLoss

    keras.utils.set_random_seed(1)
    built = model.build()
    variables = built.trainable_variables
    loss = ModelLoss(built, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rows = model.rows(np.random.default_rng(0), RECORDS)
    examples = tf.nest.map_structure(tf.constant, rows)
    query = tfdp.GaussianSumQuery(CLIP, 0.0)
    round_factors = tf.config.experimental.enable_tensor_float_32_execution

    def clipped_sum(engine, compiled):
        def clip(examples):
            found = tfdp.clipped_gradient_sum(loss, variables, examples, query, engine=engine)
            return found.sample_state

        return tf.function(clip, jit_compile=compiled, autograph=False)

    def vector(state):
        return np.concatenate([np.ravel(tf.convert_to_tensor(s)) for s in state]).astype(np.float64)

    round_factors(False)
    expected = vector(clipped_sum("loop", False)(examples))
    sums = [vector(clipped_sum("auto", jit_compile)(examples))]
    round_factors(True)
    function = clipped_sum("auto", jit_compile)
    sums.append(vector(function(examples)))
    records = [
        tf.nest.map_structure(lambda part, i=i: part[i : i + 1], examples) for i in range(RECORDS)
    ]
    norm = max(float(np.linalg.norm(vector(function(record)))) for record in records)
    full, rounded = (np.linalg.norm(s - expected) / np.linalg.norm(expected) for s in sums)
    return float(full), float(rounded), norm / CLIP


if __name__ == "__main__":
    main()
