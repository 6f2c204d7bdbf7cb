"""The tables of method families and of kinds of tasks. A plug-in adds a family with :func:`register`.

A family names its functions by strings (``package.module:function``). A function is imported when it is called, so that
composing a run imports neither torch nor the code of reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from knot_runner.config.plugins import Table
from knot_runner.config.plugins import load as load
from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.settings.methods.algorithms import FEDERATED_ALGORITHMS
from knot_runner.config.settings.text_tasks import TaskSettings


@dataclass(frozen=True)
class Family:
    """A family of methods that use the same pipeline and the same result class. An example is "federated"."""

    #: ``kind`` in ``result.json``
    name: str
    #: ``method.algorithm`` -> settings class, or its ``package.module:NAME``
    settings: Mapping[str, type | str]
    #: supported kinds of task, of :data:`TASK_KINDS`
    tasks: tuple[str, ...]
    #: function that runs the method. Arguments: a :class:`~knot_runner.pipelines.context.RunContext`, the inputs that
    #: ``inspect`` returned, and the :class:`~knot_runner.pipelines.context.RunRecord` to which it adds the result
    run: str
    #: function of the same context that returns the run's :class:`~knot_runner.pipelines.context.RunInputs`, without
    #: training
    inspect: str
    #: function of (title, result) that returns the terminal summary
    summary: str = "knot_runner.report.records.run_summary:metrics_summary"
    #: result class, :class:`~knot_runner.results.RunResult` or a subclass
    result: str = "knot_runner.results:RunResult"
    #: ``method.algorithm`` -> :class:`~knot_runner.methods.contract.Method`. Plug-ins add entries to METHODS
    methods: Mapping[str, str] = field(default_factory=dict)
    #: function that checks the settings and builds nested settings; raises :class:`UserError`; "" for none
    check: str = ""
    #: function that returns those of the method's settings (plain data) that can change the numbers; "" for all
    #: settings
    counted: str = ""
    #: whether runs train
    trains: bool = True
    #: kind of training: federated rounds, stages of a distillation between parties, or stages on one pool of examples
    training: Literal["rounds", "stages", "central"] = "rounds"
    #: whether image examples are partitioned among clients or parties
    clients: bool = True
    #: whether a partition may hold out examples from clients (``HeldOut``)
    holds_out: bool = False
    #: whether runs end with one model, which can be a teacher (``method.teachers=[run:...]``)
    ends_with_model: bool = False
    #: whether runs can use a GPU
    on_gpu: bool = True
    #: modules to import before forking a job's process
    preload: tuple[str, ...] = ("knot_runner.pipelines.federated", "knot_runner.engine.federated.loop")


@dataclass(frozen=True)
class TaskKind:
    """A kind of task, such as image tasks."""

    settings: type
    #: a method that supports the task, for messages
    method: str
    #: what the task does, as the end of "a task that ..."
    contents: str
    #: description of its embedded data
    embedded: str = ""
    #: whether models are trained on the task; if not, a run has no model, training or partition
    trains: bool = False
    #: function of the settings and the data folder that raises :class:`UserError` for missing files; "" for none
    check_files: str = ""


DIGITS_NOTE = "scikit-learn's handwritten digits (task.source=embedded)"
#: ``kind`` of a task -> description of the kind. A task without a kind is a text task.
TASK_KINDS: Table[TaskKind] = Table("TASK_KINDS", {
    "texts": TaskKind(TaskSettings, "sinkhorn_e", "classifies texts", "Generated text (task.source=embedded)",
                      trains=True),
    "images": TaskKind(ImageTaskSettings, "fedavg", "classifies images", DIGITS_NOTE, trains=True),
}, papers="settings")  # fmt: skip
FAMILIES: Table[Family] = Table("FAMILIES", {}, papers="settings")
#: ``method.algorithm`` -> dataclass of its settings, of all families.
METHOD_SETTINGS: Table[Any] = Table("METHOD_SETTINGS", {}, papers="settings")


def register(family: Family) -> Family:
    """Add ``family`` to :data:`FAMILIES`, and its algorithms to :data:`METHOD_SETTINGS`. Return ``family``.

    Raises:
        UserError: The name of the family or of an algorithm is already used.
    """
    FAMILIES[family.name] = family
    METHOD_SETTINGS.update(family.settings)
    return family


def family_of(config: Any) -> Family:
    """Return the family of the method whose settings are ``config``."""
    return family_of_algorithm(config.algorithm)


def family_of_algorithm(algorithm: str) -> Family:
    """Return the family to which ``algorithm`` belongs.

    An algorithm that no family lists, such as the algorithm of a plug-in, belongs to the family "federated".
    """
    if algorithm in METHOD_SETTINGS:  # this also registers the papers' families
        family: Family
        for family in FAMILIES.data.values():
            if algorithm in family.settings:
                return family
    return FAMILIES["federated"]


def other_owners(key: str, algorithm: str) -> str:
    """Return an error text for ``method.KEY``, a setting that ``algorithm`` does not have.

    The text lists the algorithms with this setting. If no algorithm has the setting, the text is "".
    """
    owners = [name for name, settings in METHOD_SETTINGS.items() if key in settings.__dataclass_fields__]
    if owners:
        return f"not a setting of method.algorithm={algorithm} (algorithms with this setting: {', '.join(owners)})"
    return ""


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Import the function ``name``, given as ``package.module:function``; call it and return the result."""
    return load(name)(*arguments, **options)


register(Family(
    "distillation", {
        "knot": "knot_runner.config.settings.methods.knot:KnotSettings",
        "mutual": "knot_runner.config.settings.methods.knot:MutualSettings",
        "teachers": "knot_runner.config.settings.methods.knot:TeachersSettings",
    }, ("texts", "images"),
    run="knot_runner.pipelines.distillation:run_distillation",
    inspect="knot_runner.pipelines.distillation:inspect_distillation",
    summary="knot_runner.report.records.run_summary:stages_summary",
    result="knot_runner.results.training:StagesResult",
    methods={
        "knot": "knot_runner.methods.knot:KNOT",
        "mutual": "knot_runner.methods.mutual:MUTUAL",
        "teachers": "knot_runner.methods.knot:KNOT",
    },
    check="knot_runner.config.settings.distillation_checks:check_parties_method",
    training="stages", ends_with_model=True,
    preload=("knot_runner.pipelines.distillation", "torch._dynamo", "transformers.models.bert.modeling_bert"),
))  # fmt: skip
register(Family(
    "distill", {"distill": "knot_runner.config.settings.methods.distill:DistillSettings"}, ("texts", "images"),
    run="knot_runner.pipelines.distillation:run_distillation",
    inspect="knot_runner.pipelines.distillation:inspect_distillation",
    summary="knot_runner.report.records.run_summary:distill_summary",
    result="knot_runner.results.training:DistillResult",
    methods={"distill": "knot_runner.methods.distill.distill:DISTILL"},
    check="knot_runner.config.settings.distillation_checks:check_distill_method",
    counted="knot_runner.config.settings.methods.distill:counted_teachers",
    training="central", clients=False, ends_with_model=True,
    preload=("knot_runner.pipelines.distillation", "torch._dynamo"),
))  # fmt: skip
register(Family(
    "federated", FEDERATED_ALGORITHMS, ("images", "texts"),
    run="knot_runner.pipelines.federated:run_federated",
    inspect="knot_runner.pipelines.federated:inspect_federated",
    summary="knot_runner.report.records.run_summary:federated_summary",
    result="knot_runner.results.federated:FederatedResult",
    methods={name: algorithm.functions for name, algorithm in FEDERATED_ALGORITHMS.items()},
    check="knot_runner.config.settings.checks:check_federated_method",
    holds_out=True, ends_with_model=True,
))  # fmt: skip
