"""The next character of Shakespeare, where a user is a speaker: DP-FedAvg and central DP-SGD.

    python tutorials/fedavg_shakespeare.py --data tinyshakespeare.txt --seeds 3

Every record is all that a speaker says. In federated averaging it is what an epoch of the speaker's
own training added to the weights; in DP-SGD with users as records it is one step along the gradient
of the speaker's mean loss. Query, noise, cohorts and epsilon are the same. A tenth of the speakers
has no part in the training, and accuracy is that on what they say.
"""

import argparse
import collections
import pathlib
import sys
import time

import keras
import numpy as np

import tfdp
from tfdp.federated import LocalSGD, Server, Simulation

BUILT_IN = "\n\n".join(
    f"Speaker {number}:\n{text}"
    for number in range(20)
    for text in (
        "To be, or not to be, that is the question.",
        "All the world is a stage, and all the men and women merely players.",
    )
)
CONTEXT = 6


def speakers(path: str | None) -> dict[str, str]:
    """Returns what every speaker of a file says: "Name:", lines, an empty line."""
    text = BUILT_IN if path is None else pathlib.Path(path).read_text(encoding="utf-8")
    return speeches(text)


def speeches(text: str) -> dict[str, str]:
    """Returns what every speaker of a text says, if it is more than two examples."""
    said: dict[str, list[str]] = collections.defaultdict(list)
    for part in text.split("\n\n"):
        name, _, lines = part.strip().partition(":\n")
        said[name].append(lines)
    joined = {name: "\n".join(parts) for name, parts in said.items()}
    return {name: lines for name, lines in joined.items() if len(lines) > 2 * CONTEXT}


def examples(text: str, alphabet: str, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (contexts, one character after another as ones; next characters), at most so many."""
    codes = np.array([alphabet.find(c) for c in text])[: most + CONTEXT]
    windows = np.lib.stride_tricks.sliding_window_view(codes, CONTEXT + 1)
    eye = np.eye(len(alphabet), dtype="float32")
    return eye[windows[:, :-1]].reshape(len(windows), -1), windows[:, -1]


def train(kind: str, clients: dict, width: int, options: argparse.Namespace, seed: int):
    """Returns (model, epsilon) after all rounds."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(width)]
    model = tfdp.keras.make_private(keras.Sequential([keras.Input((CONTEXT * width,)), *layers]))
    cohort = max(1, round(options.share * len(clients)))
    local, rate, noise = {
        "federated": (LocalSGD(1, 16, 0.3), 1.0, options.noise_multiplier),
        "federated, no noise": (LocalSGD(1, 16, 0.3), 1.0, 0.0),
        "central": (LocalSGD(1, options.most, 1.0), options.central_rate, options.noise_multiplier),
        "central, no noise": (LocalSGD(1, options.most, 1.0), options.central_rate, 0.0),
    }[kind]
    query = tfdp.GaussianAverageQuery(
        options.l2_norm_clip, noise_multiplier=noise, denominator=cohort
    )
    inner = keras.optimizers.SGD(rate)
    model.compile(
        tfdp.keras.DPOptimizer(inner, query, privacy_unit="user"),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    server = Server(model, list(clients), cohort_size=cohort)
    shown = int(sys.stdout.isatty())
    server.train(Simulation(server, clients, local), options.rounds, verbose=shown)
    return model, model.ledger.epsilon(options.delta)


def main() -> None:
    """Trains every way, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="tinyshakespeare.txt; by default a small text that is here")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--share", type=float, default=0.5, help="of the speakers, in a cohort")
    parser.add_argument("--most", type=int, default=200, help="characters of a speaker")
    parser.add_argument("--noise-multiplier", type=float, default=2.0)
    parser.add_argument("--l2-norm-clip", type=float, default=1.0)
    parser.add_argument("--central-rate", type=float, default=2.0)
    parser.add_argument("--delta", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=1, help="of weights, and of who is held out")
    options = parser.parse_args()
    start = time.perf_counter()
    said = speakers(options.data)
    alphabet = "".join(sorted(set("".join(said.values()))))
    print(f"{len(said)} speakers, {len(alphabet)} characters")
    kinds = ("federated", "central", "federated, no noise", "central, no noise")
    for kind in kinds:
        found = []
        for seed in range(options.seeds):
            names = np.random.default_rng(seed).permutation(sorted(said))
            data = {str(n): examples(said[n], alphabet, options.most) for n in names}
            test = names[: max(1, len(names) // 10)]
            clients = {str(n): data[str(n)] for n in names[len(test) :]}
            model, epsilon = train(kind, clients, len(alphabet), options, seed)
            x, y = (np.concatenate([data[str(n)][i] for n in test]) for i in (0, 1))
            right = np.argmax(model.predict(x, verbose=0), axis=1) == y
            found.append(float(right.mean()))
            common = float(np.mean(y == np.bincount(y).argmax()))
        print(
            f"{kind:20} accuracy {np.mean(found):.3f} ({min(found):.3f} to {max(found):.3f}), "
            f"epsilon {epsilon:.2f}; most common character {common:.3f}",
            flush=True,
        )
    print(f"took {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
