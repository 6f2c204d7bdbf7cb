"""Settings: one dataclass per config group, built strictly (``config/strict.py``) from the composed YAML.

Start with ``run.py``, the settings of a run. ``tasks/``: data and labels; ``methods/``: algorithms; ``checks/``:
compatibility of the two.
"""

from knot_runner.config.settings.fleet import FleetSettings
from knot_runner.config.settings.groups import (
    TRACKER_EXTRAS,
    CentralTraining,
    HardwareSettings,
    ModelSettings,
    PathSettings,
    StageSettings,
    TrackerSettings,
    TrainingSettings,
)
from knot_runner.config.settings.methods.algorithms import (
    ApflSettings,
    DittoSettings,
    FedalaSettings,
    FedDistillSettings,
    FedGenSettings,
    FedMdSettings,
    FedPerSettings,
    FedProxSettings,
    FedRepSettings,
    FedsoupSettings,
)
from knot_runner.config.settings.methods.distill import DistillSettings, teacher_names
from knot_runner.config.settings.methods.federated import (
    AveragingSettings,
    FederatedSettings,
    FederatedTraining,
    Schedule,
    ServerSettings,
    Stragglers,
    architecture_settings,
    server_distillation,
)
from knot_runner.config.settings.methods.knot import (
    BiasSettings,
    EntropySettings,
    KnotSettings,
    MutualSettings,
    SinkhornSettings,
    TeachersSettings,
)
from knot_runner.config.settings.methods.personalization import (
    CossimSettings,
    FinetuneSettings,
    LocalSettings,
    SoupSettings,
)
from knot_runner.config.settings.methods.server_distillation import LabelDistillation, ServerDistillation
from knot_runner.config.settings.methods.transport import EncoderSettings, FedwadSettings, OtddSettings, TextFeatures
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
    Centralized,
    Dirichlet,
    DirichletClients,
    Iid,
    Manual,
    Natural,
    Pairs,
    PartyShares,
    Shards,
)
from knot_runner.config.settings.run import Settings, build_run
from knot_runner.config.settings.run_id import run_id
from knot_runner.config.settings.tasks.images import ImageHub, ImageTaskSettings
from knot_runner.config.settings.tasks.task import (
    DatasetSettings,
    File,
    HubSource,
    Labels,
    LocalSource,
    Role,
    SplitFile,
    TaskSettings,
    TextColumns,
)
from knot_runner.config.strict import build
