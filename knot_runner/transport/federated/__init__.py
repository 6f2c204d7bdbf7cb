"""Federated Wasserstein distance (FedWaD), on numpy arrays in float64, usable without the rest of the package.

``distance_between`` runs the whole algorithm for two measures. ``Client`` implements the client and ``server`` the
server; they exchange ``Message`` objects. ``interpolate``, ``wasserstein`` and ``optimal_plan`` are the operations on
measures.
"""

from knot_runner.transport.federated.fedwad import Client, FederatedDistance, distance_between, federated_distance
from knot_runner.transport.federated.measure import Measure, interpolate, transport, wasserstein
from knot_runner.transport.federated.plan import optimal_plan, squared_distances
from knot_runner.transport.federated.server import Draws, Message

__all__ = [
    "Client",
    "Draws",
    "FederatedDistance",
    "Measure",
    "Message",
    "distance_between",
    "federated_distance",
    "interpolate",
    "optimal_plan",
    "squared_distances",
    "transport",
    "wasserstein",
]
