"""Pool of all labeled examples of a text task. A partition divides the pool among clients, as it divides images."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field

import numpy as np

from knot_runner.data.images.owners import NOBODY, or_none
from knot_runner.data.tasks import Examples, PartyTask
from knot_runner.provenance.fingerprints import Opened

#: ``partition.by`` -> name of a client, singular and plural, for all text tasks
CALLED = {"user": ("data set", "data sets")}


@dataclass(frozen=True, eq=False)
class TextPool:
    """The labeled texts of a task, without validation splits. Partition functions accept a pool or an ``ImageTask``."""

    name: str
    classes: list[str]
    coordinates: list[list[float]] | None
    train: Examples
    test: Examples
    source: str
    digest: str
    user_names: list[str] | None
    #: the complete task, including the transfer set
    whole: PartyTask
    file_names: None = None
    notes: list[str] = field(default_factory=list)
    files: list[Opened] = field(default_factory=list)
    #: ``partition.by`` -> name of a client, singular and plural
    called: dict[str, tuple[str, str]] = field(default_factory=dict)


def pool_texts(task: PartyTask, by: str = "user") -> TextPool:
    """Return the pool of all data sets in ``task`` that are labeled and have a test split.

    Args:
        task: The loaded text task.
        by: The kind of client (``partition.by``). For ``user``, each data set is a client. Other kinds are keys of
            ``Examples.clients``, such as ``speaker`` and ``dialogue``. For ``dialogue``, test texts belong to no
            client.
    """
    train = pooled_split(task, "train")
    test = pooled_split(task, "test")
    kinds = {*train.clients, *test.clients}
    pool = TextPool(
        name=task.name,
        classes=task.labels.names,
        coordinates=task.labels.coordinates,
        train=train,
        test=test,
        source=task.source,
        digest=task.digest,
        user_names=labeled_sets(task),
        whole=task,
        notes=task.notes,
        files=task.files,
        called=CALLED | {kind: (kind, f"{kind}s") for kind in sorted(kinds)},
    )
    return _by_clients(pool, by) if by in kinds else pool


def labeled_sets(task: PartyTask) -> list[str]:
    """Return the names of the data sets in ``task`` that are labeled and have a test split."""
    return [name for name, data in task.datasets.items() if data.role != "transfer" and "test" in data.splits]


def pooled_split(task: PartyTask, split: str) -> Examples:
    """Return one split of all labeled data sets in ``task``, concatenated.

    In the result, ``users[i]`` is the index of text i's data set in the list from :func:`labeled_sets`.
    """
    sets: dict[str, Examples] = {name: task.datasets[name].splits[split] for name in labeled_sets(task)}
    texts = list[str]()
    pairs = list[str]()
    labels = []
    for part in sets.values():
        texts += part.texts
        pairs += part.pairs or []
        labels.append(part.labels)
    return Examples(
        texts,
        pairs or None,
        np.concatenate(labels),
        _clients(sets),
        np.repeat(np.arange(len(sets)), list(map(len, sets.values()))),
    )


def _by_clients(pool: TextPool, by: str) -> TextPool:
    """Return ``pool`` with ``users`` set to the clients of the kind ``by``, which becomes part of the pool's digest."""
    of_test = pool.test.clients[by]
    if by == "dialogue":
        of_test = [None] * len(pool.test)
    clients = {"train": pool.train.clients[by], "test": of_test}
    digest = hashlib.sha256(f"{pool.digest} {by} {clients}".encode()).hexdigest()
    numbers: dict[str | None, int] = {None: NOBODY}
    parts = {}
    for split, names in clients.items():
        users = np.array([numbers.setdefault(name, len(numbers) - 1) for name in names], dtype=np.int64)
        parts[split] = dataclasses.replace(getattr(pool, split), users=or_none(users))
    return dataclasses.replace(pool, **parts, user_names=list(numbers)[1:], digest=digest)


def _clients(sets: dict[str, Examples]) -> dict[str, list[str | None]]:
    """Return a dict from kind of client to the client of each text in ``sets``.

    Clients with the same id in two data sets are different clients.
    """
    joined = {kind: list[str | None]() for part in sets.values() for kind in part.clients}
    for kind, clients in joined.items():
        for name, part in sets.items():
            for owner in part.clients.get(kind, [None] * len(part)):
                if owner is not None:
                    owner = f"{name} {owner}"
                clients.append(owner)
    return joined
