"""Workers that several callers share: every request is executed once, and its error is raised for its callers alone.

Each worker has a thread here, so that its death is attributed to the request it was executing.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

from knot_runner.engine.loop import BUSY, RETRY, ProgressCallback, StageKey
from knot_runner.engine.requests import StageRequest, Train, request_title
from knot_runner.engine.worker import Event
from knot_runner.util.files import BusyError
from knot_runner.util.processes import Ended
from knot_runner.util.workers import WorkerDied

#: Deaths of workers at a request (perhaps from the memory of others) after which it runs exclusively.
DEATHS = 3


class AnyWorker(Protocol):
    """Executes one request at a time, see :class:`knot_runner.engine.worker.Worker`."""

    def run(self, request: StageRequest, on_event: Callable[[Event], None]) -> BaseException | None: ...

    def stop(self) -> None: ...

    def reap(self) -> None: ...


#: How a request ended: its key, and the error or None.
_Outcome = tuple[StageKey, BaseException | None]
_Inbox = SimpleQueue[Event | _Outcome]


@dataclass(eq=False)
class _Ticket:
    """A request and its callers' ``inboxes``. ``not_before``: next attempt, after another process was busy."""

    key: StageKey
    request: StageRequest
    inboxes: list[_Inbox] = field(default_factory=list)
    deaths: int = 0
    not_before: float = 0.0

    @property
    def exclusive(self) -> bool:
        """Whether it runs while nothing else does."""
        return self.deaths >= DEATHS

    def rank(self) -> tuple[bool, int]:
        """Sort key, lowest first: predictions, which are short and unblock trainings; then requests with the most
        callers."""
        return isinstance(self.request, Train), -len(self.inboxes)

    def send(self, message: Event | _Outcome) -> None:
        for inbox in list(self.inboxes):
            inbox.put(message)


class WorkerPool:
    """Up to ``count`` workers, each made by ``make`` when needed, until :meth:`close`."""

    def __init__(self, make: Callable[[], AnyWorker], count: int) -> None:
        self._make, self._count = make, count
        self._changed = threading.Condition()
        self._tickets: dict[StageKey, _Ticket] = {}  # all that has not ended, in order of arrival
        self._running: set[_Ticket] = set()
        self._workers: list[AnyWorker] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def run(self, requests: dict[StageKey, StageRequest], watch: ProgressCallback) -> None:
        """Return when all ``requests`` are in the store; for any thread, in which ``watch`` is called.

        A request of several callers is executed once. Raises the error of the first that fails; of the others, those
        without another caller are dropped unless they are running.
        """
        inbox: _Inbox = SimpleQueue()
        left = set(requests)
        self._submit(requests, inbox)
        try:
            while left:
                message = inbox.get()
                if isinstance(message, Event):
                    watch(message.title, message.done, message.total, message.text)
                    continue
                key, problem = message
                if problem is not None:
                    raise copy.copy(problem)  # other callers raise it too
                left.discard(key)
        finally:
            self._withdraw(inbox)

    def close(self) -> None:
        """Kill the workers; waiting callers get :class:`Ended`. Commits are whole at any moment."""
        with self._changed:
            self._closed = True
            for ticket in self._tickets.values():
                ticket.send((ticket.key, Ended()))
            self._tickets.clear()
            self._changed.notify_all()
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join(timeout=5)

    def _submit(self, requests: dict[StageKey, StageRequest], inbox: _Inbox) -> None:
        with self._changed:
            if self._closed:
                raise Ended
            for key, request in requests.items():
                self._tickets.setdefault(key, _Ticket(key, request)).inboxes.append(inbox)
            for _ in range(min(self._count, len(self._tickets)) - len(self._threads)):
                self._workers.append(self._make())
                self._threads.append(threading.Thread(target=self._serve, args=self._workers[-1:], daemon=True))
                self._threads[-1].start()
            self._changed.notify_all()

    def _withdraw(self, inbox: _Inbox) -> None:
        with self._changed:
            for ticket in [ticket for ticket in self._tickets.values() if inbox in ticket.inboxes]:
                ticket.inboxes.remove(inbox)
                if not ticket.inboxes and ticket not in self._running:
                    del self._tickets[ticket.key]

    # ------------------------------------------------------------------------------------------ in a worker's thread

    def _serve(self, worker: AnyWorker) -> None:
        """Loop of a worker's thread: one ticket after another."""
        while (ticket := self._take()) is not None:
            again = False
            try:
                problem = worker.run(ticket.request, ticket.send)
            except WorkerDied as death:
                ticket.deaths += 1
                problem, again = death, ticket.deaths <= DEATHS
            except BaseException as other:  # it cannot be sent, or no process can be started
                problem = other
            self._settle(ticket, problem, again)
        worker.reap()

    def _take(self) -> _Ticket | None:
        """The next ticket, as soon as there is one; None when closed."""
        with self._changed:
            while not self._closed:
                ticket, pause = self._next()
                if ticket is not None:
                    self._running.add(ticket)
                    return ticket
                self._changed.wait(pause)
            return None

    def _next(self) -> tuple[_Ticket | None, float | None]:
        """The ticket to start now, or the seconds until the next attempt (None: wait for a change)."""
        if any(ticket.exclusive for ticket in self._running):
            return None, None
        now = time.monotonic()
        waiting = [ticket for ticket in self._tickets.values() if ticket not in self._running]
        ready = [ticket for ticket in waiting if ticket.not_before <= now]
        parallel = [ticket for ticket in ready if not ticket.exclusive]
        if parallel:
            return min(parallel, key=_Ticket.rank), None
        if ready and not self._running:
            return ready[0], None
        return None, min((ticket.not_before - now for ticket in waiting if ticket.not_before > now), default=None)

    def _settle(self, ticket: _Ticket, problem: BaseException | None, again: bool) -> None:
        """Send the outcome to all callers; or keep the ticket for another attempt while it has callers."""
        with self._changed:
            self._running.discard(ticket)
            if isinstance(problem, BusyError):
                again, ticket.not_before = True, time.monotonic() + RETRY
                ticket.send(Event(request_title(ticket.request), 0, 1, BUSY))
            if not again:
                ticket.send((ticket.key, problem))
            if not (again and ticket.inboxes):
                self._tickets.pop(ticket.key, None)
            self._changed.notify_all()
