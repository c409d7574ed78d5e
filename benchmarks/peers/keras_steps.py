"""Keras' own training step and tfdp's private one, each with and without XLA."""

import warnings

import inputs
import keras
import tensorflow as tf
import workloads

import tfdp.keras

LEARNING_RATE = 0.1


def set_threads(threads: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def make_step(variant: str, options: dict):
    """Returns (function that trains one step and waits for it, facts about it)."""
    keras.backend.clear_session()
    size = inputs.sizes(options["workload"], **options["size"])
    model = workloads.build(options["workload"], size)
    facts = {"parameters": model.count_params(), "version": f"tensorflow {tf.__version__}"}
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    if variant.startswith("private"):
        optimizer = private_optimizer(optimizer, size["batch_size"], options)
        model = tfdp.keras.make_private(model)
        facts["engine"] = optimizer.engine
        facts["version"] = f"tfdp {tfdp.__version__}"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, jit_compile=variant.endswith("_xla"))

    data = tf.data.Dataset.from_tensors(inputs.batch(options["workload"], size)).repeat()
    iterator = iter(data)
    steps = {"train": None}

    def step():
        if steps["train"] is None:
            # One step of `fit` builds what every later step uses.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(data, steps_per_epoch=1, verbose=0)
            steps["train"] = model.train_function
        return float(steps["train"](iterator)["loss"])

    return step, facts


def private_optimizer(optimizer, batch_size: int, options: dict):
    """Returns the DPOptimizer of the benchmark: clip 1, noise multiplier 1, secure noise."""
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=batch_size)
    chosen = {k: options[k] for k in ("engine", "physical_batch_size") if options.get(k)}
    return tfdp.keras.DPOptimizer(optimizer, query, **chosen)
