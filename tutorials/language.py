"""A decoder of Shakespeare: pre-trained on public text, fine-tuned on private text.

    python tutorials/language.py --data tinyshakespeare.txt --seeds 3
    python tutorials/language.py --data tinyshakespeare.txt --seeds 3 --record speaker

The first half of the text is public, and the alphabet is its own. A causal convolution and a block
of attention are trained on it without noise, and then on the second half with noise, in several
ways: all weights or adapters of low rank (LoRA), one clip or one for each layer, Adam or AdamBC,
and all weights without the public half. A record is a sequence of characters, or all sequences of a
speaker. What is printed is the perplexity of a character in text that had no part in training.
"""

import argparse
import pathlib
import sys
import time
from typing import NamedTuple

import fedavg_shakespeare
import keras
import numpy as np

import tfdp


class Way(NamedTuple):
    """How the private half is learned."""

    pretrained: bool = True
    rank: int = 0  # Of the adapters; 0 trains all weights.
    per_layer: bool = False
    corrected: bool = False  # Adam's second moment, for the noise.
    rate: float = 0.002


WAYS = {
    "all weights": Way(),
    "all weights, a clip for each layer": Way(per_layer=True),
    "all weights, AdamBC": Way(corrected=True),
    "LoRA": Way(rank=4, rate=0.01),
    "all weights, nothing public": Way(pretrained=False, rate=0.005),
}


class Text(NamedTuple):
    """Sequences [n, length + 1] of numbers of characters, and whose each private one is."""

    public: np.ndarray
    private: np.ndarray
    speakers: np.ndarray
    test: np.ndarray
    symbols: int


def load_text(options: argparse.Namespace, seed: int) -> Text:
    """Cuts the text into halves, and the second into what is private and what is for the test."""
    path = options.data
    text = (
        fedavg_shakespeare.BUILT_IN
        if path is None
        else pathlib.Path(path).read_text(encoding="utf-8")
    )
    middle = text.index("\n\n", len(text) // 2) + 2
    public, private = text[:middle], text[middle:]
    alphabet = {c: i + 1 for i, c in enumerate(sorted(set(public)))}  # 0: any other character.

    def sequences(part: str) -> np.ndarray:
        codes = np.array([alphabet.get(c, 0) for c in part], "int32")
        starts = range(0, len(codes) - options.length, options.length)
        rows = [codes[i : i + options.length + 1] for i in starts]
        return np.reshape(rows, (-1, options.length + 1)).astype("int32")

    if options.record == "sequence":
        # By places in the text, so that no test sequence stands amid those that are learned.
        rows = sequences(private)
        tenth = len(rows) // 10
        kept, test = rows[: -2 * tenth], rows[-tenth:]
        if options.validation:
            test = rows[-2 * tenth : -tenth]
        else:
            kept = rows[:-tenth]
        whose = np.arange(len(kept))
    else:
        said = fedavg_shakespeare.speeches(private)
        parts = {name: sequences(lines) for name, lines in said.items()}
        names = np.random.default_rng(seed).permutation(sorted(n for n in parts if len(parts[n])))
        tenth = max(1, len(names) // 10)
        tested, trained = names[:tenth], names[tenth:]
        if options.validation:
            tested, trained = trained[:tenth], trained[tenth:]
        test = np.concatenate([parts[n] for n in tested])
        kept = np.concatenate([parts[n] for n in trained])
        whose = np.repeat(np.arange(len(trained)), [len(parts[n]) for n in trained])
    return Text(sequences(public), kept, whose, test, len(alphabet) + 1)


def make_decoder(length: int, symbols: int, width: int) -> keras.Model:
    """Returns a model of the logits of every next character, which sees those before it alone."""
    layers = keras.layers
    characters = keras.Input((length,), dtype="int32")
    x = layers.Embedding(symbols, width)(characters)
    # It tells the places of characters apart, so that attention needs no vectors of positions.
    x = layers.Add()([x, layers.Conv1D(width, 5, padding="causal", activation="relu")(x)])
    seen = layers.LayerNormalization()(x)
    asked = layers.Rescaling(width**-0.5)(layers.Dense(width)(seen))
    keys, values = layers.Dense(width)(seen), layers.Dense(width)(seen)
    attended = layers.Attention()([asked, values, keys], use_causal_mask=True)
    x = layers.Add()([x, layers.Dense(width)(attended)])
    seen = layers.LayerNormalization()(x)
    hidden = layers.Dense(4 * width, activation="relu")(seen)
    x = layers.Add()([x, layers.Dense(width)(hidden)])
    return keras.Model(characters, layers.Dense(symbols)(layers.LayerNormalization()(x)))


def with_adapters(model: keras.Model, rank: int) -> keras.Model:
    """Freezes all weights, and gives every dense layer an adapter."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dense):
            layer.enable_lora(rank)
            layer.bias.trainable = False
        else:
            layer.trainable = False
    return model


def loss() -> keras.losses.Loss:
    """Returns the mean over the characters of a sequence."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def pretrain(text: Text, options: argparse.Namespace, seed: int) -> list[np.ndarray]:
    """Returns the weights of a decoder of the public half."""
    keras.utils.set_random_seed(seed)
    model = make_decoder(options.length, text.symbols, options.width)
    model.compile(keras.optimizers.Adam(0.003), loss())
    x, y = text.public[:, :-1], text.public[:, 1:]
    model.fit(x, y, batch_size=64, epochs=options.public_epochs, verbose=int(sys.stdout.isatty()))
    return model.get_weights()


def fine_tuned(
    text: Text,
    weights: list[np.ndarray],
    way: Way,
    epsilon: float,
    options: argparse.Namespace,
    seed: int,
) -> tuple[keras.Model, float]:
    """Returns the model after its private steps, and the epsilon of its ledger."""
    keras.utils.set_random_seed(seed)
    model = make_decoder(options.length, text.symbols, options.width)
    if way.pretrained:
        model.set_weights(weights)
    if way.rank:
        model = with_adapters(model, way.rank)
    model = tfdp.keras.make_private(model)
    unit = "example" if options.record == "sequence" else "user"
    records = len(np.unique(text.speakers))
    batch = max(1, round(options.share * records))
    noise = 0.0
    if epsilon < np.inf:
        noise = tfdp.noise_for_budget(
            epsilon, options.delta, population_size=records, batch_size=batch, steps=options.steps
        )
    if way.per_layer:
        query = tfdp.query.per_layer(model, options.l2_norm_clip, noise, denominator=batch)
    else:
        query = tfdp.GaussianAverageQuery(
            options.l2_norm_clip, noise_multiplier=noise, denominator=batch
        )
    inner = (tfdp.keras.AdamBC if way.corrected else keras.optimizers.Adam)(
        keras.optimizers.schedules.PolynomialDecay(way.rate, options.steps, way.rate / 10)
    )
    engine = {"engine": "bookkeeping"}
    model.compile(tfdp.keras.DPOptimizer(inner, query, privacy_unit=unit, **engine), loss())
    users = {}
    if unit == "user":
        users = {"privacy_unit": text.speakers, "max_examples_per_user": options.in_a_step}
    x, y = text.private[:, :-1], text.private[:, 1:]
    sizes = {"batch_size": batch, "steps_per_epoch": options.steps}
    model.fit(x, y, verbose=int(sys.stdout.isatty()), **sizes, **users)
    return model, model.ledger.epsilon(options.delta)


def perplexity(model: keras.Model, text: Text) -> float:
    """Returns exp of the mean loss of a character of the test."""
    logits = model.predict(text.test[:, :-1], batch_size=256, verbose=0).astype("float64")
    found = keras.losses.sparse_categorical_crossentropy(text.test[:, 1:], logits, from_logits=True)
    return float(np.exp(np.mean(found)))


def plot(path: pathlib.Path, found: dict[tuple[str, float], list[float]]) -> None:
    """Writes a PNG: perplexity over epsilon, with the range of the seeds; without noise, dotted."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    names = list(dict.fromkeys(name for name, _ in found))
    for color, name in enumerate(names):
        means = {spent: np.mean(v) for (n, spent), v in found.items() if n == name}
        finite = [spent for spent in means if 0 < spent < np.inf]
        low, high = (
            [abs(of(found[name, spent]) - means[spent]) for spent in finite] for of in (min, max)
        )
        style = {"color": f"C{color}", "label": name}
        if finite:
            at = [means[spent] for spent in finite]
            axis.errorbar(finite, at, yerr=[low, high], marker="o", capsize=3, **style)
            del style["label"]
        for spent in means.keys() - set(finite):
            axis.axhline(means[spent], linestyle=":" if spent else "--", **style)
    axis.set(xlabel="epsilon", ylabel="perplexity of a character", xscale="log")
    axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"wrote {path}")


def main() -> None:
    """Trains every way with every epsilon, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="tinyshakespeare.txt; by default a small text that is here")
    parser.add_argument("--record", choices=["sequence", "speaker"], default="sequence")
    parser.add_argument("--epsilon", type=float, nargs="+", help="inf is without noise, clipped")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--share", type=float, help="of the records, in a step")
    parser.add_argument("--in-a-step", type=int, default=8, help="sequences of a speaker, at most")
    parser.add_argument("--l2-norm-clip", type=float, default=0.1)
    parser.add_argument("--rate", type=float, help="of every way, in place of its own")
    parser.add_argument("--delta", type=float, help="by default 1e-5, and 1e-3 for speakers")
    parser.add_argument("--length", type=int, default=32, help="characters of a sequence")
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--public-epochs", type=int, default=3)
    parser.add_argument("--validation", action="store_true", help="test on text of the training")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--plot", type=pathlib.Path, help="*.png: perplexity over epsilon")
    options = parser.parse_args()
    of_speakers = options.record == "speaker"
    options.share = options.share or (0.5 if of_speakers else 0.03)
    options.delta = options.delta or (1e-3 if of_speakers else 1e-5)
    options.epsilon = options.epsilon or [2.0, 8.0, np.inf]
    start, found = time.process_time(), {}
    for seed in range(options.seeds):
        text = load_text(options, seed)
        weights = pretrain(text, options, seed)
        model = make_decoder(options.length, text.symbols, options.width)
        model.set_weights(weights)
        found.setdefault(("the public half alone", 0.0), []).append(perplexity(model, text))
        for epsilon in options.epsilon:
            for name in options.ways:
                way = WAYS[name] if options.rate is None else WAYS[name]._replace(rate=options.rate)
                model, spent = fine_tuned(text, weights, way, epsilon, options, seed)
                score = perplexity(model, text)
                print(f"seed {seed}: {name}, epsilon {spent:.3f}: {score:.2f}", flush=True)
                found.setdefault((name, spent), []).append(score)
    records = len(np.unique(text.speakers))
    print(f"{len(text.private)} sequences, {records} records; {len(text.test)} sequences in test")
    print(f"| training | epsilon (delta {options.delta:g}) | perplexity, and its range |")
    print("|---|---|---|")
    for (name, spent), values in found.items():
        epsilon = "infinite" if spent == np.inf else f"{spent:.3f}"
        spread = f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        print(f"| {name} | {epsilon} | {spread} |")
    print(f"took {time.process_time() - start:.0f} s of processors")
    if options.plot:
        plot(options.plot, found)


if __name__ == "__main__":
    main()
