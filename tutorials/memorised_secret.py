"""A secret comes out of a language model, and not out of the private one.

    python tutorials/memorised_secret.py

Two small language models are trained on the same sentences. One sentence, there once, says a secret
number: "my pin is 4921". Afterwards all 10,000 numbers are put after "my pin is", and ranked by
what each model thinks of them. Exposure (Carlini et al. 2019) is log2 of 10,000 minus log2 of the
secret's rank: 13.3 bits where the model says the secret before any other number, about 1.4 where
it knows nothing.
"""

import argparse
import itertools

import keras
import numpy as np

import tfdp
from tfdp.audit import exact_exposure, log_perplexities, random_secrets

ALPHABET = "_ abcdefghijklmnopqrstuvwxyz0123456789"
PREFIX, LENGTH = "my pin is ", 28
WORDS = {
    "who": ("my dog", "my cat", "my car", "my house", "the train", "our garden", "her boat"),
    "is": ("is", "was", "looks", "seems", "stays"),
    "how": ("very old", "quite new", "so green", "too small", "too loud", "so quiet", "very clean"),
}
BATCH_SIZE, DELTA = 100, 1e-4
RECORDS = 1000


def tokens(texts: list[str]) -> np.ndarray:
    """Returns [texts, LENGTH] numbers of characters, filled up with "_"."""
    return np.array([[ALPHABET.index(c) for c in text.ljust(LENGTH, "_")] for text in texts])


def sentences(secret: str, seed: int) -> list[str]:
    """Returns ordinary sentences, some with numbers, and the secret among them once."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(words) for words in WORDS.values()) for _ in range(RECORDS // 2)]
    numbers = random_secrets("0123456789", 4, RECORDS // 2 - 1, seed)
    places = [f"room {''.join(n)} is free" for n in numbers]
    return [*texts, *places, PREFIX + secret]


def make_model() -> keras.Model:
    """Returns a network that predicts each character from the fourteen before it."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(len(ALPHABET), 32),
            layers.ZeroPadding1D((13, 0)),
            layers.Conv1D(128, 14, activation="relu"),
            layers.Dense(len(ALPHABET), activation="softmax"),
        ]
    )


def train(texts: np.ndarray, epsilon: float | None, epochs: int) -> keras.Model:
    """Returns a trained model."""
    keras.utils.set_random_seed(0)
    model = make_model()
    optimizer = keras.optimizers.Adam(2e-3)
    if epsilon is not None:
        model = tfdp.keras.make_private(model)
        optimizer = tfdp.keras.DPOptimizer.for_budget(
            optimizer,
            1.0,
            batch_size=BATCH_SIZE,
            target_epsilon=epsilon,
            target_delta=DELTA,
            population_size=len(texts),
            epochs=epochs,
        )
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    next_one = np.roll(texts, -1, axis=1)
    next_one[:, -1] = ALPHABET.index("_")
    bar = keras.utils.Progbar(epochs, unit_name="epoch")
    for epoch in range(epochs):
        history = model.fit(texts, next_one, batch_size=BATCH_SIZE, verbose=0)
        bar.update(epoch + 1, [("loss", history.history["loss"][-1])])
    return model


def main() -> None:
    """Trains both models and looks for the secret in each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0, help="of the sentences and the secret")
    arguments = parser.parse_args()
    (digits,) = random_secrets("0123456789", 4, 1, arguments.seed + 1)
    secret = "".join(digits)
    data = tokens(sentences(secret, arguments.seed))
    every = ["".join(number) for number in itertools.product("0123456789", repeat=4)]
    asked = tokens([PREFIX + number for number in every])
    ordinary = tokens(sentences(secret, arguments.seed + 7)[: RECORDS // 2])
    for name, epsilon in (
        ("not private", None),
        (f"epsilon {arguments.epsilon:g}", arguments.epsilon),
    ):
        print(f"training: {name}")
        model = train(data, epsilon, arguments.epochs)

        def log_probabilities(texts: np.ndarray, model: keras.Model = model) -> np.ndarray:
            return np.log(np.maximum(model.predict(texts, batch_size=500, verbose=0), 1e-30))

        # Of the number itself: what stands before it is given, and nothing is asked of the rest.
        end = len(PREFIX) + 4
        found = log_perplexities(
            lambda texts, ask=log_probabilities: ask(
                np.pad(texts, ((0, 0), (0, LENGTH - texts.shape[1])))
            )[:, : texts.shape[1]],
            asked[:, :end],
            start=len(PREFIX),
        )
        place = every.index(secret)
        exposed = exact_exposure(found[place], np.delete(found, place))
        loss = log_perplexities(log_probabilities, ordinary).mean() / (LENGTH - 1)
        print(
            f'{name}: "{PREFIX}..." goes on with {every[int(found.argmin())]}, the secret is '
            f"{secret}; its rank is {exposed.rank} of {len(every)}, exposure {exposed.bits:.1f} of "
            f"{exposed.most:.1f} bits; {loss:.2f} nats a character on new ordinary sentences"
        )


if __name__ == "__main__":
    main()
