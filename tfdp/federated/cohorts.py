"""Whom a server can ask, and how the cohort of a round is drawn among them."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from tfdp.events.arguments import positive_integer
from tfdp.noise import host_generator
from tfdp.sampling import Poisson, SamplingPolicy


def registered(clients: Sequence[Hashable]) -> tuple[Hashable, ...]:
    """Returns the names of clients.

    Raises:
        TypeError: they are no sequence of names, or a name cannot be looked up.
        ValueError: there are none, or one stands for two clients.
    """
    if isinstance(clients, (str, bytes)) or not isinstance(clients, Iterable):
        raise TypeError(
            "clients must be a sequence of names, such as ['a', 'b'] or range(10). Received: "
            f"clients={clients!r}."
        )
    names = tuple(clients)
    for name in names:
        _check_hashable(name)
    if not names or len(set(names)) != len(names):
        raise ValueError(
            "clients must be different names, at least one: a client that is registered twice "
            f"could be in a round twice. Received: {len(names)} names, {len(set(names))} different."
        )
    return names


def policy_of(
    sampling: SamplingPolicy | None, population: int, cohort_size: int | None
) -> SamplingPolicy:
    """Returns the policy by which cohorts are drawn.

    Args:
        sampling: As given to a `Server`.
        population: Number of registered clients.
        cohort_size: As given to a `Server`.

    Raises:
        TypeError: `sampling` is no policy, or the size no integer.
        ValueError: it cannot draw, or the size of cohorts is missing or contradicts it.
    """
    policy = Poisson() if sampling is None else sampling
    if not isinstance(policy, SamplingPolicy):
        raise TypeError(
            f"sampling must be a policy from tfdp.sampling. Received: sampling={sampling!r}."
        )
    if cohort_size is None:
        cohort_size = _size_of(policy, population)
        if cohort_size is None and not policy.hides_population:
            raise ValueError(
                "cohort_size is needed: the expected number of clients in a round. Received: None."
            )
    elif policy.hides_population:
        raise ValueError(
            "Under ADD_OR_REMOVE_ONE the sampling policy says how large cohorts are: leave "
            f"cohort_size out. Received: cohort_size={cohort_size}."
        )
    elif positive_integer("cohort_size", cohort_size) > population:
        raise ValueError(
            "cohort_size must be at most the number of clients. Received: "
            f"cohort_size={cohort_size}, number of clients={population}."
        )
    policy = policy.resolve(population, cohort_size)
    try:
        policy.draw(host_generator())
    except TypeError as error:
        raise ValueError(
            "Cohorts are drawn by the server, so the policy must say how. Received: "
            f"sampling={sampling!r}."
        ) from error
    return policy


def _check_hashable(name: Any) -> None:
    try:
        hash(name)
    except TypeError:
        raise TypeError(
            "clients must be names that can be keys of a dict, such as texts or integers. "
            f"Received: one of type {type(name).__name__}."
        ) from None


def _size_of(policy: SamplingPolicy, population: int) -> int | None:
    """Returns the size of cohorts where the policy alone says it: one of its own, or everybody."""
    defaults = [policy.default_batch_size(size) for size in (population, population + 1)]
    everybody = defaults == [population, population + 1]
    return population if everybody else getattr(policy, "batch_size", None)
