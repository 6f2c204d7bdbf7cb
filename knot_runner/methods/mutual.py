"""Mutual learning (Zhang et al. 2018, Anil et al. 2018) of several parties: the clients and, optionally, the server.

Each of the K parties has its own labeled examples, and all parties read the same transfer set. Let p_k be the output
probabilities of party k on the transfer set. q_k has the same values as p_k, but no gradient flows through q_k. Party k
minimizes

    CE on its own examples + weight / (K - 1) sum_{j != k} T(p_k, q_j)

Differences from the papers: the parties have different labeled examples, so they compare their outputs on the transfer
set. T is any loss of KNOT (:mod:`losses`).

Round 0 trains every party alone, as in KNOT. Round 1 trains all parties together (:class:`TrainParties`). Round 2
stores each party's model as a separate artifact.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.groups import StageSettings
from knot_runner.config.settings.methods.knot import LossSettings, MutualSettings
from knot_runner.engine.examples import Augment, ClientExamples, InputBatch
from knot_runner.engine.loop import Resources, stored_examples, stored_model, valid_score
from knot_runner.engine.requests import OwnTraining, Ref, StageRequest, StoredPart, TensorsAndFacts, ref_of
from knot_runner.engine.seeds import generator
from knot_runner.engine.stages import Report, StageTraining, train_epochs
from knot_runner.engine.store import Artifact
from knot_runner.methods.distill.students import PickStudent
from knot_runner.methods.knot import plan_teachers
from knot_runner.methods.losses import LOSSES, check_loss_and_weighting
from knot_runner.methods.party import LabelPoints, PartyFederation, StageMethod, StageState, StoredParty, scored
from knot_runner.models.network import Network
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow


def init(config: MutualSettings, federation: PartyFederation) -> StageState:
    """Return an empty state.

    Raises:
        UserError: The loss's solver does not support the coordinates of the classes, or there is only one party.
    """
    check_loss_and_weighting(config.loss, "A", federation.label_points, "method")
    if len(learners(config, federation)) < 2:
        alone = federation.clients[0].name
        raise UserError(
            f"mutual learning needs two models, but {alone} is the only client. To add the global model, use true",
            "method.global_model",
        )
    return StageState()


def plan(config: MutualSettings, state: StageState, federation: PartyFederation, round: int) -> list[StageRequest]:
    """Return the requests of ``round``; [] when the method has finished."""
    if round == 0:
        return plan_teachers(config, state, federation)
    parties = learners(config, federation)
    if round == 1:
        inputs = [
            (party.name, party.network, ref_of(state.weights[party.name]), StoredPart(party.train), party.stored_valid)
            for party in parties
        ]
        names, networks, starts, trains, valids = zip(*inputs, strict=True)
        request = TrainParties(
            "mutual", "parties", names, networks, starts, trains, valids,
            transfer=StoredPart(federation.transfer.train), loss=config.loss, weight=config.weight,
            points=federation.label_points, training=federation.training.distill, seed=federation.seed,
            augment=federation.augment,
        )  # fmt: skip
        return [request]
    if round == 2:
        together = ref_of(state.together)
        return [PickStudent("picked", party.name, together, number) for number, party in enumerate(parties)]
    return []


def fold(
    config: MutualSettings, state: StageState, federation: PartyFederation, round: int,
    requests: list[StageRequest], artifacts: list[Artifact],
) -> tuple[StageState, LogRow]:  # fmt: skip
    """Return the state after ``round``, and the log entries of the round."""
    state = copy.deepcopy(state)
    row = {}
    for request, artifact in zip(requests, artifacts, strict=True):
        name = artifact.name
        score = artifact.info["best_score"]
        if isinstance(request, TrainParties):
            state.together = name
            state.selected_epoch = artifact.info["best_epoch"]
            row = {"epoch": state.selected_epoch, "valid": score}
        elif isinstance(request, PickStudent):
            state.after[request.party] = name
        else:
            state.weights[request.party] = name
            row[request.party] = score
    state.student = (state.weights | state.after)[federation.server.name]
    return state, scored(row)


def learners(config: MutualSettings, federation: PartyFederation) -> list[StoredParty]:
    """Return the parties that learn from each other: all clients and, with ``config.global_model``, the server."""
    if config.global_model:
        return federation.teachers
    return list(federation.clients)


MUTUAL = StageMethod(init, plan, fold)


@dataclass(frozen=True)
class TrainParties(OwnTraining):
    """A request to train several parties together.

    An epoch is one pass over the ``transfer`` set. A party's own examples are repeated as often as needed. Each
    optimizer step trains all parties. The loss of a party is the sum of two terms:

    - the cross-entropy on a batch of the party's own examples
    - ``weight`` times the mean loss between the party's outputs and the other parties' outputs on a batch of the
      transfer set

    No gradient flows through the other parties' outputs. In the artifact, the names of the weights of ``parties[i]``
    start with ``i.``.
    """

    stage: str
    party: str
    #: names of the parties, from which the random batch orders are derived
    parties: tuple[str, ...]
    networks: tuple[Network, ...]
    #: initial weights of each party
    starts: tuple[Ref, ...]
    trains: tuple[StoredPart, ...]
    #: validation examples of each party; None if the party has none
    valids: tuple[StoredPart | None, ...]
    transfer: StoredPart
    #: loss between the outputs of two parties (``method.loss``)
    loss: LossSettings
    weight: float
    #: coordinates [C][d] of the classes
    points: LabelPoints
    training: StageSettings
    seed: int
    augment: Augment = "none"

    @property
    def network(self) -> Network:
        """Return the first party's network."""
        return self.networks[0]

    def run(self, resources: Resources, work: Path, report: Report) -> TensorsAndFacts:
        """Train all parties. Return the weights of the selected epoch, and facts about the training.

        With ``training.select=best``, the selected epoch has the highest macro-F1 on validation examples, averaged over
        parties. With ``select=last``, or if there are no validation examples, the last epoch is selected.

        Raises:
            DivergedError: A loss is not finite.
        """
        training = self.training
        return train_epochs(_Together(self, resources, report), work, training.epochs, training.select, "score")


def peer_losses(loss: LossSettings, logits: list[Tensor], points: Tensor) -> list[Tensor]:
    """Return, for each party, the mean loss between the party's outputs and the other parties' outputs.

    Each result is a scalar: the mean over the batch and the other parties. With KL, the result is the mutual term of
    Zhang et al. 2018.

    Args:
        loss: The settings of the loss.
        logits: Each party's logits, shape [B, C].
        points: Coordinates [C, d] of the classes.
    """
    between = LOSSES[loss.name].function
    targets = [torch.softmax(outputs.detach(), dim=-1) for outputs in logits]
    losses = []
    for number, outputs in enumerate(logits):
        others = torch.stack(targets[:number] + targets[number + 1 :], dim=1)
        log_p = torch.log_softmax(outputs, dim=-1)[:, None]
        losses.append(between(loss, log_p, others, points).mean())
    return losses


class _Together(StageTraining):
    """The parties' models and examples, and the loss of all parties on a batch of the transfer set."""

    by_examples = False

    def __init__(self, request: TrainParties, resources: Resources, report: Report) -> None:
        self._parties = request
        self.models = nn.ModuleList(map(partial(stored_model, resources), request.networks, request.starts))
        self.trains = [stored_examples(resources, part.examples) for part in request.trains]
        #: the validation examples by number of the party, for parties that have any
        self.valids: dict[int, ClientExamples] = {}
        for number, part in enumerate(request.valids):
            if part is not None:
                self.valids[number] = stored_examples(resources, part.examples)
        transfer = stored_examples(resources, request.transfer.examples)
        super().__init__(request, self.models, transfer, report, request.stage)
        self.points = torch.tensor(request.points, dtype=torch.float64).to(resources.device)

    def begin(self, epoch: int) -> None:
        """Start a new pass over each party's own examples."""
        parties = zip(self._parties.parties, self.trains, strict=True)
        self._batches = [self._own_batches(name, examples, epoch) for name, examples in parties]

    def _own_batches(self, party: str, examples: ClientExamples, epoch: int) -> Iterator[InputBatch]:
        """Yield batches of a party's own ``examples`` endlessly, in a new order in each pass."""
        request = self._parties
        for time in itertools.count():
            order = generator(request.seed, "order", request.stage, party, epoch, time)
            yield from examples.epoch(request.training.batch_size, order, drop_last=False, augment=request.augment)

    def losses(self, batch: InputBatch) -> Tensor:
        """Return each party's loss on ``batch`` of the transfer set and on a batch of the party's own examples.

        The gradient of a party's loss reaches only the model of this party.
        """
        _, inputs = batch
        supervised = []
        outputs = []
        for model, examples, own_batches in zip(self.models, self.trains, self._batches, strict=True):
            positions, own_inputs = next(own_batches)
            labels = examples.labels[positions.to(examples.labels.device)]
            supervised.append(F.cross_entropy(model(**own_inputs), labels))
            outputs.append(model(**inputs))
        mutual = peer_losses(self._parties.loss, outputs, self.points)
        return torch.stack(supervised) + self._parties.weight * torch.stack(mutual)

    def score(self, epoch: int) -> float | None:
        """Return the macro-F1 on validation examples, averaged over the parties that have validation examples.

        If no party has validation examples, the result is None.
        """
        if not self.valids:
            return None
        total = 0.0
        for number, valid in self.valids.items():
            title = f"{self.request.stage} {self._parties.parties[number]}"
            total += valid_score(self.models[number], valid, title, epoch)
        return total / len(self.valids)
