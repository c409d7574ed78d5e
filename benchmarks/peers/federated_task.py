"""What all engines of simulated rounds do in `benchmarks/federated.py`: data, model, training."""

import numpy as np

CLIENTS, COHORT, EXAMPLES = 10_000, 100, 20
FEATURES, HIDDEN, CLASSES = 64, 128, 10
EPOCHS, BATCH, LEARNING_RATE = 1, 10, 0.1
CLIP, NOISE_MULTIPLIER = 0.5, 1.0


def data():
    """Returns x float32 [CLIENTS, EXAMPLES, FEATURES] and y int32 [CLIENTS, EXAMPLES]."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[CLIENTS, EXAMPLES, FEATURES]).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=[FEATURES, CLASSES]).astype(np.float32), axis=-1)
    return x, y.astype(np.int32)


def keras_model():
    """Returns the multilayer perceptron, compiled for a client."""
    import keras

    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(HIDDEN, activation="relu"),
        keras.layers.Dense(CLASSES),
    ]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(LEARNING_RATE), loss)
    return model
