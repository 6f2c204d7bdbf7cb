"""Federated Wasserstein distance (FedWaD) on NumPy arrays in float64, usable without the rest of the package.

``distance_between`` runs the whole algorithm for two measures. The class ``Client`` implements a client, and the module
``server`` implements the server. Clients and server exchange ``Message`` objects. ``interpolate``, ``wasserstein`` and
``optimal_plan`` are operations on measures.
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
