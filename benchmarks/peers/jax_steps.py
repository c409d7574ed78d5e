"""Steps in JAX: the same Keras models on Keras' JAX backend, ordinary and by JAX Privacy."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import inputs  # noqa: E402
import jax  # noqa: E402
import jax_privacy  # noqa: E402
import keras  # noqa: E402
import optax  # noqa: E402
import workloads  # noqa: E402
from jax_privacy import noise_addition  # noqa: E402

LEARNING_RATE = 0.1
# Examples whose gradients are taken at once, for each workload the fastest of 1, 4, 16, 64 and all
# (`--jax-microbatch-size`, one core): XLA's reduction over a large batch of gradients is very slow.
# Elsewhere all are taken at once.
MICROBATCH_SIZES = {"mlp": 1, "cnn": 4, "transformer": 1, "lstm": 1, "embedding": 1}


def set_threads(threads: int) -> None:
    """XLA takes as many threads as the process has cores, which the worker has limited."""


def make_step(variant: str, options: dict):
    """Returns (function that trains one step and waits for it, facts about it)."""
    size = inputs.sizes(options["workload"], **options["size"])
    model = workloads.build(options["workload"], size)
    x, y = map(jax.numpy.asarray, inputs.batch(options["workload"], size))
    params = [v.value for v in model.trainable_variables]
    # Seeds of dropout, of which these models have none.
    others = [v.value for v in model.non_trainable_variables]
    optimizer = optax.sgd(LEARNING_RATE)

    def loss(params, x, y):
        logits, _ = model.stateless_call(params, others, x, training=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    facts = {"parameters": sum(p.size for p in params)}
    versions = [f"jax {jax.__version__}", f"keras {keras.__version__}"]
    if variant == "jax":
        noise_state = ()

        def gradient(params, noise_state, x, y):
            value, grads = jax.value_and_grad(loss)(params, x, y)
            return value, grads, noise_state
    else:
        on_cpu = jax.default_backend() == "cpu"
        usual = MICROBATCH_SIZES.get(options["workload"]) if on_cpu else None
        chosen = options.get("jax_microbatch_size") or usual
        chosen = min(chosen or size["batch_size"], size["batch_size"])
        facts["microbatch_size"] = chosen
        versions.insert(0, f"jax_privacy {jax_privacy.__version__}")
        clipped = jax_privacy.clipped_grad(
            loss,
            l2_clip_norm=1.0,
            normalize_by=size["batch_size"],
            batch_argnums=(1, 2),
            return_values=True,
            microbatch_size=None if chosen == size["batch_size"] else chosen,
        )
        stddev = 1.0 * clipped.sensitivity()
        privatizer = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=jax.random.key(0))
        noise_state = privatizer.init(params)

        def gradient(params, noise_state, x, y):
            grads, aux = clipped(params, x, y)
            grads, noise_state = privatizer.update(grads, noise_state)
            return aux.values.mean(), grads, noise_state

    def train(params, optimizer_state, noise_state, x, y):
        value, grads, noise_state = gradient(params, noise_state, x, y)
        updates, optimizer_state = optimizer.update(grads, optimizer_state)
        return value, (optax.apply_updates(params, updates), optimizer_state, noise_state)

    compiled = jax.jit(train, donate_argnums=(0, 1, 2))
    state = {"args": (params, optimizer.init(params), noise_state)}

    def step():
        value, state["args"] = compiled(*state["args"], x, y)
        jax.block_until_ready(state["args"])
        return float(value)

    return step, {**facts, "version": ", ".join(versions)}
