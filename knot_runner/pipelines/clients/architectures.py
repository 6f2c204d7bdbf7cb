"""Clients with models of several architectures (``method.models``): their networks, and what each comes to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from knot_runner.methods.federation import Federation
from knot_runner.models.network import Network
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.rounds import scores

if TYPE_CHECKING:
    from knot_runner.pipelines.clients.setup import Setup


def dealt_networks(context: RunContext, network: Network) -> list[Network]:
    """The networks of the architectures that clients have in turn; of ``network``, which all have, where
    ``method.models`` is empty. All read what it reads: of texts the vocabulary is that of ``model``."""
    models = context.hp.models
    return [dataclasses.replace(network, spec=spec) for spec in models] if models else [network]


def clients_of(federation: Federation, number: int) -> list[int]:
    """The clients that have the architecture of that number."""
    return [client for client in federation.numbers if federation.network_number(client) == number]


def dealt_notes(setup: Setup) -> list[str]:
    """Which architecture how many clients have, where there are several."""
    if len(setup.networks) == 1:
        return []
    counts = [len(clients_of(setup.federation, number)) for number in range(len(setup.networks))]
    told = [f"{one.spec.name} at {count} clients" for one, count in zip(setup.networks, counts, strict=True)]
    return [f"method.models: {', '.join(told)}"]


def architecture_facts(setup: Setup, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of every architecture, where there are several: its clients, parameters, and in the last round the accuracy of
    its clients' models on their own test examples, by examples and each client alike; None without any of these."""
    federation = setup.federation
    if len(federation.architectures) == 1:
        return {}
    last, found = [row for row in rows if "clients" in row][-1], {}
    told = dict(zip(federation.numbers, last["clients"], strict=True))
    for number, architecture in enumerate(federation.architectures):
        clients = clients_of(federation, number)
        sizes = [len(federation.clients[client].test) for client in clients]
        accuracies = [told[client] for client in clients]
        tested = sum(sizes) > 0
        means = scores.over_clients(accuracies, sizes) if tested else {"weighted": None, "unweighted": None}
        found[architecture.network.spec.name] = {
            "clients": len(clients),
            "parameters": architecture.layout.size,
            "accuracy": means["weighted"],
            "unweighted": means["unweighted"],
        }
    return {"models": found}
