"""Shadow models: the same training on other halves of the records, in parallel processes."""

import concurrent.futures
import dataclasses
import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdp.events.arguments import positive_integer

# Trains on (x, y, seed) and returns a function from x to probabilities [records, classes].
MakeModel = Callable[[Any, Any, int], Callable[[Any], Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Shadows:
    """What shadow models predict, and whom they were trained on.

    Attributes:
        memberships: Boolean [models, records].
        predictions: [models, records, classes], each model's of all records.
    """

    memberships: np.ndarray
    predictions: np.ndarray


def random_halves(models: int, records: int, seed: int) -> np.ndarray:
    """Returns memberships [models, records] in which every record is in half of the models.

    Args:
        models: An even number.
        records: How many.
        seed: The halves are a function of it.

    Raises:
        ValueError: `models` is not even.
    """
    models, records = positive_integer("models", models), positive_integer("records", records)
    if models % 2:
        raise ValueError(
            "models must be even, so that every record is in half of them. "
            f"Received: models={models}."
        )
    lots = np.random.default_rng(seed).random((models, records))
    return np.argsort(lots, axis=0) < models // 2


def shadow_models(
    make_model: MakeModel,
    x: Any,
    y: Any,
    models: int = 16,
    workers: int = 1,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Shadows:
    """Trains models on random halves of the records and returns what they predict of all records.

    Args:
        make_model: Called with (x, y, seed) of one half; trains a model and returns a function from
            x to probabilities [records, classes], such as `model.predict`. With several workers
            it runs in new processes, so it must be a function of a module, not a lambda.
        x: [records, ...] array.
        y: [records, ...] array.
        models: How many; an even number.
        workers: Processes. TensorFlow is loaded in each, and each has the arrays.
        seed: Of the halves; the models have seeds from seed on, one each.
        progress: Called with (models that are trained, all) after each.

    Raises:
        ValueError: x and y are not of the same length, `models` is odd, or predictions are not
            [records, classes].

    Returns:
        Everything that `lira` and `rmia` need, by `membership_scores` of each model.
    """
    x, y = np.asarray(x), np.asarray(y)
    workers = positive_integer("workers", workers)
    if len(x) != len(y):
        raise ValueError(f"x and y must be of one length. Received: {len(x)} and {len(y)}.")
    memberships = random_halves(models, len(x), seed)
    tasks = [(make_model, x, y, mask, seed + i) for i, mask in enumerate(memberships)]
    found: list[Any] = [None] * models
    if workers == 1:
        for i, task in enumerate(tasks):
            found[i] = _predictions(*task)
            if progress is not None:
                progress(i + 1, models)
        return Shadows(memberships, np.stack(found))
    # Spawned, since TensorFlow does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(_predictions, *task): i for i, task in enumerate(tasks)}
        try:
            done = concurrent.futures.as_completed(futures)
            for count, future in enumerate(done, start=1):
                found[futures[future]] = future.result()
                if progress is not None:
                    progress(count, models)
        finally:  # What has not begun after an error is not begun any more.
            pool.shutdown(cancel_futures=True)
    return Shadows(memberships, np.stack(found))


def _predictions(make_model: MakeModel, x: Any, y: Any, mask: np.ndarray, seed: int) -> np.ndarray:
    found = np.asarray(make_model(x[mask], y[mask], seed)(x))
    if found.ndim != 2 or len(found) != len(x):
        raise ValueError(
            "The function that make_model returns must map x to probabilities "
            f"[records, classes]. Received: shape={found.shape} for {len(x)} records."
        )
    return found
