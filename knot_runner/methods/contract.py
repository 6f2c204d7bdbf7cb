"""The interface of a method (pure functions between rounds of requests, over a federation), and the table of all
methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from knot_runner.config.plugins import Table, checked, expect, unlike
from knot_runner.config.settings.families import FAMILIES, METHOD_SETTINGS, load
from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings
from knot_runner.util.errors import UserError


def scored(row: dict[str, object]) -> dict[str, object]:
    """A log row without the scores of models that were trained without held-out examples, which are None."""
    return {name: value for name, value in row.items() if value is not None}


@dataclass(frozen=True)
class Exchange:
    """A second step after the fold of a federated round: inference by models, then perhaps further training.

    ``plan_inference(hp, state, federation, round, trained) -> inferences``, None where nothing follows: in private
    training a round without participants is one, too, whose sums are noise;
    ``plan_training(hp, state, federation, round, trained, logits) -> requests``, perhaps none; ``fold(hp, state,
    federation, round, trained, logits, distilled) -> (state, row)``, as of a method. ``state``: after the method's
    fold; ``trained``: the results of the round's clients; ``logits``: those of the inferences, in order;
    ``distilled``: those of the training. ``answered_by``: who runs the inferences, for counting costs.
    """

    plan_inference: Callable[..., list[Any] | None]
    plan_training: Callable[..., list[Any]]
    fold: Callable[..., tuple[dict[str, Any], dict[str, Any]]]
    answered_by: Literal["server", "clients"] = "server"


@dataclass(frozen=True)
class RoundWork:
    """The work of clients and server in a federated round: ``requests`` for local training; after the fold,
    ``inferences`` over ``classes`` classes (0: none), and ``distillation``, requests for further training."""

    requests: list[Any]
    inferences: list[Any] = field(default_factory=list)
    distillation: list[Any] = field(default_factory=list)
    classes: int = 0


@dataclass(frozen=True)
class Traffic:
    """The traffic of a federated method. ``sent``: in words, for the result; ``count(hp, federation, work) -> (down,
    up)``: bytes that all clients of a round (:class:`RoundWork`) receive and send."""

    sent: str
    count: Callable[..., tuple[int, int]]


@dataclass(frozen=True)
class Method:
    """``init(hp, federation) -> state``, a flat dict that a checkpoint can hold; ``plan(hp, state, federation, round)
    -> requests``, none when the method has finished; ``fold(hp, state, federation, round, requests, outcomes) ->
    (state, row)``, ``row`` being the method's own log entries of the round; ``deployed(hp, state, federation, client)
    -> model`` that a client uses, ``one_model``: the same for all, which is then tested on all test examples; else each
    client's own model is tested on its own (``evaluated`` of the result). Methods whose models are artifacts name
    those in their state and have no ``deployed``.
    """

    init: Callable[..., dict[str, Any]]
    plan: Callable[..., list[Any]]
    fold: Callable[..., tuple[dict[str, Any], dict[str, Any]]]
    deployed: Callable[..., Any] | None = None
    one_model: bool = True
    #: of federated methods that exchange more than models
    exchange: Exchange | None = None
    #: ``is_finished(hp, state, federation, round)``: whether training is over, where a round may be without requests
    #: and yet count; None: it is when it plans nothing
    is_finished: Callable[..., bool] | None = None
    #: of federated methods; None: every client receives and sends a whole model
    traffic: Traffic | None = None
    #: class of the settings of a plug-in's method
    settings: type = AveragingSettings


class MethodTable(Table[Any]):
    """``method.algorithm`` -> its functions. An entry given as ``package.module:NAME`` is imported when it is first
    asked for, so that a run imports its own method and no other."""

    def __getitem__(self, name: str) -> Method:
        entry = self.data[name]
        method: Method = load(entry) if isinstance(entry, str) else entry
        return method

    def __setitem__(self, name: str, method: Method) -> None:
        super().__setitem__(name, method)
        if name not in METHOD_SETTINGS or method.settings is not AveragingSettings:
            METHOD_SETTINGS[name] = method.settings


def _accepted(where: str, method: Method) -> Method:
    expect(where, method, Method)
    cls = method.settings
    if not (isinstance(cls, type) and issubclass(cls, FederatedSettings) and "__dataclass_fields__" in vars(cls)):
        hint = "Use a class with @dataclass(kw_only=True) that extends kr.AveragingSettings"
        raise UserError(f"{cls!r:.60} is not a class of settings", f"{where}.settings", hint=hint)
    return replace(
        method,
        init=checked(where, method.init, lambda state, *_: unlike(state, dict, "a dict, the state")),
        plan=checked(where, method.plan, lambda requests, *_: unlike(requests, list, "a list of requests")),
        fold=checked(where, method.fold, _fold_problem),
        deployed=method.deployed and checked(where, method.deployed, _deployed_problem),
    )


def _deployed_problem(model: Any, *_: Any) -> str:
    return "None instead of a model" if model is None else ""


def _fold_problem(result: Any, *_: Any) -> str:
    problem = unlike(result, tuple, "(state, row)")
    if problem or (len(result) == 2 and all(isinstance(part, dict) for part in result)):
        return problem
    return f"a tuple of {', '.join(type(part).__name__ for part in result)} instead of two dicts (state, row)"


#: All methods: those that families name, and what plug-ins add.
METHODS = MethodTable(
    "METHODS", {name: place for family in FAMILIES.values() for name, place in family.methods.items()}, _accepted
)
