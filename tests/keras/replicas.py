"""What 1, 2 and 3 replicas do, in a process of its own: devices are configured once a process.

python replicas.py OUTPUT    writes {number of replicas: {case: outcome}}, pickled
"""

import contextlib
import dataclasses
import os
import pickle
import sys
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
import toy
from toy import L

import tfdp
from tfdp.keras import DPOptimizer, PrivacyBudgetExceededError
from tfdp.noise import chacha
from tfdp.sampling import FullBatch, Poisson, Shuffled

X, Y = toy.data(7)
SAMPLE_WEIGHT = np.linspace(0.5, 2.0, 7, dtype="float32")
CLIP = 0.3
STDDEV = 3.0
# Rows that the replicas get where a case cuts the sample itself: unequal, or none at all.
SHARDS = {1: [7], 2: [7, 0], 3: [2, 0, 5]}
AVERAGE = tfdp.GaussianAverageQuery(CLIP, noise_multiplier=0.0, denominator=7)
EXACT = tfdp.GaussianAverageQuery(CLIP, noise_multiplier=0.0, denominator=7, precision="exact")


def scope(strategy):
    default = strategy is tf.distribute.get_strategy()
    return contextlib.nullcontext() if default else strategy.scope()


ADAPTIVE = tfdp.NormalizedQuery(
    tfdp.QuantileAdaptiveClipSumQuery(CLIP, 0.0, 0.5, 0.2, 0.0, 7.0), 7.0
)


def copies(variables):
    """Returns, for every variable, its value on every replica of this process."""
    return [
        [component.numpy() for component in getattr(v.value, "values", [v.value])]
        for v in variables
    ]


def outcome(function):
    """Returns (name of the error, its text), or None where there is none."""
    try:
        function()
    except (ValueError, TypeError, RuntimeError) as error:
        return type(error).__name__, str(error)
    return None


def model(strategy, inner=None, dropout=0.0, engine="auto", **kwargs):
    with scope(strategy):
        keras.utils.set_random_seed(3)
        plain = keras.Sequential(
            [
                keras.Input((4,)),
                L.Dense(5, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1)),
                *([L.Dropout(dropout)] if dropout else []),
                L.Dense(2),
            ]
        )
        inner = keras.optimizers.Adam(0.05, global_clipnorm=0.05) if inner is None else inner()
        optimizer = DPOptimizer(inner, AVERAGE, engine=engine)
        # The kernel of this metric does not take all labels.
        of_labels = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
        return toy.private(plain, optimizer, metrics=["accuracy", of_labels], **kwargs)


def fit(strategy):
    def make():
        return model(strategy, engine="vectorized")

    private = make()
    history = private.fit(
        X, Y, sample_weight=SAMPLE_WEIGHT, sampling=FullBatch(), epochs=2, verbose=0
    ).history
    result = {
        "weights": copies(private.trainable_variables),
        "state": copies(private.optimizer.variables),
        "history": history,
        "events": toy.events(private),
    }

    # Another model goes on where this one stopped.
    private.save_weights("w.weights.h5")
    again = make()
    with scope(strategy):
        again.optimizer.build(again.trainable_variables)
    again.load_weights("w.weights.h5")
    result["loaded_weights"] = copies(again.trainable_variables)
    result["loaded_events"] = toy.events(again)

    # Samples of one expected example: one in three is empty, most shards are.
    def poisson(epochs):
        private.fit(X, Y, sample_weight=SAMPLE_WEIGHT, batch_size=1, epochs=epochs, verbose=0)

    poisson(epochs=2)
    result["poisson_weights"] = copies(private.trainable_variables)
    result["poisson_events"] = toy.events(private)[2:]

    private.optimizer.charging.add_guard(refuse_after(18))
    result["error"] = outcome(lambda: poisson(epochs=1))
    result["events_after_error"] = toy.events(private)
    return result


def refuse_after(count):
    def guard(ledger, event):
        if ledger.total_count == count:
            raise PrivacyBudgetExceededError("The guard says no.")

    return guard


def fit_once(strategy):
    with scope(strategy):
        private = toy.private(toy.linear())
    private.fit(X, Y, sampling=FullBatch(), verbose=0)
    return {"weights": copies(private.trainable_variables), "events": toy.events(private)}


def fit_samples(strategy):
    samples = [np.array(sample, np.int64) for sample in ([], [3], [0, 1], [], range(7), [5])]
    with scope(strategy):
        private = toy.private(toy.linear())
    with mock.patch.object(Poisson, "draw", lambda *_: iter(samples)):
        private.fit(X, Y, batch_size=1, steps_per_epoch=len(samples), verbose=0)
    return {"weights": copies(private.trainable_variables), "events": toy.events(private)}


def fit_users(strategy):
    # Cut by rows, the user with three of them would be on several replicas.
    given = {"privacy_unit": [0, 1, 2, 1, 0, 1, 3], "max_examples_per_user": 3}
    with scope(strategy):
        private = toy.private(toy.linear(), toy.dp(privacy_unit="user"))
    full = FullBatch()
    history = private.fit(X, Y, sampling=full, user_gradient="sum", verbose=0, **given).history
    weights = copies(private.trainable_variables)
    private.fit(X, Y, batch_size=1, epochs=2, verbose=0, **given)
    return {
        "weights": weights,
        "history": history,
        "poisson_weights": copies(private.trainable_variables),
        "events": toy.events(private),
    }


def fit_views(strategy):
    # All views of an example are equal: it counts as one clipped gradient only if it is clipped
    # as a whole.
    with scope(strategy):
        private = toy.private(toy.linear())
    private.fit(
        *(X, Y),
        sampling=FullBatch(),
        views=3,
        augment=lambda x, seed: tf.reverse(x, [0]),
        verbose=0,
    )
    return {"weights": copies(private.trainable_variables), "events": toy.events(private)}


def fit_with_private_metrics(strategy):
    with scope(strategy):
        metrics = [
            tfdp.keras.PrivateLoss(noise_multiplier=1e-9, l2_norm_clip=0.6),
            tfdp.keras.PrivateClassCounts(noise_multiplier=1e-9, num_classes=2),
        ]
        private = toy.private(toy.linear(), toy.dp(engine="vectorized", private_metrics=metrics))
    history = private.fit(X, Y, sampling=FullBatch(), epochs=2, verbose=0).history
    return {"history": history, "events": toy.events(private)}


def fit_with_averaged_weights(strategy):
    private = model(strategy, inner=lambda: keras.optimizers.SGD(0.5, use_ema=True))
    private.fit(X, Y, sampling=FullBatch(), epochs=3, verbose=0)
    return {
        "weights": copies(private.trainable_variables),
        "state": copies(private.optimizer.variables),
    }


def fit_attention(strategy):
    """A frozen embedding and attention, and matrices of rank 2 beside both."""
    with scope(strategy):
        keras.utils.set_random_seed(3)
        tokens = keras.Input((5,), dtype="int32")
        embedding = L.Embedding(6, 4, mask_zero=True)
        attention = L.MultiHeadAttention(2, 3)
        embedded = embedding(tokens)
        attended = L.LayerNormalization()(embedded + attention(embedded, embedded))
        private = keras.Model(tokens, L.Dense(2)(L.GlobalAveragePooling1D()(attended)))
        for layer in (embedding, attention.query_dense, attention.value_dense):
            layer.enable_lora(2)
        attention.key_dense.trainable = False
        rng = np.random.default_rng(3)
        for variable in private.trainable_variables:
            if "lora" in variable.name:
                # Without a seed of its own, Keras 3.12 goes on where the last draw was.
                variable.assign(rng.normal(size=variable.shape))
        private = toy.private(private, toy.dp(keras.optimizers.Adam(0.01)))
    tokens = np.random.default_rng(0).integers(0, 6, [7, 5]).astype("int32")
    private.fit(tokens, Y, sampling=FullBatch(), epochs=2, verbose=0)
    return {
        "weights": copies(private.trainable_variables),
        "frozen": copies(private.non_trainable_variables),
        "events": toy.events(private),
    }


def two_optimizers(strategy):
    """A private step of a discriminator and a plain one of a generator, together."""
    noise = np.random.default_rng(0).normal(size=(7, 3)).astype("float32")
    sizes = SHARDS[strategy.num_replicas_in_sync]
    with scope(strategy):
        keras.utils.set_random_seed(3)
        generator = keras.Sequential([keras.Input((3,)), L.Dense(4, activation="tanh")])
        discriminator = keras.Sequential([keras.Input((4,)), L.Dense(1)])
        private, plain = toy.dp(), keras.optimizers.SGD(0.5)
        private.build(discriminator.trainable_variables)
        plain.build(generator.trainable_variables)

    def loss(example):
        real, made = (discriminator(part) for part in example)
        return tf.reduce_sum(tf.nn.softplus(-real) + tf.nn.softplus(made))

    def of_replica(examples):
        private.private_step(loss, discriminator.trainable_variables, examples)
        with tf.GradientTape() as tape:
            logits = discriminator(generator(noise))
            made_loss = tf.reduce_mean(tf.nn.softplus(-logits))
        variables = generator.trainable_variables
        gradients = tape.gradient(made_loss, [v.value for v in variables])
        # The gradients of the replicas are added.
        plain.apply([g / strategy.num_replicas_in_sync for g in gradients], variables)

    def shard(context):
        start = sum(sizes[: context.replica_id_in_sync_group])
        rows = slice(start, start + sizes[context.replica_id_in_sync_group])
        return tf.constant(X[rows]), generator(noise[rows])

    run = tf.function(lambda examples: strategy.run(of_replica, (examples,)), autograph=False)
    for _ in range(3):
        run(strategy.experimental_distribute_values_from_function(shard))
    return {
        "discriminator": copies(discriminator.trainable_variables),
        "generator": copies(generator.trainable_variables),
        "events": [entry.event for entry in private.ledger for _ in range(entry.count)],
    }


def fit_dataset(strategy):
    # Batches of 3, 3 and 1 examples; nobody knows beforehand how many there will be.
    private = model(strategy, inner=lambda: keras.optimizers.SGD(0.5))
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(3).filter(lambda x, y: True)
    sampling = Shuffled(batch_size=3, population_size=7)
    history = private.fit(batches, sampling=sampling, epochs=2, verbose=0).history
    return {
        "weights": copies(private.trainable_variables),
        "history": history,
        "events": toy.events(private),
    }


def custom_step(strategy, in_graph=True, jit_compile=False, query=AVERAGE):
    """Takes a step on shards of SHARDS; returns what every replica has then."""
    with scope(strategy):
        variable = keras.Variable(np.zeros((4, 2), "float32"))
        # As many microbatches as examples: each is a record of its own, wherever it is.
        optimizer = DPOptimizer(keras.optimizers.SGD(1.0), query, num_microbatches=7)
        optimizer.set_batch_size(7)
        optimizer.build([variable])

    def loss(example):
        x, y = example
        error = tf.reduce_mean((x @ variable.value - tf.one_hot(y, 2)) ** 2)
        return error, error

    def step(examples):
        gradients, losses = optimizer.private_gradients(
            loss,
            [variable],
            examples,
            has_aux=True,
            data_independent_loss=lambda: 0.01 * tf.reduce_sum(variable.value),
            jit_compile=jit_compile,
        )
        optimizer.apply(gradients, [variable])
        return gradients, losses

    sizes = SHARDS[strategy.num_replicas_in_sync]

    def shard(context):
        start = sum(sizes[: context.replica_id_in_sync_group])
        rows = slice(start, start + sizes[context.replica_id_in_sync_group])
        return tf.constant(X[rows]), tf.constant(Y[rows])

    def run(examples):
        return strategy.run(step, args=(examples,))

    run = tf.function(run, autograph=False) if in_graph else run
    examples = strategy.experimental_distribute_values_from_function(shard)
    (gradients,), losses = run(examples)
    optimizer.charging.add_guard(refuse_after(1))
    return {
        "weights": copies([variable]),
        "gradients": [g.numpy() for g in strategy.experimental_local_results(gradients)],
        "state": copies([v for v in optimizer.variables if v.name == "query_state"]),
        "losses": [t.numpy() for t in strategy.experimental_local_results(losses)],
        "error_in_eager": None if in_graph else outcome(lambda: run(examples)),
        "events": [entry.event.event for entry in optimizer.ledger for _ in range(entry.count)],
    }


def custom(strategy):
    return {
        "graph": custom_step(strategy),
        "eager": custom_step(strategy, in_graph=False),
        "xla": custom_step(strategy, jit_compile=True),
        "exact": custom_step(strategy, query=EXACT),
        "adaptive": custom_step(strategy, query=ADAPTIVE),
    }


@dataclasses.dataclass(frozen=True)
class Wandering(tfdp.GaussianSumQuery):
    """Its noise goes up or down at random from step to step."""

    def initial_global_state(self):
        return super().initial_global_state()._replace(stddev=tf.constant(STDDEV))

    def get_noised_result(self, sample_state, global_state):
        result, state, event = super().get_noised_result(sample_state, global_state)
        factor = tf.exp(0.1 * tfdp.noise.system_random_source().normal([], tf.float32))
        return result, state._replace(stddev=state.stddev * factor), event


def noise(strategy, shape=(100, 100)):
    """Three steps of noise alone: the gradients are zero."""
    with scope(strategy):
        variable = keras.Variable(np.zeros(shape, "float32"))
        optimizer = DPOptimizer(keras.optimizers.SGD(1.0), Wandering(1.0, STDDEV))
        optimizer.build([variable])

    def of_replica():
        gradients = optimizer.private_gradients(
            lambda example: 0.0 * tf.reduce_sum(variable.value) * tf.reduce_sum(example),
            [variable],
            tf.ones([2, 1]),
        )
        optimizer.apply(gradients, [variable])

    @tf.function(autograph=False)
    def step():
        strategy.run(of_replica)

    values, states, next_stddevs = [], [], []
    for _ in range(3):
        step()
        values.append(copies([variable])[0])
        states.append(copies(optimizer.variables))
        next_stddevs.append(optimizer.next_event().event.noise_stddev)
    stddevs = [e.event.event.noise_stddev for e in optimizer.ledger for _ in range(e.count)]
    return {"values": values, "states": states, "stddevs": stddevs, "next_stddevs": next_stddevs}


def noise_of_a_gpu(strategy):
    """As `noise`, of so many numbers that a GPU would expand a key to their words."""
    with (
        mock.patch.object(chacha, "on_gpu", return_value=True),
        mock.patch.object(chacha, "keystream", wraps=chacha.keystream) as keystream,
    ):
        return {**noise(strategy, (200, 200)), "keystreams": keystream.call_count}


def refusals(strategy):
    if strategy.num_replicas_in_sync != 2:
        return {}

    def matrix():
        return keras.Variable(np.zeros((4, 2), "float32"))

    def optimizer(query=AVERAGE, **kwargs):
        return DPOptimizer(keras.optimizers.SGD(1.0), query, **kwargs)

    def step(make_optimizer, build=True, run=strategy.run, own_scope=strategy.scope, **arguments):
        with own_scope():
            variable, taken = matrix(), make_optimizer()
        with strategy.scope():
            if build:
                taken.build([variable])

        def of_replica():
            taken.private_gradients(
                lambda x: tf.reduce_sum(x @ variable.value), [variable], tf.constant(X), **arguments
            )

        return outcome(lambda: run(of_replica))

    def undivided(x, is_eager=False, examples=lambda x: x, **arguments):
        with strategy.scope():
            variable, taken = matrix(), optimizer()
            taken.build([variable])

        def of_replica(x):
            taken.private_step(
                lambda x: tf.reduce_sum(tf.nest.flatten(x)[0] @ variable.value),
                [variable],
                examples(x),
                **arguments,
            )

        def run(x):
            strategy.run(of_replica, args=(x,))

        run = run if is_eager else tf.function(run, autograph=False)
        return outcome(lambda: run(x))

    def in_scope(function):
        with strategy.scope():
            function()

    with strategy.scope():
        plain = toy.dense()
    private, made_outside = model(strategy), toy.private(plain)
    several = model(strategy, steps_per_execution=2)
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(3)
    dataset = strategy.experimental_distribute_dataset(dataset)
    return {
        "microbatches": step(lambda: optimizer(num_microbatches=3)),
        "several examples": step(optimizer, examples_per_record=2),
        "not a sum": step(lambda: optimizer(tfdp.NoPrivacyAverageQuery())),
        "not built": step(optimizer, build=False),
        "made outside": step(optimizer, own_scope=contextlib.nullcontext),
        "undivided": undivided(tf.constant(X)),
        "undivided, eager": undivided(tf.constant(X), is_eager=True),
        "undivided array, eager": undivided(X, is_eager=True),
        "undivided in part": undivided(tf.constant(X), examples=lambda x: (x, 2 * x)),
        "undivided in part, eager": undivided(X, True, lambda x: (x, tf.cast(x, tf.float32))),
        "cross-replica": step(optimizer, run=in_scope),
        "train_on_batch": outcome(lambda: private.train_on_batch(X, Y)),
        "made private outside": outcome(lambda: made_outside.fit(X, Y, batch_size=2, verbose=0)),
        "steps_per_execution": outcome(lambda: several.fit(X, Y, batch_size=2, verbose=0)),
        "distributed": outcome(lambda: private.fit(dataset, sampling=FullBatch(7), verbose=0)),
        "count": private.ledger.total_count,
    }


EVERYWHERE = (
    fit_once,
    fit_samples,
    fit_users,
    fit_views,
    two_optimizers,
    custom,
    noise,
    noise_of_a_gpu,
)
# Two replicas add up otherwise than three; a whole fit is one of many such steps.
OF_FIT = (fit, fit_with_private_metrics, fit_with_averaged_weights, fit_attention, fit_dataset)
# By number of replicas.
CASES = {
    1: (*EVERYWHERE, *OF_FIT),
    2: (*EVERYWHERE, refusals),
    3: (*EVERYWHERE, *OF_FIT),
}


def main(output):
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    strategies = (
        tf.distribute.get_strategy(),
        tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
        # Two strategies with collectives cannot live in one process.
        tf.distribute.MirroredStrategy(
            ["CPU:0", "CPU:1", "CPU:2"], tf.distribute.ReductionToOneDevice()
        ),
    )
    results = {
        count: {case.__name__: case(strategy) for case in CASES[count]}
        for count, strategy in enumerate(strategies, 1)
    }
    results["mirrored 1"] = {"fit_once": fit_once(tf.distribute.MirroredStrategy(["CPU:1"]))}
    with open(output, "wb") as file:
        pickle.dump(results, file)


if __name__ == "__main__":
    main(sys.argv[1])
