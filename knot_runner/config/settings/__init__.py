"""Settings: one dataclass per config group, built strictly (``config/strict.py``) from the composed YAML."""

from __future__ import annotations

from knot_runner.config.settings.families import METHOD_SETTINGS
from knot_runner.config.settings.federated import (
    FederatedSettings,
    FederatedTraining,
    Schedule,
    ServerSettings,
    Stragglers,
)
from knot_runner.config.settings.fedwad import (
    CoresetKnnSettings,
    CoresetSettings,
    DatasetDistanceSettings,
    FederatedDistanceSettings,
    GaussiansSettings,
    ImageSetsSettings,
)
from knot_runner.config.settings.groups import (
    HardwareSettings,
    ModelSettings,
    PathSettings,
    StageSettings,
    TrackerSettings,
    TrainingSettings,
)
from knot_runner.config.settings.images import ImageFiles, ImageHub, ImageTaskSettings
from knot_runner.config.settings.method import (
    LOSS_SETTINGS,
    BiasSettings,
    EntropySettings,
    KnotSettings,
    SinkhornSettings,
    TeachersSettings,
)
from knot_runner.config.settings.networks import (
    NETWORK_SETTINGS,
    CnnSettings,
    ConvSettings,
    ImageModel,
    MlpSettings,
    ResnetSettings,
)
from knot_runner.config.settings.partition import (
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
from knot_runner.config.settings.probe import ProbeSettings
from knot_runner.config.settings.run import Misfit, Settings, build_run
from knot_runner.config.settings.run_id import NOT_IN_RUN_ID, run_id
from knot_runner.config.settings.task import (
    DatasetSettings,
    EmbeddedSource,
    File,
    HubSource,
    Labels,
    LocalSource,
    Role,
    SplitFile,
    TaskSettings,
    TextColumns,
)
from knot_runner.config.settings.transport import (
    ClusteringSettings,
    EncoderSettings,
    FedwadSettings,
    OtddSettings,
    PrivacySettings,
)
from knot_runner.config.strict import build, digest, require

__all__ = [
    "BiasSettings",
    "Centralised",
    "ClusteringSettings",
    "CnnSettings",
    "TextColumns",
    "ConvSettings",
    "CoresetKnnSettings",
    "CoresetSettings",
    "DatasetDistanceSettings",
    "DatasetSettings",
    "Dirichlet",
    "DirichletClients",
    "EmbeddedSource",
    "EncoderSettings",
    "EntropySettings",
    "FederatedDistanceSettings",
    "FederatedSettings",
    "FederatedTraining",
    "FedwadSettings",
    "File",
    "GaussiansSettings",
    "HardwareSettings",
    "HubSource",
    "Iid",
    "ImageFiles",
    "ImageHub",
    "ImageModel",
    "ImageSetsSettings",
    "ImageTaskSettings",
    "KnotSettings",
    "LOSS_SETTINGS",
    "Labels",
    "LocalSource",
    "METHOD_SETTINGS",
    "Manual",
    "Misfit",
    "MlpSettings",
    "ModelSettings",
    "NETWORK_SETTINGS",
    "NOT_IN_RUN_ID",
    "Natural",
    "OtddSettings",
    "PARTITION_SETTINGS",
    "Pairs",
    "PathSettings",
    "PrivacySettings",
    "ProbeSettings",
    "ResnetSettings",
    "Role",
    "Schedule",
    "ServerSettings",
    "Settings",
    "Shards",
    "SinkhornSettings",
    "SplitFile",
    "StageSettings",
    "Stragglers",
    "TaskSettings",
    "TeachersSettings",
    "TrackerSettings",
    "TrainingSettings",
    "build",
    "build_run",
    "digest",
    "require",
    "run_id",
]
