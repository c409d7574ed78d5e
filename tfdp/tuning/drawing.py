"""Candidates that other packages draw: by chance alone, never by what earlier runs have shown."""

import copy
from collections.abc import Callable
from typing import Any


def optuna_trials(suggest: Callable[[Any], Any]) -> Callable[[], dict[str, Any]]:
    """Returns a function that draws the values of an Optuna trial by chance, for `private_search`.

    Each candidate is drawn by a study of its own, which is thrown away, with a `RandomSampler` that
    the operating system seeds. A run gets the values by their names, in a dictionary. A trial would
    carry its number and its time, which tell how many runs came before the winner.

    Args:
        suggest: A function of a trial that asks it for its numbers. It is called once for each
            candidate; what it returns is not used.

    Raises:
        TypeError: `suggest` cannot be called; so a study.
        ImportError: Optuna is not installed.

    Example:
        >>> import pytest
        >>> optuna = pytest.importorskip("optuna")  # doctest: +SKIP
        >>> def suggest(trial):
        ...     trial.suggest_float("rate", 1e-3, 1.0, log=True)
        >>> optuna_trials(suggest)()  # doctest: +SKIP
        {'rate': 0.0213...}
    """
    if not callable(suggest):
        raise TypeError(
            "Give a function that asks a trial for its numbers. A study is not taken: it numbers "
            "its trials, may be told their scores, and a seeded sampler can be repeated. Received: "
            f"suggest={suggest!r}."
        )
    import optuna

    # Optuna logs each study that is made. A copy is not logged, so that nobody counts the runs.
    empty = optuna.create_study(sampler=optuna.samplers.RandomSampler())

    def draw() -> dict[str, Any]:
        study = copy.deepcopy(empty)
        study.sampler = optuna.samplers.RandomSampler()
        trial = study.ask()
        suggest(trial)
        return dict(trial.params)

    return draw


def keras_tuner_values(hyperparameters: Any, build: Callable[[Any], Any]) -> Callable[[], Any]:
    """Returns a function that draws KerasTuner's `HyperParameters` by chance, for `private_search`.

    A run builds its model by `build(candidate)`. The tuners of KerasTuner themselves show the
    scores of all trials, and cost all of them: none of them takes part.

    Args:
        hyperparameters: `keras_tuner.HyperParameters()`, in which the names may stand already.
        build: A function of hyper-parameters that a tuner would take; it is called to learn which
            there are.

    Raises:
        TypeError: `hyperparameters` are something else, or `build` cannot be called.

    Example:
        >>> import pytest
        >>> kt = pytest.importorskip("keras_tuner")  # doctest: +SKIP
        >>> build = lambda hp: hp.Choice("units", [2, 3])  # doctest: +SKIP
        >>> keras_tuner_values(kt.HyperParameters(), build)().values  # doctest: +SKIP
        {'units': 3}
    """
    if not callable(build) or not hasattr(hyperparameters, "is_active"):
        raise TypeError(
            "Give keras_tuner.HyperParameters() and the function that builds a model of them. "
            f"Received: hyperparameters={hyperparameters!r}, build={build!r}."
        )
    build(hyperparameters)

    def draw() -> Any:
        drawn = hyperparameters.copy()
        # Those under a condition may appear where it is met, and then have values of their own.
        names: set[str] = set()
        while True:
            new = [one for one in drawn.space if one.name not in names and drawn.is_active(one)]
            if not new:
                return drawn
            for one in new:
                names.add(one.name)
                drawn.values[one.name] = one.random_sample()
            build(drawn)

    return draw
