"""What the tutorials print and plot about a finished run."""

import pathlib

import tfdp


def epsilon_after(ledger: tfdp.PrivacyLedger, steps: list[int], delta: float) -> list[float]:
    """Returns the epsilon, by RDP, after the first `n` steps of a ledger, for every n of
    `steps`.
    """
    result = []
    for wanted in steps:
        accountant = tfdp.accounting.RDPAccountant()
        for event, count in ledger:
            taken = min(count, wanted)
            if taken:
                accountant.compose(event, taken)
            wanted -= taken
        result.append(accountant.get_epsilon(delta))
    return result


def print_epsilons(
    path: pathlib.Path, delta: float, names: tuple[str, ...] = ("rdp", "pld", "dp_accounting.rdp")
) -> None:
    """Prints the epsilon of a saved ledger by several accountants."""
    ledger = tfdp.PrivacyLedger.load(path)
    print(f"{ledger.total_count} steps in {path}; at delta = {delta:g}:")
    for name in names:
        accountant = ledger.replay(tfdp.accounting.make_accountant(name))
        print(f"  epsilon = {accountant.get_epsilon(delta):.3f} by {name}")


def plot(
    path: pathlib.Path, steps: list[int], epsilons: list[float], accuracies: dict[str, list[float]]
) -> None:
    """Writes a PNG: accuracies, and epsilon on an axis of its own, over steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, left = plt.subplots(figsize=(7, 4), layout="constrained")
    for label, values in accuracies.items():
        color = "tab:blue" if label == "private" else "tab:gray"
        at = steps[-len(values) :]
        left.plot(at, values, color=color, label=f"test accuracy, {label}")
    left.set(xlabel="step", ylabel="test accuracy", ylim=(None, 1.0))
    right = left.twinx()
    right.plot(
        [0, *steps], [0.0, *epsilons], color="tab:red", linestyle="--", label="epsilon spent"
    )
    right.set(ylabel="epsilon", ylim=(0.0, None))
    lines = [*left.get_lines(), *right.get_lines()]
    left.legend(lines, [line.get_label() for line in lines], loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"wrote {path}")
