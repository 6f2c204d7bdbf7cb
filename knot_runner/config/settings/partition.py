"""Settings of how images are dealt to clients: one dataclass per partition, in one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from knot_runner.config.settings.sizes import Items, Parties
from knot_runner.config.strict import AtMost, require


def _alpha(alpha: float) -> None:
    require(0 < alpha <= 1e6, "alpha", f"{alpha} is not in (0, 1e6]; kind=iid is its limit")


def _clients(count: int, key: str = "clients") -> None:
    require(count >= 1, key, f"{count} is not at least 1")


@dataclass
class Natural:
    """The source's own clients: its writers, or its files (LEAF shards of about 20 writers)."""

    kind: Literal["natural"]
    by: Literal["user", "file"]
    #: clients with fewer training images are left out, and that is said
    least: Items
    #: the first so many clients (drawn by the seed); null = all
    clients: Parties | None
    #: what to do where the source knows no writers: stop, or deal by Dirichlet shares and say so
    without_users: Literal["stop", "dirichlet"]
    #: for without_users=dirichlet
    alpha: float
    count: Parties

    def __post_init__(self) -> None:
        require(self.least >= 1, "least", f"{self.least} is not at least 1")
        require(self.clients is None or self.clients >= 1, "clients", f"{self.clients} is not at least 1")
        _alpha(self.alpha)
        _clients(self.count, "count")


@dataclass
class Iid:
    """Equal shares of shuffled images."""

    kind: Literal["iid"]
    clients: Parties

    def __post_init__(self) -> None:
        _clients(self.clients)


@dataclass
class Dirichlet:
    """Each class's images are shared out by Dirichlet(alpha) proportions over clients, after ``floor`` images of every
    class for every client (FLex&Chill's public code: floor 10)."""

    kind: Literal["dirichlet"]
    clients: Parties
    alpha: float
    floor: Items

    def __post_init__(self) -> None:
        _clients(self.clients)
        _alpha(self.alpha)
        require(self.floor >= 0, "floor", f"{self.floor} is negative")


@dataclass
class DirichletClients:
    """Each client has equally many images, its classes drawn from its own Dirichlet(alpha) mixture."""

    kind: Literal["dirichlet_clients"]
    clients: Parties
    alpha: float

    def __post_init__(self) -> None:
        _clients(self.clients)
        _alpha(self.alpha)


@dataclass
class Shards:
    """Images sorted by class are cut into equal shards; each client gets so many (McMahan et al.)."""

    kind: Literal["shards"]
    clients: Parties
    shards_per_client: Parties

    def __post_init__(self) -> None:
        _clients(self.clients)
        require(self.shards_per_client >= 1, "shards_per_client", f"{self.shards_per_client} is not at least 1")


@dataclass
class Pairs:
    """Planted clusters: every client has one group of classes, at least two clients a group, the rest at random; a
    class is split equally over its clients (FedWaD's strong structure: pairs of classes)."""

    kind: Literal["pairs"]
    clients: Parties
    groups: list[list[int]]

    def __post_init__(self) -> None:
        _clients(self.clients)
        require(len(self.groups) >= 2, "groups", "needs at least two groups of classes")
        flat = [label for group in self.groups for label in group]
        require(
            all(self.groups) and len(set(flat)) == len(flat), "groups", "a group is empty or a class is in two groups"
        )
        require(self.clients >= 2 * len(self.groups), "clients", f"{self.clients} give no two clients a group")


@dataclass
class Manual:
    """Ditto's recipe: each client has ``classes_per_client`` neighbouring classes, lognormal(mu, sigma) + ``offset``
    many images, class shares lognormal(1, 1); a class that runs out begins again."""

    kind: Literal["manual"]
    clients: Parties
    classes_per_client: int
    #: of the logarithm of a client's size; exp(mu + 6 sigma) is still a number
    mu: Annotated[float, AtMost(100)]
    sigma: Annotated[float, AtMost(50)]
    offset: Items

    def __post_init__(self) -> None:
        _clients(self.clients)
        require(self.classes_per_client >= 1, "classes_per_client", f"{self.classes_per_client} is not at least 1")
        require(self.sigma >= 0, "sigma", f"{self.sigma} is negative")
        require(self.offset >= 1, "offset", f"{self.offset} is not at least 1")


@dataclass
class Centralised:
    """One client has everything."""

    kind: Literal["centralised"]


#: ``partition.kind`` -> its settings.
PARTITION_SETTINGS: dict[str, type] = {
    "natural": Natural,
    "iid": Iid,
    "dirichlet": Dirichlet,
    "dirichlet_clients": DirichletClients,
    "shards": Shards,
    "pairs": Pairs,
    "manual": Manual,
    "centralised": Centralised,
}
