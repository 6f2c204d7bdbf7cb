"""What composing knows of each federated algorithm without importing it: the keys it needs, and what it goes with.

A plug-in's algorithm needs no entry: it may then read any key, has untyped ``options``, and is taken to be as
:class:`FederatedAlgorithm` is by default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from knot_runner.config.plugins import Table, expect
from knot_runner.config.strict import by_key


@dataclass(frozen=True)
class FederatedAlgorithm:
    """What an algorithm is, as far as settings, fleets, privacy and bundles must know."""

    #: its :class:`~knot_runner.methods.contract.Method`, as ``package.module:NAME``; "" = a plug-in adds it to METHODS
    method: str = ""
    #: keys of ``method`` that it needs, beside ``options``; null with algorithms that do not list them
    keys: tuple[str, ...] = ()
    #: dataclass of its ``method.options``; None = it has none
    options: type | None = None
    #: whether the server averages models; else clients have models of their own, perhaps of unlike architectures
    averages: bool = True
    #: whether the server may distil on unlabelled examples, has to, or does not (``method.distil``)
    distil: Literal["optional", "needed", "none"] = "optional"
    #: what a client goes on with as it has trained it, however old the model that it began with
    keeps: Literal["nothing", "head", "model"] = "nothing"
    #: why its server cannot go on while clients still train; "" = it can, with ``sends`` as it is
    needs_rounds: str = "is not known to go without rounds"
    #: what of its state clients are sent, by name or by a prefix that ends with "/": kept for those still training
    sends: tuple[str, ...] = ("weights", "buffers")
    #: why privacy does not cover what clients send; "" = it does: they send one model each, which is averaged, and
    #: nothing else, or the algorithm's own fold clips all that they send
    not_private: str = "are not known to send one model each and nothing else, and only that is clipped"
    #: whether clients send logits instead of models
    sends_logits: bool = False
    #: whether clients keep control variates, whose changes they send along with their models
    controls: bool = False
    #: whether clients choose on held-out examples, so that ``partition.valid`` has a default
    selects: bool = False
    #: why its first rounds depend on how many there are; "" = they do not
    by_all_rounds: str = ""

    @property
    def remembers(self) -> bool:
        """Whether what a client sends depends on the rounds that it took part in before, by what it has kept."""
        return self.controls or self.keeps != "nothing" or not self.averages


def _ours(place: str, *keys: str, **facts: Any) -> FederatedAlgorithm:
    """An algorithm at ``place`` in :mod:`knot_runner.methods.federated`: it goes without rounds and privacy covers it,
    unless ``facts`` say otherwise."""
    return FederatedAlgorithm(
        f"knot_runner.methods.federated.{place}", keys, **({"needs_rounds": "", "not_private": ""} | facts)
    )


def _accepted(where: str, algorithm: FederatedAlgorithm) -> FederatedAlgorithm:
    expect(where, algorithm, FederatedAlgorithm)
    return algorithm


#: ``method.algorithm`` -> what it is.
FEDERATED_ALGORITHMS: Table[FederatedAlgorithm] = Table("FEDERATED_ALGORITHMS", {
    "fedavg": _ours("averaging:FEDAVG"),
    "fedprox": _ours("averaging:FEDAVG", "mu"),
    "scaffold": _ours("scaffold:SCAFFOLD", sends=("weights", "buffers", "control"), controls=True),
    "fedgen": _ours("fedgen:FEDGEN", "generator", sends=("weights", "buffers", "generator/")),
    "fedrep": _ours("personal:SHARED_BODY", "head_epochs", keeps="head"),
    "fedper": _ours("personal:SHARED_BODY", keeps="head"),
    "feddistill": _ours(
        "feddistill:FEDDISTILL",
        "labels",
        distil="none",
        averages=False,
        sends=("label_logits/", "label_counts/"),
        sends_logits=True,
    ),
    "fedmd": _ours("fedmd:FEDMD", distil="needed", averages=False, sends=(), sends_logits=True),
    "local": _ours(
        "own_models:LOCAL",
        distil="none",
        averages=False,
        sends=(),
        not_private="send nothing that noise could cover",
    ),
    "ditto": _ours("ditto:DITTO", "ditto"),
    "apfl": _ours("apfl:APFL", "apfl"),
    "fedala": _ours("fedala:FEDALA", "fedala", keeps="model"),
    "fedsoup": _ours(
        "fedsoup:FEDSOUP",
        "fedsoup",
        keeps="model",
        selects=True,
        by_all_rounds="begins to mix models after a share of all rounds (method.fedsoup.start)",
    ),
}, _accepted)  # fmt: skip
#: Of a plug-in that declares nothing.
UNDECLARED = FederatedAlgorithm()


def federated_algorithm(name: Any) -> FederatedAlgorithm:
    """What the algorithm ``name`` is; :data:`UNDECLARED` without an entry."""
    return FEDERATED_ALGORITHMS.get(name, UNDECLARED) if isinstance(name, str) else UNDECLARED


def own_keys() -> dict[str, list[str]]:
    """Key of ``method`` -> the algorithms whose own it is."""
    return by_key((key, name) for name, algorithm in FEDERATED_ALGORITHMS.items() for key in algorithm.keys)


def algorithms_where(holds: Callable[[FederatedAlgorithm], bool]) -> list[str]:
    """Names of the algorithms that ``holds`` is true of."""
    return [name for name, algorithm in FEDERATED_ALGORITHMS.items() if holds(algorithm)]
