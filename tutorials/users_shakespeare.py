"""The next character of Shakespeare, where a user is a speaker, by `fit` with `privacy_unit`.

    python tutorials/users_shakespeare.py --data tinyshakespeare.txt --seeds 3

Speakers are sampled, the mean of the gradients of a speaker's characters is clipped once, and the
ledger's epsilon is that of a speaker. Beside it stands what training on characters as records costs
a speaker, with the same noise: the epsilon of groups of as many characters as one speaker has.
"""

import argparse
import sys
import time

import fedavg_shakespeare
import keras
import numpy as np

import tfdp

CONTEXT = fedavg_shakespeare.CONTEXT


def train(data: dict, width: int, most: int, options: argparse.Namespace, seed: int):
    """Returns a model that was trained on speakers."""
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((CONTEXT * width,)),
        keras.layers.Reshape((CONTEXT, width)),
        keras.layers.Dense(8, use_bias=False),  # A vector for every character.
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(width),
    ]
    model = tfdp.keras.make_private(keras.Sequential(layers))
    cohort = max(1, round(options.share * len(data)))
    query = tfdp.GaussianAverageQuery(
        options.l2_norm_clip, noise_multiplier=options.noise_multiplier, denominator=cohort
    )
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.Adam(options.rate), query, privacy_unit="user"
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = (np.concatenate([part[i] for part in data.values()]) for i in (0, 1))
    model.fit(
        *(x, y),
        privacy_unit=np.repeat(list(data), [len(part[1]) for part in data.values()]),
        max_examples_per_user=most,
        batch_size=cohort,
        steps_per_epoch=options.steps,
        verbose=int(sys.stdout.isatty()),
    )
    return model


def main() -> None:
    """Trains with several bounds on what a speaker gives to a step, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="tinyshakespeare.txt; by default a small text that is here")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.5, help="of the speakers, in a step")
    parser.add_argument("--most", type=int, default=200, help="characters of a speaker")
    parser.add_argument("--in-a-step", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--noise-multiplier", type=float, default=4.0)
    parser.add_argument("--l2-norm-clip", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=0.03)
    parser.add_argument("--delta", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=1, help="of weights, and of who is held out")
    options = parser.parse_args()
    start = time.perf_counter()
    said = fedavg_shakespeare.speakers(options.data)
    alphabet = "".join(sorted(set("".join(said.values()))))
    print(f"{len(said)} speakers, {len(alphabet)} characters")
    for most in options.in_a_step:
        found = []
        for seed in range(options.seeds):
            names = np.random.default_rng(seed).permutation(sorted(said))
            data = {
                str(n): fedavg_shakespeare.examples(said[n], alphabet, options.most) for n in names
            }
            test = names[: max(1, len(names) // 10)]
            kept = {str(n): data[str(n)] for n in names[len(test) :]}
            model = train(kept, len(alphabet), most, options, seed)
            x, y = (np.concatenate([data[str(n)][i] for n in test]) for i in (0, 1))
            found.append(float(np.mean(np.argmax(model.predict(x, verbose=0), axis=1) == y)))
            common = float(np.mean(y == np.bincount(y).argmax()))
        print(
            f"{most:4} characters of a speaker in a step: accuracy {np.mean(found):.3f} "
            f"({min(found):.3f} to {max(found):.3f}), epsilon of a speaker "
            f"{model.ledger.epsilon(options.delta):.2f}; most common character {common:.3f}",
            flush=True,
        )
    group = tfdp.accounting.PRVAccountant(group_size=options.most)
    as_rows = model.ledger.epsilon(options.delta, group)
    print(f"characters as records, read for {options.most} of one speaker: epsilon {as_rows:.3g}")
    print(f"took {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
