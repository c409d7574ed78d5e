"""In which order participants and the server exchange parameters; participants come and go."""

import heapq
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfdp.accounting import PrivacyBudgetExceededError
from tfdp.events.arguments import real_number
from tfdp.federated.selective.participant import Participant, Server
from tfdp.federated.selective.sparse import BadMessageError
from tfdp.noise import HostGenerator, host_generator

# Why a turn may fail, and the exchange go on: somebody is away, or says what is refused, or has
# spent its own budget.
Failure = ConnectionError | BadMessageError | PrivacyBudgetExceededError
_FAILURES = (ConnectionError, BadMessageError, PrivacyBudgetExceededError)


def run_epoch(
    server: Server,
    participants: Mapping[Hashable, Participant],
    order: Sequence[Hashable] | None = None,
) -> dict[Hashable, Failure]:
    """Gives every participant one turn, one after the other.

    Args:
        server: Where parameters come from and changes go to.
        participants: Those of this epoch, by name: some may have joined or left since the last one.
        order: Names in the order of their turns. By default that of the mapping, which is round
            robin; `random_order` makes another one for each epoch.

    Returns:
        Errors of those that were away, or whose message was refused, or whose budget covers no
        upload. Such a turn had no effect on the server, or its full one; there is another in the
        next epoch.
    """
    failed: dict[Hashable, Failure] = {}
    for name in participants if order is None else order:
        try:
            participants[name].turn(server)
        except _FAILURES as error:
            failed[name] = error
    return failed


def random_order(
    participants: Mapping[Hashable, Participant],
    generator: HostGenerator | np.random.Generator | None = None,
) -> list[Hashable]:
    """Returns the participants' names in random order.

    Args:
        participants: By name.
        generator: By default keyed by the operating system.

    Raises:
        TypeError: `generator` is of another type.
    """
    names = list(participants)
    return [names[i] for i in host_generator(generator).permutation(len(names))]


class Turn(NamedTuple):
    """An upload in asynchronous exchange.

    Attributes:
        name: Whose.
        time: When, in units of durations.
        staleness: How many uploads of others the server took since the participant's download.
        error: What prevented it, or None.
    """

    name: Hashable
    time: float
    staleness: int
    error: Failure | None


class AsynchronousExchange:
    """Participants that do not wait for each other: a simulation of who does what when.

    Everyone downloads, trains for as long as it takes, uploads, and begins anew. What others upload
    in the meantime is not in the parameters that it trained on: they are stale. At the same time
    the one that began first uploads first.

    The server adds up changes. If s participants trained on the same parameters, their changes
    together go s times as far as one of them. So with many at a time, changes have to be small.

    Args:
        server: Where parameters come from and changes go to.

    Example:
        exchange = AsynchronousExchange(server)
        exchange.add("fast", fast, duration=1.0)
        exchange.add("slow", slow, duration=5.0)
        for turn in exchange.run(until=100.0):
            ...
    """

    def __init__(self, server: Server):
        self._server = server
        self._taking_part: dict[Hashable, tuple[Participant, float, float]] = {}
        # What comes next: an upload, or None, where a pause is over.
        self._waiting: list[tuple[float, int, Hashable, int, bytes | Failure | None]] = []
        self._began = self._uploads = 0
        self.time = 0.0

    def add(
        self, name: Hashable, participant: Participant, duration: float, pause: float = 0.0
    ) -> None:
        """Lets a participant begin, or return.

        Args:
            name: Of the participant.
            participant: It trains at once, in this process; its upload comes `duration` later.
            duration: Of its epoch; positive.
            pause: From now, and from each upload, to the next download; not negative.
        """
        duration = real_number("duration", duration, minimum=0, inclusive=False)
        pause = real_number("pause", pause, minimum=0, inclusive=True)
        if name in self._taking_part:
            raise ValueError(f"A participant of this name takes part already. Received: {name=}.")
        self._taking_part[name] = participant, duration, pause
        self._rest(name)

    def remove(self, name: Hashable) -> None:
        """Lets a participant leave or crash: what it is training on now is not uploaded."""
        del self._taking_part[name]
        self._waiting = [entry for entry in self._waiting if entry[2] != name]
        heapq.heapify(self._waiting)

    def set_duration(self, name: Hashable, duration: float) -> None:
        """Says how long the participant's epochs take from the next one on: it lags."""
        duration = real_number("duration", duration, minimum=0, inclusive=False)
        participant, _, pause = self._taking_part[name]
        self._taking_part[name] = participant, duration, pause

    def run(self, until: float) -> Iterator[Turn]:
        """Yields uploads in the order of time, up to and including `until`."""
        while self._waiting and self._waiting[0][0] <= until:
            self.time, _, name, seen, message = heapq.heappop(self._waiting)
            if message is None:
                self._begin(name)
                continue
            error = self._upload(message)
            others = self._uploads - seen
            self._uploads += error is None
            self._rest(name)
            yield Turn(name, self.time, others, error)
        self.time = max(self.time, until)

    def _upload(self, message: bytes | Failure) -> Failure | None:
        if not isinstance(message, bytes):
            return message
        try:
            self._server.upload(message)
        except _FAILURES as error:
            return error
        return None

    def _rest(self, name: Hashable) -> None:
        pause = self._taking_part[name][2]
        if pause:
            self._push(pause, name, None)
        else:
            self._begin(name)

    def _begin(self, name: Hashable) -> None:
        participant, duration, _ = self._taking_part[name]
        message: bytes | Failure
        try:
            participant.download(self._server)
            message = participant.epoch()
        except _FAILURES as error:
            message = error
        self._push(duration, name, message)

    def _push(self, after: float, name: Hashable, message: bytes | Failure | None) -> None:
        heapq.heappush(
            self._waiting, (self.time + after, self._began, name, self._uploads, message)
        )
        self._began += 1
