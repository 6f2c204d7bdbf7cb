"""The interface of methods, and the table of all methods. A method is a set of functions that the training loop calls.

A **message** holds the named tensors that a client sends to the server in a round, or receives from it. The **fold** is
the server step of a round: the server aggregates the messages and updates the state. Mechanisms that act only on
messages, such as clipping and compression, are in :mod:`knot_runner.methods.around`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from knot_runner import metrics
from knot_runner.config.plugins import Table, checked, expect, unlike
from knot_runner.config.settings.families import FAMILIES, METHOD_SETTINGS
from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundOutcome, RoundRow
    from knot_runner.methods.messages import Exchange

#: The state of a method between rounds (tensors, and plain values such as names of artifacts), or a log row.
State = dict[str, Any]
#: The client number in requests that train a model of the server.
SERVER = -1
#: The parts of a message by name. ``update`` [p]: the change of the shared parameters, in the order of the layout.
ClientMessage = dict[str, Tensor]
#: Types of a method's functions, which return a round's requests, a message, or the state and log entries after a fold.
PlanFunction = Callable[..., "list[LocalTraining]"]
MessageFunction = Callable[..., ClientMessage]
FoldFunction = Callable[..., "Folded"]
ClientItem = TypeVar("ClientItem", LocalTraining, Trained)


def entries_below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries of ``state`` whose names begin with ``prefix``, without this prefix in the names."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def by_client(items: list[ClientItem]) -> dict[int, list[ClientItem]]:
    """Group requests or results by client. Clients are in the order of their first items.

    A client sends the model of its first request, and keeps the models of its other requests, as in Ditto.
    """
    works: dict[int, list[ClientItem]] = {}
    for item in items:
        works.setdefault(item.client, []).append(item)
    return works


@dataclass(frozen=True)
class ClientWork:
    """The work of one client in a round.

    Attributes:
        round: The round in which the client's message arrives.
        requests: The client's requests. The first request trains the model that the client received. Further requests
            train models that the client keeps, as in Ditto.
        trained: The result of each request.
        sent: The client's message; {} if it has not been sent yet.
    """

    round: int
    requests: list[LocalTraining]
    trained: list[Trained]
    sent: ClientMessage = field(default_factory=dict)

    @staticmethod
    def of_round(round: int, requests: list[LocalTraining], trained: list[Trained]) -> list[ClientWork]:
        """Group the requests and results of ``round`` by client. Clients are in the order of their first requests."""
        results = by_client(trained)
        return [ClientWork(round, work, results[client]) for client, work in by_client(requests).items()]

    @property
    def client(self) -> int:
        """Return the client's number."""
        return self.requests[0].client

    @property
    def start_round(self) -> int:
        """Return the round in which the client received its model.

        With asynchronous aggregation, the message may arrive in a later round.
        """
        return self.requests[0].round

    @property
    def examples(self) -> int:
        """Return the client's number of training examples."""
        return len(self.requests[0].rows)


@dataclass(frozen=True)
class Sent:
    """A client's message. The client sends the message, or the server computes it in the client's place.

    Attributes:
        examples: The number of the client's training examples.
        facts: Values to log about the message, such as its norm.
        packed: The size of a compressed message in bytes; None if the message is not compressed.
    """

    client: int
    examples: int
    parts: ClientMessage
    facts: dict[str, float] = field(default_factory=dict)
    packed: int | None = None

    @property
    def bytes(self) -> int:
        """Return the number of bytes that the client sends. For a compressed message, this is the compressed size."""
        return size(self.parts) if self.packed is None else self.packed


def size(parts: ClientMessage) -> int:
    """Return the size of an uncompressed message in bytes."""
    return sum(part.numel() * part.element_size() for part in parts.values())


def nothing(*_: object) -> State:
    """Return {}. Some optional functions of a method default to this function."""
    return {}


@dataclass(frozen=True)
class Method:
    """A federated method.

    The state is a dict of tensors. Names of client k's entries begin with ``client/<k>/``. All other entries belong to
    the server. Entries whose names begin with ``server/`` are never sent to clients.

    Attributes:
        init: ``(config, federation) -> state``: the initial state.
        plan: ``(config, state, federation, round) -> requests``: the training requests for the round's clients; [] when
            training is finished.
        message: ``(config, state, federation, work) -> message``: the message that the client sends after its ``work``.
            ``state`` is the state of the round in which the work began. The server receives nothing else from clients,
            except second messages (``exchange``).
        fold: ``(config, state, federation, round, mean, share) -> (state, row)``: the server step. ``mean``: mean of
            the messages; ``share``: fraction of clients that took part (:meth:`Federation.share`); ``row``: log
            entries.
        deployed: ``(config, state, federation, client) -> model``: the model that ``client`` uses.
        fold_each: ``(config, state, federation, round, sent) -> (state, row)``: a server step that reads the individual
            messages ``sent``. It is called instead of ``fold``. With privacy, however, ``fold`` is called, because the
            server may read only the mean of the messages.
        keep: ``(config, state, federation, work) -> tensors``: the state entries that the client keeps after its
            ``work``. ``work.sent`` is the client's message.
        observe: ``(works) -> row``: log entries about the clients' training.
        received: ``(config, state, federation, client) -> message``: the server's message to ``client``. By default,
            the shared parameters and the running statistics (``averaging.received``).
        unweighted: Names of message parts that are always averaged with equal weights.
        one_model: Whether all clients use the same model. If true, this model is evaluated on all test examples. If
            false, each client's model is evaluated on the client's own test examples.
        exchange: ``(config) -> exchange``: the exchange of second messages; None for a method without second messages.
        settings: The settings class of a plug-in method.
        send: ``(sent, phase) -> sent``: changes a message before it reaches the server. ``phase`` is 2 for second
            messages, otherwise 1. :mod:`knot_runner.methods.around` sets this attribute and the attributes below.
        reduce: ``(round, phase, sent, empty) -> (mean, row)``: the mean of the messages ``sent``, an iterator in the
            order of the clients. By default, ``averaging.mean_of``. ``empty()`` returns a message with placeholder
            values, but with the names and shapes of the round's messages, also in rounds without messages.
        facts: ``(rounds, rows) -> facts``: entries to add to the run's result. ``rounds``: number of rounds;
            ``rows``: rows of the log.
        start_state: ``(state, work) -> state``: the state when the client's work began. With asynchronous aggregation,
            this may be the state of an earlier round.
    """

    init: Callable[..., FederatedState]
    plan: PlanFunction
    message: MessageFunction = nothing
    fold: FoldFunction | None = None
    deployed: Callable[..., ClientModel] | None = None
    fold_each: FoldFunction | None = None
    keep: MessageFunction = nothing
    observe: Callable[..., RoundRow] = nothing
    received: MessageFunction | None = None
    unweighted: tuple[str, ...] = ()
    one_model: bool = True
    exchange: Callable[..., Exchange] | None = None
    settings: type = AveragingSettings
    send: Callable[[Sent, int], Sent] = lambda sent, phase: sent
    reduce: Callable[..., tuple[ClientMessage, RoundRow]] | None = None
    facts: Callable[[int, list[State]], State] = nothing
    start_state: Callable[[FederatedState, ClientWork], FederatedState] = lambda state, work: state

    def empty_message(
        self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int
    ) -> ClientMessage:
        """Return the message of a client whose training did not change the model.

        The parts of this message have the same names and shapes as in every message of ``round``. If the method has no
        requests for ``round``, the result is {}.
        """
        alone = federation.choosing([federation.numbers[0]])
        requests = self.plan(config, state, alone, round)
        if not requests:
            return {}
        results = [Trained(one.client, one.start.weights, one.start.buffers, 1, 0.0, 0, 0, True) for one in requests]
        work, *_ = ClientWork.of_round(round, requests, results)  # the first client, if all train
        return self.message(config, state, alone, work)


@dataclass(frozen=True)
class RoundMethod:
    """The functions that the training loop calls to run a method.

    - ``init(config, federation) -> state``
    - ``plan(config, state, federation, round) -> requests``
    - ``fold(config, state, federation, round, requests, trained, engine) -> (state, row, further)``: ``trained`` holds
      the result of each request, ``row`` the log entries, and ``further`` the requests of the exchange of second
      messages, which ``engine`` executed
    - ``deployed(config, state, federation, client) -> model``

    :func:`knot_runner.methods.messages.in_rounds` converts a :class:`Method` to a RoundMethod.
    """

    init: Callable[..., FederatedState]
    plan: PlanFunction
    fold: Callable[..., RoundOutcome]
    deployed: Callable[..., ClientModel]
    one_model: bool = True
    #: ``(config, state, federation, round) -> bool``: whether training is over; None: it is if ``plan`` returns []
    is_finished: Callable[..., bool] | None = None
    facts: Callable[[int, list[State]], State] = nothing


class MethodTable(Table[Any]):
    """The table of all methods. The keys are the values of ``method.algorithm``.

    An entry may be a string ``package.module:NAME``. The method is then imported when the entry is first read.
    """

    def __setitem__(self, name: str, method: Method) -> None:
        super().__setitem__(name, method)
        if name not in METHOD_SETTINGS or method.settings is not AveragingSettings:
            METHOD_SETTINGS[name] = method.settings


def _accepted(where: str, method: Method) -> Method:
    expect(where, method, Method)
    cls = method.settings
    if not (isinstance(cls, type) and issubclass(cls, FederatedSettings) and "__dataclass_fields__" in vars(cls)):
        hint = "Use a @dataclass(kw_only=True) class that extends kr.AveragingSettings"
        raise UserError(f"expected a settings class, got {cls!r:.60}", f"{where}.settings", hint=hint)
    if method.message is not nothing and method.fold is None and method.fold_each is None:
        raise UserError("'message' requires 'fold' or 'fold_each'", where, hint="Set one of them, or remove 'message'")
    if method.deployed is None:
        raise UserError("'deployed' is missing", where, hint="For a single global model, use averaging.deployed")
    problems: dict[str, Callable[..., str]] = {
        "init": _parts_problem,
        "plan": _plan_problem,
        "message": _parts_problem,
        "keep": _parts_problem,
        "received": _parts_problem,
        "observe": _row_problem,
        "fold": _fold_problem,
        "fold_each": _fold_problem,
        "deployed": lambda model, *_: unlike(model, ClientModel, "a kr.ClientModel"),
    }
    functions: dict[str, Any] = {}
    for name, problem in problems.items():
        function = getattr(method, name)
        if function not in (None, nothing):
            functions[name] = checked(where, function, problem)
    return replace(method, **functions)


def _plan_problem(requests: Any, _: object, __: object, federation: Federation, *___: object) -> str:
    if problem := unlike(requests, list, "a list of requests"):
        return problem
    for request in requests:
        if not isinstance(request, LocalTraining):
            return f"a list with an item of type {type(request).__name__} instead of LocalTraining"
        if request.client not in federation.numbers:
            return f"a request for client {request.client}, which takes part in no round"
    return ""


def _parts_problem(parts: Any, *_: object) -> str:
    if problem := unlike(parts, dict, "a dict of tensors"):
        return problem
    wrong = [name for name, part in parts.items() if not isinstance(part, Tensor)]
    return f"a dict whose entry {wrong[0]!r} is not a tensor" if wrong else ""


def _fold_problem(result: Any, _: object, before: FederatedState, *__: object) -> str:
    if problem := unlike(result, tuple, "(state, row)"):
        return problem
    if len(result) != 2 or not all(isinstance(part, dict) for part in result):
        return f"a tuple ({', '.join(type(part).__name__ for part in result)}) instead of two dicts (state, row)"
    for name in before.keys() & {"weights", "buffers"}:
        if getattr(result[0].get(name), "shape", None) != before[name].shape:
            return f"a state in which {name!r} is not a tensor of {len(before[name])} values"
    return _parts_problem(result[0]) or _row_problem(result[1])


def _row_problem(row: Any, *_: object) -> str:
    if problem := unlike(row, dict, "a dict (log values)"):
        return problem
    for name, value in row.items():
        if name in metrics.LOG_VALUES or name in metrics.METRICS:
            return f"{name!r}, which is a log value of the program. Use another name"
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return f"the log value {name!r}, which is not a finite number: {value!r:.40}"
    return ""


#: The table of all methods: the methods of all families, and those that plug-ins add.
METHODS = MethodTable(
    "METHODS", {name: path for family in FAMILIES.data.values() for name, path in family.methods.items()}, _accepted
)
