"""Settings of how images are dealt to clients: one dataclass per partition, in one table."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.plugins import Table
from knot_runner.config.settings.families import METHOD_SETTINGS
from knot_runner.config.settings.sizes import AT_LEAST_ONE, NOT_NEGATIVE, Fraction, Items, ItemsOrNone, Parties
from knot_runner.config.strict import AtMost, Holds, require, without

Alpha = Annotated[float, Holds(lambda value: 0 < value <= 1e6, "is not in (0, 1e6]; kind=iid is its limit")]


@dataclass
class Natural:
    """The source's own clients: its writers or data sets (``user``), its files (LEAF shards of about 20 writers), or,
    of texts, its dialogues and what else ``columns.clients`` of the task names (speakers, reviewers, genres)."""

    kind: Literal["natural"]
    #: user (of texts: data set), file (of images), or of texts dialogue and what ``columns.clients`` of the task names
    by: str
    #: clients with fewer training images are left out, and that is said
    least: Items
    #: the first so many clients (drawn by the seed); null = all
    num_clients: Parties | None
    #: of the embedded digits, which stand in for images with writers: of the Dirichlet shares
    alpha: Alpha
    #: of the embedded digits: clients
    embedded_clients: Parties


@dataclass
class Iid:
    """Equal shares of shuffled images."""

    kind: Literal["iid"]
    #: among whom all examples are dealt
    num_clients: Parties


@dataclass
class Dirichlet:
    """Each class's images are shared out by Dirichlet(alpha) proportions over clients, after ``floor`` images of every
    class for every client (FLex&Chill's public code: floor 10)."""

    kind: Literal["dirichlet"]
    #: among whom all examples are dealt
    num_clients: Parties
    #: small = few classes a client, large = all classes at every client
    alpha: Alpha
    #: examples of every class that every client has first
    floor: ItemsOrNone


@dataclass
class DirichletClients:
    """Each client has equally many images, its classes drawn from its own Dirichlet(alpha) mixture."""

    kind: Literal["dirichlet_clients"]
    #: among whom all examples are dealt
    num_clients: Parties
    #: small = few classes a client, large = all classes at every client
    alpha: Alpha


@dataclass
class Shards:
    """Images sorted by class are cut into equal shards; each client gets so many (McMahan et al.)."""

    kind: Literal["shards"]
    #: among whom all examples are dealt
    num_clients: Parties
    #: shards of each client
    shards_per_client: Parties


@dataclass
class Pairs:
    """Planted clusters: every client has one group of classes, at least two clients a group, the rest at random; a
    class is split equally over its clients (FedWaD's strong structure: pairs of classes)."""

    kind: Literal["pairs"]
    #: at least two for each group
    num_clients: Parties
    #: class numbers of each group, from 0 on
    groups: list[list[int]]

    def __post_init__(self) -> None:
        require(len(self.groups) >= 2, "groups", "needs at least two groups of classes")
        flat = [label for group in self.groups for label in group]
        require(
            all(self.groups) and len(set(flat)) == len(flat), "groups", "a group is empty or a class is in two groups"
        )
        require(
            self.num_clients >= 2 * len(self.groups), "num_clients", f"{self.num_clients} give no two clients a group"
        )


@dataclass
class Manual:
    """Ditto's recipe: each client has ``classes_per_client`` neighboring classes, lognormal(mu, sigma) + ``offset``
    many images, class shares lognormal(1, 1); a class that runs out begins again."""

    kind: Literal["manual"]
    #: that examples are drawn for
    num_clients: Parties
    #: neighboring classes of each client
    classes_per_client: Annotated[int, AT_LEAST_ONE]
    #: of the logarithm of a client's size; exp(mu + 6 sigma) is still a number
    mu: Annotated[float, AtMost(100)]
    #: spread of the logarithm of a client's size
    sigma: Annotated[float, AtMost(50), NOT_NEGATIVE]
    #: examples that every client has besides
    offset: Items


@dataclass
class Centralized:
    """One client has everything."""

    kind: Literal["centralized"]


@dataclass
class PartyShares:
    """Of methods that distill: shares of the training images that no client has, for the ``server``'s global model and
    for the unlabeled ``transfer`` set, and the share of each party's images that epochs are chosen on (``valid``)."""

    #: share of the examples that the server's global model is pretrained on
    server: Fraction = 0.2
    #: share of the examples that are the unlabeled transfer set; null where another data set is (``transfer=NAME``)
    transfer: Fraction | None = 0.2
    #: share of each party's examples that epochs are selected on; null = 0.1 if a stage selects its best epoch, or
    #: method.bound is true
    valid: Fraction | None = None

    def __post_init__(self) -> None:
        total = self.server + (self.transfer or 0)
        require(total < 1, "transfer", f"server + transfer = {total:g} leave the clients no images; below 1 is right")


@dataclass
class HeldOut:
    """Of federated methods: what clients do not train on, and whose examples are at odds with the others'.

    ``transfer``: the share of the training examples that no client has. A server distills on them, unlabeled; without
    one they are not used, so that methods with and without can be compared. ``valid``: the share of each client's
    training examples that choices are made on; ``unseen``: the share of clients that take part in no round. ``alter``,
    of images: half of the clients have reversed labels (conflict) or turned images (shift), or 30% have random labels.
    """

    #: share of the examples that no client has; a server distills on them, unlabeled; null = 0.2 where one does
    transfer: Fraction | None = None
    #: share of each client's examples that choices are made on; null = 0.2 where there are any: with fedsoup, and with
    #: personalization that selects (or learns) on them
    valid: Fraction | None = None
    #: share of the clients that take part in no round, and are measured apart
    unseen: Fraction | None = None
    #: half of the clients have labels in reverse order (conflict) or turned images (shift), or 30% random labels
    #: (noise)
    alter: Literal["conflict", "shift", "noise"] | None = None


#: Keys of ``partition`` beside those of its kind, such as shares; null is the default.
SHARE_KEYS = ("server", "transfer", "valid", "unseen", "alter")
#: Shares that change what is trained on, and that have a default for some runs only.
TRAINING_SHARES = ("partition.transfer", "partition.valid", "method.valid")
#: Share of the training images that a distillation selects epochs on.
STAGES_VALID = 0.1
#: ``partition.valid`` of methods that choose among clients' own models.
PERSONAL_VALID = 0.2
#: Kinds of personalization that learn or choose clients on held-out examples, whatever they select.
READ_VALID = ("transfer_matrix", "landscape")


def transfer_group(config: dict[str, Any]) -> dict[str, Any] | None:
    """The group ``transfer`` of a composed config, unchecked: another data set as the transfer set; None without one,
    as with ``transfer=none``, which is empty."""
    return config.get("transfer") or None


def party_shares(config: dict[str, Any]) -> dict[str, Any]:
    """The shares of the partition of a composed distillation, with defaults for null ones; not checked."""
    partition = config["partition"]
    defaults = dataclasses.asdict(PartyShares(valid=stages_valid(config)))
    if transfer_group(config) is not None:
        defaults["transfer"] = None
    return defaults | {key: partition[key] for key in defaults if partition.get(key) is not None}


def stages_valid(config: dict[str, Any]) -> float | None:
    """Return the share of images that a composed distillation holds out by default: 0.1 if a stage that it trains
    selects its best epoch on them, or if its bound is measured on them."""
    method, training = config["method"], config["training"]
    stages = {"local", "pretrain", "distill"}
    if method["algorithm"] == "teachers":
        stages.remove("distill")
    if method["algorithm"] == "distill":
        stages.remove("pretrain")
        if all(teacher["kind"] == "run" for teacher in method["teachers"]):
            stages.remove("local")
        if method.get("synthesis") is not None:  # the student selects on the generated images
            stages.remove("distill")
    selects = any(training[stage].get("select") == "best" for stage in stages)
    return STAGES_VALID if selects or method.get("bound") else None


def held_out_shares(config: dict[str, Any]) -> dict[str, Any]:
    """The shares that a composed federated run holds out from its clients, {} where there are none: ``transfer`` where
    a server distills (unless the task has a transfer set of its own, or another data set is it) and ``valid`` where
    clients' own models are chosen or learned on them have defaults. Not checked.
    """
    partition, method = config.get("partition") or {}, config.get("method") or {}
    shares = {}
    if method.get("server_distillation") is not None:
        shares["transfer"] = PartyShares.transfer
    settings = METHOD_SETTINGS.get(str(method.get("algorithm")))
    if _reads_valid(method.get("personalization")) or getattr(settings, "selects", False):
        shares["valid"] = PERSONAL_VALID
    names = [field.name for field in dataclasses.fields(HeldOut)]
    shares |= {key: partition[key] for key in names if partition.get(key) is not None}
    elsewhere = transfer_group(config) is not None or has_transfer_set(config["task"])
    return without(shares, "transfer") if elsewhere else shares


def _reads_valid(personal: dict[str, Any] | None) -> bool:
    """Whether a composed personalization selects a model on held-out examples, or learns or chooses clients on them."""
    if not isinstance(personal, dict):
        return False
    otherwise = "last" if personal.get("kind") == "finetune" else "valid"
    return personal.get("kind") in READ_VALID or personal.get("select", otherwise) == "valid"


def unlike_shares(configs: Iterable[Mapping[str, Any]], free: Collection[str] = ()) -> str:
    """How the shares of training examples that resolved ``configs`` hold out differ, and the overrides that make them
    equal; "" if they do not. ``free``: keys that may differ."""
    groups = list(configs)
    unlike, overrides = [], []
    for key in TRAINING_SHARES:
        group, name = key.split(".")
        values = list(dict.fromkeys((config.get(group) or {}).get(name) for config in groups))
        if len(values) > 1 and key not in free:
            listed = " and ".join("null" if value is None else f"{value:g}" for value in values)
            unlike.append(f"{key} is {listed}")
            overrides.append(f"{key}={max(value for value in values if value is not None):g}")
    return f"{', '.join(unlike)}; {' '.join(overrides)} makes them equal" if unlike else ""


def has_transfer_set(task: dict[str, Any]) -> bool:
    """Whether a composed task has a data set of the role transfer."""
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
