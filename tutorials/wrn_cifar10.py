"""CIFAR-10 by a wide residual network, as De et al. 2022 train it (arXiv:2204.13650, section 3).

    python tutorials/wrn_cifar10.py --data cifar10.npz --epsilon 8 --checkpoint wrn.keras

WRN-16-4: groups instead of batches are normalized, filters are standardized, samples are of 4096,
the gradients of 16 views of an image are averaged before they are clipped, and weights are averaged
over steps. The paper reports 79.5 % at epsilon 8, and 56.8 % at epsilon 1. It is meant for a GPU:
a step is the forward and backward pass of 65,536 images.
"""

import argparse
import pathlib

import curves
import keras
import scattering
import tensorflow as tf

import tfdp

# Epsilon -> steps, at the paper's batch size. Noise multipliers follow from the budget.
STEPS = {1.0: 875, 2.0: 1125, 3.0: 1593, 4.0: 1687, 6.0: 1843, 8.0: 2468}


@keras.saving.register_keras_serializable(package="wrn")
class StandardizedConv2D(keras.layers.Conv2D):
    """A convolution whose filters have mean zero and, times a gain, variance 1 / fan-in.

    References:
        Qiao et al. 2019, arXiv:1903.10520.
    """

    def build(self, input_shape):
        super().build(input_shape)
        self.gain = self.add_weight(name="gain", shape=(self.filters,), initializer="ones")

    def convolution_op(self, inputs, kernel):
        mean, variance = tf.nn.moments(kernel, (0, 1, 2), keepdims=True)
        fan_in = kernel.shape[0] * kernel.shape[1] * kernel.shape[2]
        scale = self.gain * tf.math.rsqrt(tf.maximum(variance * fan_in, 1e-4))
        return super().convolution_op(inputs, (kernel - mean) * scale)


def wide_resnet(
    depth: int = 16, width: int = 4, side: int = 32, base: int = 16, classes: int = 10
) -> keras.Model:
    """Returns the network, with logits as outputs.

    Args:
        depth: 6 n + 4, for n blocks in each of three stages.
        width: Stages have base, 2 base and 4 base times so many channels.
        side: Rows and columns of an image of three channels.
        base: Channels of the first convolution, and most groups that are normalized.
        classes: Number of outputs.
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise ValueError(f"depth must be 6 n + 4. Received: {depth=}.")

    def convolved(x, filters, kernel_size=3, strides=1):
        return StandardizedConv2D(filters, kernel_size, strides=strides, padding="same")(x)

    def activated(x):
        x = keras.layers.GroupNormalization(min(16, base))(x)
        return keras.layers.Activation("relu")(x)

    images = keras.Input((side, side, 3))
    x = convolved(images, base)
    for stage in range(3):
        filters = base * width * 2**stage
        for block in range(blocks):
            strides = 2 if stage > 0 and block == 0 else 1
            active = activated(x)
            if block == 0:
                x = convolved(active, filters, 1, strides)
            inner = activated(convolved(active, filters, 3, strides))
            x = keras.layers.Add()([x, convolved(inner, filters)])
    x = keras.layers.GlobalAveragePooling2D()(activated(x))
    return keras.Model(images, keras.layers.Dense(classes)(x))


def cropped_or_flipped(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns an image moved by up to four pixels, mirrored at its border, or as in a mirror."""
    side = image.shape[0]
    moved = tf.pad(image, [[4, 4], [4, 4], [0, 0]], "REFLECT")
    # Two draws by one seed would be related.
    crop, flip = seed, seed + tf.constant([0, 1], seed.dtype)
    moved = tf.image.stateless_random_crop(moved, (side, side, 3), crop)
    return tf.image.stateless_random_flip_left_right(moved, flip)


def main() -> None:
    """Trains, and prints accuracy and epsilon."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="an .npz of images, or of JPEGs; else Keras downloads it")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--steps", type=int, help=f"by default that of the paper: {STEPS}")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2.0)
    parser.add_argument("--l2-norm-clip", type=float, default=1.0)
    parser.add_argument("--average", type=float, default=0.9999, help="of weights over steps")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--base", type=int, default=16)
    parser.add_argument("--physical-batch-size", type=int, help="images in memory at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validation", type=int, metavar="N", help="test on N training images")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="where to save the model")
    parser.add_argument("--ledger", type=pathlib.Path, default=pathlib.Path("wrn.ledger"))
    parser.add_argument("--verbose", type=int, default=2, help="of fit")
    options = parser.parse_args()
    if options.ledger.exists():  # Found now, not after the training.
        parser.error(f"{options.ledger} is the ledger of an earlier run; give another --ledger.")
    steps = options.steps or STEPS.get(options.epsilon)
    if steps is None:
        parser.error(f"Give --steps, or --epsilon of {list(STEPS)}.")

    keras.utils.set_random_seed(options.seed)
    x_train, y_train, x_test, y_test = scattering.load_images(options.data, "cifar10")
    # Constants, the same for any images: statistics of private data would have to be paid for.
    x_train, x_test = ((x.astype("float32") - 128) / 64 for x in (x_train, x_test))
    if options.validation:
        kept = len(x_train) - options.validation
        x_test, y_test = x_train[kept:], y_train[kept:]
        x_train, y_train = x_train[:kept], y_train[:kept]
    noise = tfdp.noise_for_budget(
        options.epsilon,
        options.delta,
        population_size=len(x_train),
        batch_size=options.batch_size,
        steps=steps,
    )
    model = tfdp.keras.make_private(
        wide_resnet(options.depth, options.width, x_train.shape[1], options.base)
    )
    print(f"{model.count_params():,} parameters, {steps} steps of noise multiplier {noise:.3f}")
    query = tfdp.GaussianAverageQuery(
        options.l2_norm_clip, noise_multiplier=noise, denominator=options.batch_size
    )
    model.compile(
        optimizer=tfdp.keras.DPOptimizer(
            keras.optimizers.SGD(options.learning_rate, use_ema=True, ema_momentum=options.average),
            query,
            physical_batch_size=options.physical_batch_size,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        x_train,
        y_train,
        batch_size=options.batch_size,
        steps_per_epoch=steps,
        views=options.views,
        augment=cropped_or_flipped,
        callbacks=[tfdp.keras.PrivacyBudget(options.epsilon, options.delta)],
        verbose=options.verbose,
    )
    # fit has put the averages in place of the weights.
    accuracy = model.evaluate(x_test, y_test, batch_size=500, verbose=0)[1]
    print(f"test accuracy {accuracy:.4f} after {model.ledger.total_count} steps")
    model.ledger.save(options.ledger)
    curves.print_epsilons(options.ledger, options.delta, ("prv", "rdp"))
    if options.checkpoint:
        model.save(options.checkpoint)


if __name__ == "__main__":
    main()
