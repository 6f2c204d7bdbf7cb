"""The federation of a task whose examples are in the store: its data sets are the parties, by their roles."""

from __future__ import annotations

from typing import Any

from knot_runner.config.settings import Settings
from knot_runner.data.tasks import PartyTask
from knot_runner.engine.requests import Ref
from knot_runner.methods.federation import Federation
from knot_runner.methods.party import Party
from knot_runner.models.network import Network
from knot_runner.pipelines.federations.stage_limits import limit_notes, used_count


def party_federation(
    settings: Settings,
    task: PartyTask,
    examples: dict[tuple[str, str], Ref],
    networks: dict[str, Network],
    notes: list[str],
    **more: Any,
) -> Federation:
    """The parties of ``task`` with their ``examples`` by (data set, split) and ``networks``; without a transfer set the
    server's examples are it. ``notes``: after those on limits; ``more``: further fields of the federation."""
    by_role: dict[str, list[Party]] = {"local": [], "global": [], "transfer": []}
    for data in task.datasets.values():
        own = {split: examples[data.name, split] for split in data.splits}
        party = Party(data.name, own, networks[data.name], used_count(data, "train", settings))
        by_role[data.role].append(party)
    server = by_role["global"][0]
    return Federation(
        clients=tuple(by_role["local"]),
        server=server,
        transfer=next(iter(by_role["transfer"]), server),
        labels=task.labels,
        training=settings.training,
        seed=settings.seed,
        notes=[*limit_notes(task, settings), *notes],
        **more,
    )
