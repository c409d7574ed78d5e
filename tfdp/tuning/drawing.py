"""Candidates that other packages draw: by chance alone, never by what earlier runs have shown."""

from collections.abc import Callable
from typing import Any

# The samplers of Optuna that draw each trial independently of all others.
_INDEPENDENT = ("RandomSampler",)


def optuna_trials(study: Any) -> Callable[[], Any]:
    """Returns a function that draws a trial of an Optuna study, for `private_search`.

    A run asks the trial for its numbers, `trial.suggest_float("rate", 1e-3, 1.0, log=True)`, and
    returns its score to the search. It must not report the score to the study (`study.tell`,
    `trial.report`): a study shows all of its trials, and the search is charged for the best alone.
    That nothing was told is looked at whenever a trial is drawn, and in the end is up to the run.

    Args:
        study: Its sampler must be a `RandomSampler`.

    Raises:
        TypeError: it is no study, or its sampler looks at earlier trials.
        ValueError: when a trial is drawn: the study knows how a trial of this search went.

    Example:
        >>> import pytest
        >>> optuna = pytest.importorskip("optuna")  # doctest: +SKIP
        >>> sampler = optuna.samplers.RandomSampler()  # doctest: +SKIP
        >>> candidates = optuna_trials(optuna.create_study(sampler=sampler))  # doctest: +SKIP
    """
    sampler = getattr(study, "sampler", None)
    if not callable(getattr(study, "ask", None)) or sampler is None:
        raise TypeError(f"study must be an optuna.Study. Received: study={study!r}.")
    kind = type(sampler)
    if not (kind.__module__.startswith("optuna.") and kind.__name__ in _INDEPENDENT):
        raise TypeError(
            "The sampler of the study must be optuna.samplers.RandomSampler: one that looks at the "
            "scores of earlier trials costs all of them. Received a study with sampler="
            f"{kind.__name__}."
        )
    known = len(_told(study))

    def draw() -> Any:
        if len(_told(study)) > known:
            raise ValueError(
                "The study was told how a trial went. It shows all of its trials, and the search "
                "is charged for the best one alone. Leave study.tell and trial.report out of a run."
            )
        return study.ask()

    return draw


def _told(study: Any) -> list[Any]:
    trials = study.get_trials(deepcopy=False)
    return [t for t in trials if t.intermediate_values or t.state.is_finished()]


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
