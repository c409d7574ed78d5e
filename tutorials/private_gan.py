"""A GAN whose discriminator is trained privately: images that anybody may have.

    python tutorials/private_gan.py --data mnist.npz --epsilon 10 --plot gan.png

Two optimizers share a step. The discriminator sees the private images, each beside one of the
generator's, and is trained by a `DPOptimizer`. The generator is trained by Keras' Adam through the
discriminator's weights, which are private already: it costs nothing, and neither do its images.
They are judged as Torkzadehmahani et al. 2020 (DP-CGAN, arXiv:2001.09700) do: a classifier that
learned from them alone is tested on real images.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from mnist_dpsgd import load_data

import tfdp

LATENT, CLASSES = 32, 10
L = keras.layers


def make_generator(pixels: int, width: int) -> keras.Model:
    """Returns a model from (noise [n, LATENT], class [n, CLASSES]) to images in [-1, 1]."""
    noise, label = keras.Input((LATENT,)), keras.Input((CLASSES,))
    x = L.Concatenate()([noise, label])
    for _ in range(2):
        x = L.LeakyReLU(0.2)(L.Dense(width)(x))
    return keras.Model([noise, label], L.Dense(pixels, activation="tanh")(x))


def make_discriminator(pixels: int, width: int) -> keras.Model:
    """Returns a model from (image, class) to a logit, large for real ones."""
    image, label = keras.Input((pixels,)), keras.Input((CLASSES,))
    x = L.LeakyReLU(0.2)(L.Dense(width)(L.Concatenate()([image, label])))
    x = L.LeakyReLU(0.2)(L.Dense(width // 2)(x))
    return keras.Model([image, label], L.Dense(1)(x))


def make_pair(discriminator: keras.Model) -> keras.Model:
    """Returns the discriminator's logits of a real and a made image: one record's."""
    (pixels,), (classes,) = (tensor.shape[1:] for tensor in discriminator.inputs)
    inputs = [keras.Input((size,)) for size in (pixels, classes, pixels, classes)]
    logits = [discriminator(inputs[:2]), discriminator(inputs[2:])]
    return keras.Model(inputs, L.Concatenate()(logits))


def draw_inputs(rows: Any) -> list[tf.Tensor]:
    """Returns noise and classes for the generator, which are public."""
    labels = tf.random.uniform([rows], maxval=CLASSES, dtype=tf.int32)
    return [tf.random.normal([rows, LATENT]), tf.one_hot(labels, CLASSES)]


def make_step(
    generator: keras.Model,
    discriminator: keras.Model,
    private: tfdp.keras.DPOptimizer,
    plain: keras.optimizers.Optimizer,
    batch_size: int,
) -> tuple[Callable[[Any], None], Callable[[], None]]:
    """Returns a private step of the discriminator on a sample, and one of the generator."""
    crossentropy = keras.losses.BinaryCrossentropy(from_logits=True)
    record_loss = tfdp.gradients.ModelLoss(make_pair(discriminator), crossentropy)

    @tf.function(autograph=False, reduce_retracing=True)
    def discriminate(batch: Any) -> None:
        rows = tf.shape(batch.x)[0]
        made_of = draw_inputs(rows)
        inputs = [batch.x, batch.y, generator(made_of), made_of[1]]
        targets = tf.tile([[1.0, 0.0]], [rows, 1])
        private.private_step(
            record_loss, discriminator.trainable_variables, (inputs, targets), mask=batch.mask
        )

    @tf.function(autograph=False)
    def generate() -> None:
        made_of = draw_inputs(batch_size)
        with tf.GradientTape() as tape:
            logits = discriminator([generator(made_of), made_of[1]])
            loss = crossentropy(tf.ones_like(logits), logits)
        variables = generator.trainable_variables
        plain.apply(tape.gradient(loss, [v.value for v in variables]), variables)

    return discriminate, generate


def accuracy_of(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> float:
    """Returns the accuracy on real images of a classifier that learned from (x, y)."""
    classifier = keras.Sequential([L.Dense(128, activation="relu"), L.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile("adam", loss, metrics=["accuracy"])
    classifier.fit(x, y, batch_size=256, epochs=5, verbose=int(sys.stdout.isatty()))
    return float(classifier.evaluate(x_test, y_test, verbose=0)[1])


def main() -> None:
    """Trains, and judges what is made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="mnist.npz; else Keras downloads it")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--steps", type=int, default=10_000, help="of the discriminator")
    parser.add_argument("--steps-between", type=int, default=2, help="of it, for one of the other")
    parser.add_argument("--batch-size", type=int, default=600)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--made", type=int, default=20_000, help="images to be judged by")
    parser.add_argument("--seeds", type=int, default=1, help="of starting values; noise has none")
    parser.add_argument("--plot", help="where to draw ten images of each class")
    arguments = parser.parse_args()

    x, y, x_test, y_test = load_data(arguments.data)
    # To [-1, 1], from the constants of load_data.
    x, x_test = ((part.reshape(len(part), -1) * 80 + 32) / 127.5 - 1 for part in (x, x_test))
    found = [train(x, y, x_test, y_test, arguments, seed) for seed in range(arguments.seeds)]
    for judged in ("real images", "made images"):
        values = [accuracy[judged] for accuracy in found]
        print(
            f"learned from {judged}: test accuracy {np.mean(values):.3f} "
            f"({min(values):.3f} to {max(values):.3f})"
        )


def train(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    arguments: argparse.Namespace,
    seed: int,
) -> dict[str, float]:
    """Trains both, prints what it costs, and returns the accuracies."""
    keras.utils.set_random_seed(seed)
    policy = tfdp.sampling.Poisson().resolve(len(x), arguments.batch_size)
    plan = tfdp.accounting.calibrate(
        target_delta=arguments.delta,
        target_epsilon=arguments.epsilon,
        population_size=len(x),
        batch_size=arguments.batch_size,
        steps=arguments.steps,
    )
    query = tfdp.GaussianAverageQuery(
        arguments.clip, noise_multiplier=plan.noise_multiplier, denominator=arguments.batch_size
    )
    private = tfdp.keras.DPOptimizer(keras.optimizers.Adam(arguments.learning_rate, 0.5), query)
    private.sampling = policy
    plain = keras.optimizers.Adam(arguments.learning_rate, 0.5)
    generator = make_generator(x.shape[1], arguments.width)
    discriminator = make_discriminator(x.shape[1], arguments.width)
    plain.build(generator.trainable_variables)
    private.build(discriminator.trainable_variables)
    discriminate, generate = make_step(
        generator, discriminator, private, plain, arguments.batch_size
    )
    labels, begin = keras.utils.to_categorical(y, CLASSES).astype("float32"), time.process_time()
    samples = tfdp.sampling.batches(x, labels, None, policy, constant_size=False)
    bar = keras.utils.Progbar(arguments.steps, verbose=int(sys.stdout.isatty()))
    for index, batch in enumerate(samples.take(arguments.steps)):
        discriminate(batch)
        if index % arguments.steps_between == 0:
            generate()
        bar.update(index + 1)
    epsilon = private.ledger.epsilon(arguments.delta)
    print(
        f"epsilon {epsilon:.3f} at delta {arguments.delta:g}, noise multiplier "
        f"{plan.noise_multiplier:.3f}, {private.ledger.total_count} steps, "
        f"{time.process_time() - begin:.0f} s of processors"
    )
    classes = np.arange(arguments.made) % CLASSES
    made_of = [tf.random.normal([len(classes), LATENT]), tf.one_hot(classes, CLASSES)]
    made = generator.predict(made_of, batch_size=1000, verbose=0)
    if arguments.plot and not seed:
        plot(made[:100], arguments.plot)
    return {
        "real images": accuracy_of(x, y, x_test, y_test),
        "made images": accuracy_of(made, classes, x_test, y_test),
    }


def plot(images: np.ndarray, path: str) -> None:
    """Draws a hundred images, of a class in each column."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = int(np.sqrt(images.shape[1]))
    rows = images.reshape(10, 10, size, size).transpose(0, 2, 1, 3).reshape(10 * size, 10 * size)
    plt.imsave(path, rows, cmap="gray_r", vmin=-1, vmax=1)


if __name__ == "__main__":
    main()
