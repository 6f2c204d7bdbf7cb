"""Rounds of a small fleet, played without commits."""

import dataclasses

import torch

from knot_runner import METHODS, run_rounds
from knot_runner.config.settings.fleet import FleetSettings
from knot_runner.methods.around.compression import compressed
from knot_runner.methods.around.fleet import on_fleet
from knot_runner.methods.around.server_distillation import with_distillation
from knot_runner.methods.federation import ServerExamples
from knot_runner.methods.messages import is_over
from tests.changed_settings import built
from tests.unit.methods.federated.worlds import holding_out, make_world, method_of, settings

PLAIN = {"name": "t", "compute": {"median": 1.0, "sigma": 0.0}, "network": None, "availability": None, "dropout": 0.0}
#: One batch of all examples, so that no draw matters.
WHOLE = {"batch_size": 24, "small_clients": "allow"}


def fleet_of(**changes) -> FleetSettings:
    """Settings of a fleet whose clients are all alike, always there and never fail, with ``changes``."""
    return built(FleetSettings, "fleet/phones.yaml", **{**PLAIN, **changes})


def buffered(buffer: int = 1, **changes) -> FleetSettings:
    return fleet_of(mode="async", buffer=buffer, **changes)


class NoCommits:
    """Commits of a run that nobody kills."""

    step = -1

    def resume(self, usable):
        return self, []

    def due(self):
        return False

    def save(self, *_):
        return {}


def played_rounds(method, config, federation, engine, look=lambda *_: None):
    """The final state and the rows of all rounds of ``method``; ``look(state, requests, trained, further)`` at each."""

    def advance(state, round, rows):
        requests = method.plan(config, state, federation, round)
        if not requests and is_over(method, config, state, federation, round):
            return None
        trained = engine.train(requests) if requests else []
        state, row, further = method.fold(config, state, federation, round, requests, trained, engine)
        look(state, requests, trained, further)
        return state, row | {"participants": [request.client for request in requests]}

    return run_rounds(advance, NoCommits(), lambda: method.init(config, federation), timed=False)


class Played:
    """Rounds of a fleet with what follows each; ``members``: those of the five clients that there are; ``held``: a
    third of their examples is. ``rows``, ``states`` after each round, ``seen``: (requests, trained) of each, ``after``:
    what was asked for after it: inferences and distillation."""

    def __init__(self, fleet, algorithm="fedavg", members=(0, 1, 2), hidden=(), changes=None, held=False, **training):
        self.world = make_world(list(hidden)).with_training(**{"clients_per_round": 3, **training})
        if held:
            self.world = holding_out(self.world)
        served = dataclasses.replace(
            self.world.federation, server=ServerExamples(torch.arange(0), torch.arange(30, 62), torch.arange(5, 25))
        )
        self.federation = dataclasses.replace(served, members=tuple(members))
        self.config = settings(algorithm, **(changes or {}))
        self.method = method_of(self.config)
        if fleet is not None:
            plain = with_distillation(METHODS[algorithm], self.config)
            if getattr(self.config, "top_k", None):
                plain = compressed(plain, self.config.top_k)
            self.method, self.federation = on_fleet(plain, self.config, fleet, self.federation)
        self.states, self.seen, self.after = [], [], []
        self.state, self.rows = played_rounds(self.method, self.config, self.federation, self.world.engine, self.look)

    def look(self, state, requests, trained, further):
        self.states.append(state)
        self.seen.append((requests, trained))
        self.after.append(further)

    def column(self, key):
        return [row[key] for row in self.rows]
