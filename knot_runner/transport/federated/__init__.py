"""Federated Wasserstein distance (FedWaD): usable without the rest of the package, on numpy arrays in float64.

``distance_between`` is the whole algorithm between two measures; ``Client`` and ``server`` are its two sides and
``Message`` is sent between them; ``interpolate``, ``wasserstein`` and ``optimal_plan`` are the pieces.
"""

from knot_runner.transport.federated.client import Client
from knot_runner.transport.federated.fedwad import FederatedDistance, distance_between, federated_distance
from knot_runner.transport.federated.interpolate import interpolate, transport, wasserstein
from knot_runner.transport.federated.measure import Measure
from knot_runner.transport.federated.message import Draws, Message, SampleHolder
from knot_runner.transport.federated.plan import optimal_plan, squared_distances

__all__ = [
    "Client",
    "Draws",
    "FederatedDistance",
    "Measure",
    "Message",
    "SampleHolder",
    "distance_between",
    "federated_distance",
    "interpolate",
    "optimal_plan",
    "squared_distances",
    "transport",
    "wasserstein",
]
