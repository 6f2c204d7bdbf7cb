"""Families of methods: the registration of each kind of run, in one place.

A family gives its modules as strings (``package.module:function``), so that composing imports neither torch nor
reports; :func:`load` imports one when it is needed. The dataclasses of settings are separate from the algorithms for
the same reason. A plug-in registers a family of its own by :func:`register`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from knot_runner.config.plugins import Table
from knot_runner.config.settings.methods.algorithms import FEDERATED_ALGORITHMS
from knot_runner.config.settings.methods.distill import DistillSettings
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.config.settings.methods.fedwad import (
    CoresetKnnSettings,
    CoresetSettings,
    DatasetDistanceSettings,
    FederatedDistanceSettings,
)
from knot_runner.config.settings.methods.knot import KnotSettings, MutualSettings, ProbeSettings, TeachersSettings


@dataclass(frozen=True)
class Family:
    """One family of methods."""

    #: ``kind`` in ``result.json``
    name: str
    #: ``method.algorithm`` -> dataclass of the method's settings
    settings: Mapping[str, type]
    #: kinds of task that it takes: texts, images, image_sets, gaussians
    tasks: tuple[str, ...]
    #: a run, whole: :class:`~knot_runner.pipelines.context.RunContext` -> its ``result``
    run: str
    #: what the run reads, without training: the same -> :class:`~knot_runner.pipelines.context.RunInputs`
    inspect: str
    #: a finished run in the terminal: (title, result) -> what rich prints
    summary: str
    #: the dataclass of a result, :class:`~knot_runner.results.base.RunResult` or derived from it
    result: str = "knot_runner.results.base:RunResult"
    #: ``method.algorithm`` -> its :class:`~knot_runner.methods.contract.Method`; a plug-in adds its own to METHODS
    methods: Mapping[str, str] = field(default_factory=dict)
    #: checks a run's settings beyond their types, and builds nested ones: (settings), raises :class:`UserError`;
    #: "" = nothing to check
    check: str = ""
    #: whether its runs train
    trains: bool = True
    #: what ``training`` describes: rounds over clients, which a partition makes, or the stages of a distillation
    training: str = "rounds"
    #: whether a partition deals the examples of images to clients or parties; else all are one pool
    clients: bool = True
    #: whether a partition may hold examples out from its clients (``HeldOut``)
    holds_out: bool = False
    #: whether its runs end with one model, which may then teach (``method.teachers=[run:...]``)
    ends_with_model: bool = False
    #: whether a GPU computes any of it
    on_gpu: bool = True
    #: what a job's process imports before it is forked
    preload: tuple[str, ...] = ("knot_runner.pipelines.federated", "knot_runner.engine.federated.lean.worker")


FAMILIES: Table[Family] = Table("FAMILIES", {})
#: ``method.algorithm`` -> dataclass of its settings, of all families.
METHOD_SETTINGS: Table[type] = Table("METHOD_SETTINGS", {})


def register(family: Family) -> Family:
    """Add ``family`` and the settings of its algorithms. Raises :class:`UserError` for a name that is taken."""
    FAMILIES[family.name] = family
    METHOD_SETTINGS.update(family.settings)
    return family


def family_of(hp: Any) -> Family:
    """The family of a method's settings ``hp`` (or of their class)."""
    cls = hp if isinstance(hp, type) else type(hp)
    if issubclass(cls, FederatedSettings):
        return FAMILIES["federated"]
    return next(family for family in FAMILIES.values() if cls in family.settings.values())


def family_of_algorithm(algorithm: str) -> Family:
    """Returns the family of ``algorithm``; an unknown one is a plug-in's federated algorithm."""
    return family_of(METHOD_SETTINGS.get(algorithm, FederatedSettings))


def other_owners(key: str, algorithm: Any) -> str:
    """Return what is wrong with the setting ``key`` of ``method`` that only other algorithms than ``algorithm`` have;
    "" where none has it."""
    classes = [pair for family in FAMILIES.values() for pair in family.settings.items()]
    owners = [name for name, cls in classes if key in {own.name for own in fields(cls)}]
    return f"not a setting of method.algorithm={algorithm}, but of {', '.join(owners)}" if owners else ""


def federated_algorithms_where(holds: Callable[[type[FederatedSettings]], bool]) -> list[str]:
    """Return the names of the federated algorithms whose class of settings ``holds`` is true of."""
    classes = ((name, cls) for name, cls in METHOD_SETTINGS.items() if issubclass(cls, FederatedSettings))
    return [name for name, cls in classes if holds(cls)]


def load(name: str) -> Any:
    """Imports and returns ``package.module:function``."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Imports and calls ``package.module:function``."""
    return load(name)(*arguments, **options)


for _family in (
    Family(
        "distillation",
        {"knot": KnotSettings, "mutual": MutualSettings, "teachers": TeachersSettings},
        ("texts", "images"),
        run="knot_runner.pipelines.distillation:run_distillation",
        inspect="knot_runner.pipelines.distillation:inspect_distillation",
        summary="knot_runner.report.records.run_summary:stages_summary",
        result="knot_runner.results.training:StagesResult",
        methods={
            "knot": "knot_runner.methods.knot:KNOT",
            "mutual": "knot_runner.methods.mutual:MUTUAL",
            "teachers": "knot_runner.methods.knot:KNOT",
        },
        check="knot_runner.config.settings.checks.methods:check_parties_method",
        training="stages",
        ends_with_model=True,
        preload=("knot_runner.pipelines.distillation", "torch._dynamo", "transformers.models.bert.modeling_bert"),
    ),
    Family(
        "distill",
        {"distill": DistillSettings},
        ("texts", "images"),
        run="knot_runner.pipelines.distillation:run_distillation",
        inspect="knot_runner.pipelines.distillation:inspect_distillation",
        summary="knot_runner.report.records.distill_summary:distill_summary",
        result="knot_runner.results.training:DistillResult",
        methods={"distill": "knot_runner.methods.distill.distill:DISTILL"},
        check="knot_runner.config.settings.checks.distill:check_distill_method",
        training="stages",
        clients=False,
        ends_with_model=True,
        preload=("knot_runner.pipelines.distillation", "torch._dynamo"),
    ),
    Family(
        "federated",
        FEDERATED_ALGORITHMS,
        ("images", "texts"),
        run="knot_runner.pipelines.federated:run_federated",
        inspect="knot_runner.pipelines.federated:inspect_federated",
        summary="knot_runner.report.records.run_summary:federated_summary",
        result="knot_runner.results.federated:FederatedResult",
        methods={name: algorithm.functions for name, algorithm in FEDERATED_ALGORITHMS.items()},
        check="knot_runner.config.settings.checks.methods:check_federated_method",
        holds_out=True,
        ends_with_model=True,
    ),
    Family(
        "probe",
        {"temperature_probe": ProbeSettings},
        ("images",),
        run="knot_runner.pipelines.probing:run_probing",
        inspect="knot_runner.pipelines.probing:inspect_probing",
        summary="knot_runner.report.records.run_summary:probe_summary",
        result="knot_runner.results.training:ProbeResult",
    ),
    Family(
        "distance",
        {"federated_distance": FederatedDistanceSettings},
        ("gaussians",),
        run="knot_runner.pipelines.distance:run_distance",
        inspect="knot_runner.pipelines.distance:inspect_distance",
        summary="knot_runner.report.records.distance:distance_summary",
        result="knot_runner.results.training:DistanceResult",
        preload=("knot_runner.pipelines.distance",),
        trains=False,
        on_gpu=False,
    ),
    Family(
        "matrix",
        {"dataset_distance": DatasetDistanceSettings},
        ("images", "image_sets", "texts"),
        run="knot_runner.pipelines.matrix:run_matrix",
        inspect="knot_runner.pipelines.matrix:inspect_matrix",
        summary="knot_runner.report.records.distance:matrix_summary",
        result="knot_runner.results.training:MatrixResult",
        trains=False,
        on_gpu=False,
    ),
    Family(
        "coreset",
        {"coreset": CoresetSettings},
        ("images", "texts"),
        run="knot_runner.pipelines.coreset:run_coreset",
        inspect="knot_runner.pipelines.coreset:inspect_coreset",
        summary="knot_runner.report.records.distance:coreset_summary",
        result="knot_runner.results.training:CoresetResult",
        trains=False,
        on_gpu=False,
    ),
    Family(
        "knn",
        {"coreset_knn": CoresetKnnSettings},
        ("images", "texts"),
        run="knot_runner.pipelines.coreset_knn:run_coreset_knn",
        inspect="knot_runner.pipelines.coreset_knn:inspect_coreset_knn",
        summary="knot_runner.report.records.distance:knn_summary",
        result="knot_runner.results.training:KnnResult",
        trains=False,
        on_gpu=False,
    ),
):
    register(_family)
