"""Settings: one dataclass per config group, built strictly (``config/strict.py``) from the composed YAML."""

from __future__ import annotations

from knot_runner.config.settings.distil import DistilSettings, teacher_names
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
    GaussiansSettings,
    ImageSetsSettings,
)
from knot_runner.config.settings.fit import Misfit, fitting_choices
from knot_runner.config.settings.fleet import FleetSettings
from knot_runner.config.settings.groups import (
    TRACKER_EXTRAS,
    HardwareSettings,
    ModelSettings,
    PathSettings,
    StageSettings,
    TrackerSettings,
    TrainingSettings,
)
from knot_runner.config.settings.images import ImageHub, ImageTaskSettings
from knot_runner.config.settings.method import (
    BiasSettings,
    EntropySettings,
    KnotSettings,
    MutualSettings,
    SinkhornSettings,
    TeachersSettings,
)
from knot_runner.config.settings.networks import (
    CnnSettings,
    ConvSettings,
    ImageModel,
    MlpSettings,
    MobilenetSettings,
    ResnetSettings,
    VggSettings,
    WrnSettings,
)
from knot_runner.config.settings.partition import (
    PARTITION_SETTINGS,
    Centralised,
    Dirichlet,
    DirichletClients,
    HeldOut,
    Iid,
    Manual,
    Natural,
    Pairs,
    PartyShares,
    Shards,
)
from knot_runner.config.settings.personal_methods import ApflSettings, DittoSettings, FedalaSettings, FedsoupSettings
from knot_runner.config.settings.personalisation import (
    CossimSettings,
    EvaluateSettings,
    FinetuneSettings,
    LandscapeSettings,
    LocalSettings,
    SoupSettings,
    TransferMatrixSettings,
)
from knot_runner.config.settings.probe import ProbeSettings
from knot_runner.config.settings.run import Settings, build_run
from knot_runner.config.settings.run_id import run_id
from knot_runner.config.settings.server_distillation import LabelDistillation, ServerDistillation
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
from knot_runner.config.settings.text_features import TextFeatures
from knot_runner.config.settings.transport import (
    EncoderSettings,
    FedwadSettings,
    OtddSettings,
)
from knot_runner.config.strict import build
