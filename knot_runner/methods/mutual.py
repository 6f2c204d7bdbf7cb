"""Mutual learning between KNOT's parties, each with its own labelled data, on a shared transfer set.

Rounds: 0 every party trains alone, as in KNOT; 1 all train together, by the request
:class:`~knot_runner.methods.parties.TrainParties`; 2 each party's model becomes an artefact of its own. State:
``weights/<party>`` after round 0, ``together``, ``after/<party>``, ``student`` (the global model at the end): artefact
names.
"""

from __future__ import annotations

from typing import Any

from knot_runner.config.settings import MutualSettings
from knot_runner.engine.requests import StageRequest, StoredPart, ref_of
from knot_runner.engine.store import Artefact
from knot_runner.methods.contract import Method
from knot_runner.methods.distil.requests import PickStudent
from knot_runner.methods.federation import Federation
from knot_runner.methods.knot import plan_teachers
from knot_runner.methods.losses import check_loss_and_weighting
from knot_runner.methods.parties import TrainParties
from knot_runner.methods.party import Party
from knot_runner.util.errors import UserError

MutualState = dict[str, Any]


def init(hp: MutualSettings, federation: Federation) -> MutualState:
    """An empty state, after checking the loss and that there are two parties. Raises :class:`UserError`."""
    check_loss_and_weighting(hp.loss, "A", federation.label_points, "method")
    if len(learners(hp, federation)) < 2:
        alone = federation.clients[0].name
        raise UserError(f"method.global_model: without the global model {alone} is the one party; true is right")
    return {}


def plan(hp: MutualSettings, state: MutualState, federation: Federation, round: int) -> list[StageRequest]:
    """Returns the training requests of this round; [] when the method has finished."""
    if round == 0:
        return plan_teachers(hp, state, federation)
    parties = learners(hp, federation)
    if round == 1:
        return [
            TrainParties(
                stage="mutual",
                party="parties",
                parties=tuple(party.name for party in parties),
                networks=tuple(party.network for party in parties),
                starts=tuple(ref_of(state[f"weights/{party.name}"]) for party in parties),
                trains=tuple(StoredPart(party.train) for party in parties),
                valids=tuple(StoredPart(party.valid) for party in parties),
                transfer=StoredPart(federation.transfer.train),
                loss=hp.loss,
                weight=hp.weight,
                points=federation.label_points,
                training=federation.training.distil,
                seed=federation.seed,
                augment=federation.augment,
            )
        ]
    if round == 2:
        together = ref_of(state["together"])
        return [PickStudent("picked", party.name, together, number) for number, party in enumerate(parties)]
    return []


def fold(
    hp: MutualSettings, state: MutualState, federation: Federation, round: int,
    requests: list[StageRequest], artefacts: list[Artefact],
) -> tuple[MutualState, dict[str, Any]]:  # fmt: skip
    """Returns the next state and the round's log entries."""
    state, row = dict(state), {}
    for request, artefact in zip(requests, artefacts, strict=True):
        name = f"{artefact.stage}/{artefact.key}"
        if isinstance(request, TrainParties):
            state["together"], state["selected_epoch"] = name, artefact.info["best_epoch"]
            row = {"epoch": artefact.info["best_epoch"], "valid": artefact.info["best_score"]}
        elif isinstance(request, PickStudent):
            state[f"after/{request.party}"] = name
        else:
            state[f"weights/{request.party}"] = name
            row[request.party] = artefact.info["best_score"]
    server = federation.server.name
    state["student"] = state.get(f"after/{server}", state.get(f"weights/{server}"))
    return state, row


def learners(hp: MutualSettings, federation: Federation) -> list[Party]:
    """The parties that learn from each other: the local models, and the global one if it takes part."""
    return federation.teachers if hp.global_model else list(federation.clients)


MUTUAL = Method(init, plan, fold)
