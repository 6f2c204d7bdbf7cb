"""Federated Wasserstein distance (FedWaD): usable without the rest of the package, on numpy arrays in float64.

``distance_between`` is the whole algorithm between two measures; ``Client`` and ``server`` are its two sides and
``Message`` is sent between them; ``interpolate``, ``wasserstein`` and ``optimal_plan`` are the pieces.
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
