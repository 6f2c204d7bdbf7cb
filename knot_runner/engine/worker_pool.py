"""Workers that several callers share: every request is carried out once, and what goes wrong with it concerns only
those who wait for it.

Each worker is looked after by a thread here, so that its death is known to be of the request it was at.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

from knot_runner.engine.requests import TextRequest, Train, request_title
from knot_runner.engine.stages import BUSY, RETRY, ProgressCallback, StageKey
from knot_runner.engine.worker import Event
from knot_runner.util.errors import UserError
from knot_runner.util.files import BusyError
from knot_runner.util.processes import Ended

#: So many workers may die of a request (or beside it: memory is everybody's) before it is tried with nothing else.
DEATHS = 3
DIED = (
    "hardware.workers: a worker process died (out of memory?); repeat the command to go on, "
    "with hardware.workers=1 if it dies again"
)
ENDED = "the worker processes have ended"


class AnyWorker(Protocol):
    """What carries out one request at a time, see :class:`knot_runner.engine.worker.Worker`."""

    def carry_out(self, request: TextRequest, tell: Callable[[Event], None]) -> BaseException | None: ...

    def kill(self) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class _Over:
    """What those who wait for a request hear last."""

    key: StageKey
    problem: BaseException | None


Inbox = SimpleQueue[Event | _Over]


@dataclass(eq=False)
class _Ticket:
    """A request on its way. ``inboxes``: of those who wait for it; ``not_before``: another process is at it."""

    key: StageKey
    request: TextRequest
    inboxes: list[Inbox] = field(default_factory=list)
    deaths: int = 0
    not_before: float = 0.0

    @property
    def alone(self) -> bool:
        """Whether it is carried out while nothing else is."""
        return self.deaths >= DEATHS

    def rank(self) -> tuple[bool, int]:
        """Least first: predictions, which are short and let trainings begin; then what most wait for."""
        return isinstance(self.request, Train), -len(self.inboxes)

    def tell(self, news: Event | _Over) -> None:
        for inbox in list(self.inboxes):
            inbox.put(news)


class WorkerPool:
    """Up to ``count`` workers, each started by ``start`` when there is work for it, until :meth:`close`."""

    def __init__(self, start: Callable[[], AnyWorker], count: int) -> None:
        self._start, self._count = start, count
        self._changed = threading.Condition()
        self._tickets: dict[StageKey, _Ticket] = {}  # all that has not ended, in order of arrival
        self._begun: set[_Ticket] = set()
        self._workers: list[AnyWorker] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def carry_out(self, requests: dict[StageKey, TextRequest], watch: ProgressCallback) -> None:
        """Return when all ``requests`` are in the store; from any thread, ``watch`` is called in that.

        A request that somebody else has asked for is waited for, not repeated. Raises what went wrong with the first
        that fails; the others are then left to those who also wait for them, or to end by themselves if begun.
        """
        inbox: Inbox = SimpleQueue()
        left = set(requests)
        self._ask(requests, inbox)
        try:
            while left:
                news = inbox.get()
                if isinstance(news, Event):
                    watch(news.title, news.done, news.total, news.text)
                elif news.problem is not None:
                    raise copy.copy(news.problem)  # others raise it too
                else:
                    left.discard(news.key)
        finally:
            self._leave(inbox)

    def close(self) -> None:
        """Kill the workers; whoever still waits gets a ``RuntimeError``. Commits are whole at any moment."""
        with self._changed:
            self._closed = True
            for ticket in self._tickets.values():
                ticket.tell(_Over(ticket.key, RuntimeError(ENDED)))
            self._tickets.clear()
            for worker in self._workers:
                worker.kill()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=5)

    def _ask(self, requests: dict[StageKey, TextRequest], inbox: Inbox) -> None:
        with self._changed:
            if self._closed:
                raise Ended(ENDED)
            for key, request in requests.items():
                self._tickets.setdefault(key, _Ticket(key, request)).inboxes.append(inbox)
            for _ in range(min(self._count, len(self._tickets)) - len(self._threads)):
                thread = threading.Thread(target=self._look_after, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def _leave(self, inbox: Inbox) -> None:
        with self._changed:
            for ticket in [ticket for ticket in self._tickets.values() if inbox in ticket.inboxes]:
                ticket.inboxes.remove(inbox)
                if not ticket.inboxes and ticket not in self._begun:
                    del self._tickets[ticket.key]

    # ------------------------------------------------------------------------------------------ in a worker's thread

    def _look_after(self) -> None:
        """Life of a worker's thread: one ticket after another; a worker that died is replaced when there is a next."""
        worker: AnyWorker | None = None
        while (ticket := self._take()) is not None:
            problem: BaseException | None
            try:
                worker = worker or self._started()
                problem = worker.carry_out(ticket.request, ticket.tell)
            except (EOFError, ConnectionError):
                self._bury(worker)
                worker, problem = None, None
                ticket.deaths += 1
                if ticket.deaths > DEATHS:
                    problem = UserError(DIED)
                self._settle(ticket, problem, again=problem is None)
                continue
            except BaseException as other:  # it cannot be sent, or no process can be started
                problem = other
            self._settle(ticket, problem, again=isinstance(problem, BusyError))
        self._bury(worker)

    def _started(self) -> AnyWorker:
        worker = self._start()  # this may take seconds, so without the lock
        with self._changed:
            self._workers.append(worker)
            if self._closed:
                worker.kill()
        return worker

    def _bury(self, worker: AnyWorker | None) -> None:
        if worker is not None:
            worker.end()
            with self._changed:
                self._workers.remove(worker)

    def _take(self) -> _Ticket | None:
        """The next ticket, as soon as there is one; None at the end."""
        with self._changed:
            while not self._closed:
                ticket, pause = self._next()
                if ticket is not None:
                    self._begun.add(ticket)
                    return ticket
                self._changed.wait(pause)
            return None

    def _next(self) -> tuple[_Ticket | None, float | None]:
        """What may begin now; or else in how many seconds to look again (None: when something has changed)."""
        if any(ticket.alone for ticket in self._begun):
            return None, None
        now = time.monotonic()
        waiting = [ticket for ticket in self._tickets.values() if ticket not in self._begun]
        ready = [ticket for ticket in waiting if ticket.not_before <= now]
        company = [ticket for ticket in ready if not ticket.alone]
        if company:
            return min(company, key=_Ticket.rank), None
        if ready and not self._begun:
            return ready[0], None
        return None, min((ticket.not_before - now for ticket in waiting if ticket.not_before > now), default=None)

    def _settle(self, ticket: _Ticket, problem: BaseException | None, again: bool) -> None:
        """It has ended and all are told; or it waits for another turn, if anybody still wants it."""
        with self._changed:
            self._begun.discard(ticket)
            if isinstance(problem, BusyError):
                ticket.not_before = time.monotonic() + RETRY
                ticket.tell(Event(request_title(ticket.request), 0, 1, BUSY))
            if not again:
                ticket.tell(_Over(ticket.key, problem))
            if not (again and ticket.inboxes):
                self._tickets.pop(ticket.key, None)
            self._changed.notify_all()
