"""Settings of the partitions that divide examples among clients, with one dataclass per kind of partition."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.plugins import Table
from knot_runner.config.settings.families import METHOD_SETTINGS
from knot_runner.config.settings.sizes import AT_LEAST_ONE, NOT_NEGATIVE, Fraction, Items, ItemsOrNone, Parties
from knot_runner.config.strict import AtMost, Holds, require
from knot_runner.util.config_yaml import Config

Alpha = Annotated[
    float, Holds(lambda value: 0 < value <= 1e6, "a number above 0, at most 1e6 (for IID data, use partition.kind=iid)")
]


@dataclass
class Natural:
    """The data set's own clients, such as writers."""

    kind: str
    #: user (writer, or text data set), file (images), dialogue (texts), or a name in ``columns.clients`` (texts)
    by: str
    #: minimum training examples per client; smaller clients are left out
    least: Items
    #: number of clients to draw; null uses all
    num_clients: Parties | None
    #: embedded digits: Dirichlet concentration
    alpha: Alpha
    #: embedded digits: number of clients
    embedded_clients: Parties


@dataclass
class _Clients:
    """A partition over a given number of clients."""

    kind: str
    #: number of clients
    num_clients: Parties


@dataclass
class Iid(_Clients):
    """Equal random shares of the examples."""


@dataclass
class Dirichlet(_Clients):
    """Divides each class over clients by Dirichlet proportions (FLex&Chill's public code)."""

    #: Dirichlet concentration; smaller values give fewer classes per client
    alpha: Alpha
    #: minimum examples per class and client; null: 10 (public code), at most half of the smallest class
    floor: ItemsOrNone | None


@dataclass
class DirichletClients(_Clients):
    """Clients of equal size, each with its own Dirichlet class mixture."""

    #: Dirichlet concentration; smaller values give fewer classes per client
    alpha: Alpha


@dataclass
class Shards(_Clients):
    """Sorts examples by class and assigns equal shards to clients (McMahan et al. 2017)."""

    #: shards per client
    shards_per_client: Parties


@dataclass
class Pairs(_Clients):
    """Planted clusters of at least two clients (FedWaD). Each cluster has its own group of classes."""

    #: class numbers per group; null: pairs of neighboring classes, more per group if there are too few clients
    groups: list[list[int]] | None

    def __post_init__(self) -> None:
        groups = 2
        if self.groups is not None:
            groups = len(self.groups)
            require(groups >= 2, "groups", "expected at least two groups of classes")
            flat = list(itertools.chain(*self.groups))
            require(
                all(self.groups) and len(set(flat)) == len(flat),
                "groups",
                f"expected nonempty groups that share no class, got {self.groups}",
            )
        problem = f"expected at least two clients for each of {groups} groups, got {self.num_clients} in total"
        require(self.num_clients >= 2 * groups, "num_clients", problem)


@dataclass
class Manual(_Clients):
    """Each client has consecutive classes; client sizes and class shares are lognormal (Ditto).

    Several clients may have the same example.
    """

    #: classes per client; null: 5 (Ditto), or all if there are fewer
    classes_per_client: Annotated[int, AT_LEAST_ONE] | None
    #: mean of the log size
    mu: Annotated[float, AtMost(100)]
    #: standard deviation of the log size
    sigma: Annotated[float, AtMost(50), NOT_NEGATIVE]
    #: examples added to each client
    offset: Items


@dataclass
class Centralized:
    """One client with all examples."""

    kind: str


@dataclass
class PartyShares:
    """Additional settings for distillation methods: shares of examples."""

    #: share for the server's global model
    server: Fraction = 0.2
    #: share for the unlabeled transfer set; null with a separate ``transfer`` data set
    transfer: Fraction | None = 0.2
    #: share per party for epoch selection; null: 0.1 if an epoch is selected or method.bound is true
    valid: Fraction | None = None

    def __post_init__(self) -> None:
        total = self.server + (self.transfer or 0)
        require(
            total < 1,
            "transfer",
            f"the sum of 'server' and 'transfer' is {total:g}, so no images remain for the clients. Use a sum below 1",
        )


@dataclass
class HeldOut:
    """Data that federated methods hold out or alter."""

    #: unlabeled share for server distillation, withheld from clients; null: 0.2 if the server distills
    transfer: Fraction | None = None
    #: share per client for model selection; null: 0.2 if the method or its personalization needs it
    valid: Fraction | None = None
    #: share of clients that never train and are evaluated separately
    unseen: Fraction | None = None
    #: reversed labels (conflict) or rotated images (shift) for half of the clients; random labels (noise) for 30%
    alter: Literal["conflict", "shift", "noise"] | None = None


#: Keys of ``partition`` that exist for all kinds of partitions. Null selects the default of the method.
SHARE_KEYS = ("server", "transfer", "valid", "unseen", "alter")
#: Shares that reduce the training examples, and that have a default for some methods only.
TRAINING_SHARES = ("partition.transfer", "partition.valid", "method.valid")
#: Default share of the training images on which a distillation selects epochs.
STAGES_VALID = 0.1
#: Default ``partition.valid`` of methods that select among the clients' own models.
PERSONAL_VALID = 0.2


def transfer_group(config: Config) -> Config | None:
    """Return the group ``transfer`` of a composed ``config``; None for ``transfer=none``.

    This group selects a separate data set as the transfer set.
    """
    return config.get("transfer") or None


def given_shares(partition: Config, keys: Iterable[str] = SHARE_KEYS) -> Config:
    """Return the entries of ``partition`` whose key is in ``keys`` and whose value is not null."""
    return {key: partition[key] for key in keys if partition.get(key) is not None}


def party_shares(config: Config) -> Config:
    """Return the fields of :class:`PartyShares`, read from the composed ``config`` of a distillation.

    Defaults replace null. The values are not checked.
    """
    defaults = vars(PartyShares(valid=stages_valid(config)))
    if transfer_group(config) is not None:
        defaults |= {"transfer": None}
    return defaults | given_shares(config["partition"], defaults)


def stages_valid(config: Config) -> float | None:
    """Return the default of ``valid``, the fraction of training images that a distillation holds out for validation.

    The default is 0.1, or None if validation is not needed. Validation is needed if a training stage selects its
    best epoch, or if ``method.bound`` is true.
    """
    method = config["method"]
    training = config["training"]
    algorithm = method["algorithm"]
    stages = {"local", "pretrain", "distill"}
    if algorithm == "teachers":
        stages.remove("distill")
    if algorithm == "distill":
        stages.remove("pretrain")
        if all(teacher["kind"] == "run" for teacher in method["teachers"]):
            stages.remove("local")
        if method.get("synthesis") is not None:  # the student selects its epoch on generated images
            stages.remove("distill")
    if method.get("bound") or any(training[stage].get("select") == "best" for stage in stages):
        return STAGES_VALID
    return None


def held_out_shares(config: Config) -> Config:
    """Return the fields of :class:`HeldOut`, read from the composed ``config`` of a federated run.

    The values are not checked. Two defaults replace null:

    - ``transfer`` is 0.2 if the server distills without a separate transfer set.
    - ``valid`` is 0.2 if the method or the personalization needs held-out examples.

    Fields that are still null are left out.
    """
    partition = config.get("partition") or {}
    method = config.get("method") or {}
    shares: Config = {}
    if method.get("server_distillation") is not None:
        shares["transfer"] = PartyShares.transfer
    settings = METHOD_SETTINGS.get(str(method.get("algorithm")))
    if _reads_valid(method.get("personalization")) or getattr(settings, "selects", False):
        shares["valid"] = PERSONAL_VALID
    shares |= given_shares(partition, vars(HeldOut()))
    if transfer_group(config) is not None or has_transfer_set(config["task"]):
        shares.pop("transfer", None)
    return shares


def _reads_valid(personal: Config | None) -> bool:
    """Return whether a composed personalization selects or trains on held-out examples."""
    if not isinstance(personal, dict):
        return False
    from knot_runner.config.settings.methods.personalization import PERSONALIZATION_SETTINGS

    cls = PERSONALIZATION_SETTINGS.get(str(personal.get("kind")))
    return getattr(cls, "reads_valid", False) or personal.get("select") == "valid"


def unlike_shares(configs: Iterable[Mapping[str, Any]], free: Collection[str] = ()) -> str:
    """Return a text that lists which of :data:`TRAINING_SHARES` differ between runs; "" if none differ.

    The text ends with the overrides that make these shares equal.

    Args:
        configs: Configs of the runs.
        free: Keys of shares that may differ.
    """
    groups = list(configs)
    unlike = []
    overrides = []
    for key in TRAINING_SHARES:
        group, name = key.split(".")
        values = dict.fromkeys((config.get(group) or {}).get(name) for config in groups)
        if len(values) > 1 and key not in free:
            listed = " and ".join("null" if value is None else f"{value:g}" for value in values)
            unlike.append(f"{key} is {listed}")
            overrides.append(f"{key}={max(value or 0 for value in values):g}")
    if not unlike:
        return ""
    return f"{', '.join(unlike)}; use {' '.join(overrides)} to make the shares equal"


def has_transfer_set(task: Config) -> bool:
    """Return whether a data set of the composed ``task`` has ``role=transfer``."""
    datasets = task.get("datasets")
    return isinstance(datasets, dict) and any(data.get("role") == "transfer" for data in datasets.values())


#: ``partition.kind`` -> its settings.
PARTITION_SETTINGS: Table[type] = Table(
    "PARTITION_SETTINGS",
    {
        "natural": Natural,
        "iid": Iid,
        "dirichlet": Dirichlet,
        "dirichlet_clients": DirichletClients,
        "shards": Shards,
        "pairs": Pairs,
        "manual": Manual,
        "centralized": Centralized,
    },
)
