"""The loss of a private model over its noise-batch ratio, and what `tfdp plan` says about it.

    python tutorials/scaling_laws.py --data tinyshakespeare.txt --plot scaling_laws.png

Three networks of very different size predict the next character from the eight before. First each
is trained with noise of many sizes and samples of 256: a curve of the loss over the noise-batch
ratio, with the better of two learning rates at every point. Then `tfdp.accounting.plan` says what
ratio a budget and a sample size lead to. Each of these runs is trained too, within its epsilon. By
the scaling law of McKenna et al. 2025 (arXiv:2501.18914), which VaultGemma (arXiv:2510.15001) was
planned by, the loss follows from size of the model, steps and ratio: whatever epsilon and sample
size made the ratio, the loss lies on the curve.
"""

import argparse
import pathlib
import sys
import time

import fedavg_shakespeare
import keras
import numpy as np

import tfdp
from tfdp.accounting import plan

CONTEXT = 8


def load_records(path: str | None) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns contexts [records, CONTEXT], next characters [records], and how many there may be.

    No two records have a character in common.
    """
    text = fedavg_shakespeare.BUILT_IN
    if path is not None:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    codes = np.searchsorted(alphabet, list(text)).astype("int32")
    records = codes[: len(codes) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
    records = np.random.default_rng(0).permutation(records)
    return records[:, :-1], records[:, -1], len(alphabet)


class Trainer:
    """Trains models of one text; a tenth of its records is held out.

    Args:
        records: What `load_records` returns.
        steps: Of every run.
        seeds: Runs of which the mean is taken.
    """

    def __init__(self, records: tuple[np.ndarray, np.ndarray, int], steps: int, seeds: int):
        x, y, self._size = records
        kept = len(x) - len(x) // 10
        self._train, self._test = (x[:kept], y[:kept]), (x[kept:], y[kept:])
        self._steps, self._seeds = steps, seeds
        self.population_size = kept

    def parameters(self, width: int) -> int:
        """Returns the number of weights of a network."""
        return self._network(width).count_params()

    def loss(
        self, width: int, batch_size: int, noise: float, rate: float, first_seed: int = 0
    ) -> tuple[float, tfdp.PrivacyLedger]:
        """Returns the held-out loss in nats, the mean of all seeds, and the ledger of one."""
        losses = []
        for seed in range(first_seed, first_seed + self._seeds):
            keras.utils.set_random_seed(seed)
            model = tfdp.keras.make_private(self._network(width))
            query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=noise, denominator=batch_size)
            decay = keras.optimizers.schedules.CosineDecay(rate, self._steps)
            model.compile(
                tfdp.keras.DPOptimizer(keras.optimizers.Adam(decay), query),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
            model.fit(
                *self._train,
                batch_size=batch_size,
                steps_per_epoch=self._steps,
                verbose=int(sys.stdout.isatty()),
            )
            losses.append(model.evaluate(*self._test, batch_size=4096, verbose=0))
        return float(np.mean(losses)), model.ledger

    def _network(self, width: int) -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((CONTEXT,), dtype="int32"),
                keras.layers.Embedding(self._size, 16),
                keras.layers.Flatten(),
                keras.layers.Dense(width, activation="relu"),
                keras.layers.Dense(self._size),
            ]
        )


def law(trainer: Trainer, width: int, options: argparse.Namespace) -> list[tuple]:
    """Returns (ratio, loss, learning rate) for every ratio, of the best learning rate."""
    points, batch_size = [], options.batch_size
    for ratio in sorted(options.ratios):
        found = [
            (trainer.loss(width, batch_size, ratio * batch_size, rate)[0], rate)
            for rate in options.rates
        ]
        points.append((ratio, *min(found)))
        print(f"| {width} | {ratio:g} | {min(found)[0]:.3f} | {min(found)[1]:g} |", flush=True)
    return points


def check(trainer: Trainer, width: int, curve: list[tuple], rows, delta: float) -> list[tuple]:
    """Trains the rows of a plan whose ratios are on the curve, and prints them.

    Returns (ratio, foretold loss, loss) for each.
    """
    ratios, losses, rates = (np.array(column) for column in zip(*curve, strict=True))
    found = []
    for row in rows:
        ratio = row.plan.noise_batch_ratio
        if not ratios[0] <= ratio <= ratios[-1]:
            print(f"The curve says nothing about {ratio=:.2g} of {row.plan}.")
            continue
        foretold = float(np.interp(np.log(ratio), np.log(ratios), losses))
        rate = rates[np.argmin(np.abs(np.log(ratios / ratio)))]
        loss, ledger = trainer.loss(
            width, row.batch_size, row.plan.noise_multiplier, rate, first_seed=100
        )
        found.append((ratio, foretold, loss))
        cells = (width, f"{row.target_epsilon:g}", row.batch_size, f"{ratio:.2g}")
        spent = f"{ledger.epsilon(delta):.3f}"
        print(
            f"| {' | '.join(map(str, cells))} | {foretold:.3f} | {loss:.3f} | {spent} |", flush=True
        )
    return found


def draw(path: pathlib.Path, curves: dict, checks: dict) -> None:
    """Writes a PNG: a curve for each size of model, and the runs of the plan on it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for label, points in curves.items():
        (line,) = axis.plot(*zip(*((p[0], p[1]) for p in points), strict=True), "-", label=label)
        seen = [(ratio, loss) for ratio, _, loss in checks[label]]
        axis.plot(*zip(*seen, strict=True), "o", color=line.get_color())
    axis.plot([], [], "o", color="gray", label="runs of tfdp plan")
    axis.set(xlabel="noise multiplier / batch size", ylabel="held-out loss, nats", xscale="log")
    axis.grid(visible=True, which="both", alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"wrote {path}")


def main() -> None:
    """Finds the curves, trains the runs of a plan, and prints both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a text; by default a small one that is here")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 128, 1024])
    parser.add_argument("--ratios", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3, 1e-2, 3e-2])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.006, 0.02])
    parser.add_argument("--batch-size", type=int, default=256, help="of the curves")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 8.0])
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--plot", type=pathlib.Path, help="where to write a PNG")
    options = parser.parse_args()
    start = time.perf_counter()
    trainer = Trainer(load_records(options.data), options.steps, options.seeds)
    print(f"trains on samples of {trainer.population_size} records")
    print("| width | noise-batch ratio | loss | learning rate |\n|---|---|---|---|")
    curves = {width: law(trainer, width, options) for width in options.widths}
    table = plan(
        options.epsilon,
        options.delta,
        population_size=trainer.population_size,
        batch_sizes=options.batch_sizes,
        steps=[options.steps],
    )
    print("| width | epsilon | batch size | ratio | foretold | loss | epsilon spent |")
    print("|---|---|---|---|---|---|---|")
    rows = [row for row in table.rows if row.plan is not None]
    checks = {w: check(trainer, w, curve, rows, options.delta) for w, curve in curves.items()}
    pairs = np.array([pair[1:] for found in checks.values() for pair in found])
    differences = np.abs(pairs[:, 0] - pairs[:, 1])
    print(
        f"{len(pairs)} runs of the plan, losses from {pairs[:, 1].min():.3f} to "
        f"{pairs[:, 1].max():.3f}: foretold and found differ by {differences.mean():.3f} in the "
        f"mean, {differences.max():.3f} at most. Took {time.perf_counter() - start:.0f} s"
    )
    if options.plot:
        labels = {w: f"{trainer.parameters(w):,} weights" for w in options.widths}
        draw(options.plot, *({labels[w]: v for w, v in d.items()} for d in (curves, checks)))


if __name__ == "__main__":
    main()
