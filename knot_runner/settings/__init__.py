"""Settings: one dataclass per config group, built strictly (:mod:`knot_runner.strict`) from the composed YAML."""

from __future__ import annotations

from knot_runner.settings.federated import (
    FederatedSettings,
    FederatedTraining,
    Schedule,
    ServerSettings,
    Stragglers,
)
from knot_runner.settings.groups import (
    HardwareSettings,
    ModelSettings,
    PathSettings,
    StageSettings,
    TrackerSettings,
    TrainingSettings,
)
from knot_runner.settings.images import ImageFiles, ImageHub, ImageTaskSettings
from knot_runner.settings.method import (
    LOSS_SETTINGS,
    BiasSettings,
    EntropySettings,
    KnotSettings,
    SinkhornSettings,
    TeachersSettings,
)
from knot_runner.settings.networks import (
    NETWORK_SETTINGS,
    CnnSettings,
    ConvSettings,
    ImageModel,
    MlpSettings,
    ResnetSettings,
)
from knot_runner.settings.partition import (
    PARTITION_SETTINGS,
    Centralised,
    Dirichlet,
    DirichletClients,
    Iid,
    Manual,
    Natural,
    Pairs,
    Shards,
)
from knot_runner.settings.probe import ProbeSettings
from knot_runner.settings.run import METHOD_SETTINGS, NOT_IN_RUN_ID, Settings, build_run, run_id
from knot_runner.settings.task import (
    Columns,
    DatasetSettings,
    EmbeddedSource,
    File,
    HubSource,
    Labels,
    LocalSource,
    Role,
    Split,
    TaskSettings,
)
from knot_runner.strict import build, digest, rule

__all__ = [
    "BiasSettings",
    "Centralised",
    "CnnSettings",
    "Columns",
    "ConvSettings",
    "DatasetSettings",
    "Dirichlet",
    "DirichletClients",
    "EmbeddedSource",
    "EntropySettings",
    "FederatedSettings",
    "FederatedTraining",
    "File",
    "HardwareSettings",
    "HubSource",
    "Iid",
    "ImageFiles",
    "ImageHub",
    "ImageModel",
    "ImageTaskSettings",
    "KnotSettings",
    "LOSS_SETTINGS",
    "Labels",
    "LocalSource",
    "METHOD_SETTINGS",
    "Manual",
    "MlpSettings",
    "ModelSettings",
    "NETWORK_SETTINGS",
    "NOT_IN_RUN_ID",
    "Natural",
    "PARTITION_SETTINGS",
    "Pairs",
    "PathSettings",
    "ProbeSettings",
    "ResnetSettings",
    "Role",
    "Schedule",
    "ServerSettings",
    "Settings",
    "Shards",
    "SinkhornSettings",
    "Split",
    "StageSettings",
    "Stragglers",
    "TaskSettings",
    "TeachersSettings",
    "TrackerSettings",
    "TrainingSettings",
    "build",
    "build_run",
    "digest",
    "rule",
    "run_id",
]
