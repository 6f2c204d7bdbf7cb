"""DP-FedAvg (McMahan et al. 2018, Algorithm 1): clients' updates are clipped, summed, noised and divided.

A client's update is the difference of its trained model from the round's global model, over all weights. Running
statistics of BatchNorm are not sent.

Logits: what clients say of examples is clipped, summed, noised and divided, as their models are. A client's logits
z_k [n, C] of n public examples, less the mean of each row, which changes no probability, are one vector. With z, q and
K of :class:`UserPrivacy` and B = ``clip_logits``, the bound of an example in the root mean square,

    mean = (sum_k min(1, B sqrt(n) / |z_k|) z_k + N(0, z^2 B^2 n I)) / (q K).

This mean is all that a distilling server, or a client of FedMD, learns of the clients' logits. Ours: no paper has this
message.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import Trained
from knot_runner.engine.seeds import generator
from knot_runner.methods.federation import Federation, RoundRow
from knot_runner.util.errors import UserError
from knot_runner.util.messages import counted


@dataclass(frozen=True)
class UserPrivacy:
    """``clip_norm`` C (None: not clipped), ``noise_multiplier`` z, and how ``participants`` of ``clients`` are drawn:
    qK of K, with ``poisson`` each independently, so that this is a round's mean number.

    ``control_scale``, ``label_scale``: what the change of a control variate (SCAFFOLD), and shares of labels (FedGen),
    are multiplied by before they are clipped along with the model's change. ``clip_logits``: see above.
    ``messages``: how many vectors a client sends in a round, each clipped to its own bound and covered by noise of z
    times that: as one vector, in units of its bounds, they change by sqrt(messages) at most.
    """

    clip_norm: float | None
    noise_multiplier: float
    sampling: Literal["poisson", "fixed"]
    participants: int
    clients: int
    control_scale: float = 1.0
    label_scale: float = 1.0
    clip_logits: float = 1.0
    messages: int = 1
    #: name and size of each sum of clipped messages in the current round, as :func:`private_sum` notes them
    sums: set[str] = field(default_factory=set, compare=False)

    @property
    def rate(self) -> float:
        """q, a client's probability to take part in a round."""
        return self.participants / self.clients

    def poisson_draw(self, clients: Sequence[int], seed: int, round: int) -> list[int]:
        """The participants of ``round``: each of ``clients`` by itself with probability q, from (seed, round)."""
        draws = torch.rand(len(clients), dtype=torch.float64, generator=generator(seed, "poisson", round))
        taken = (draws < self.rate).tolist()
        return [client for client, takes_part in zip(clients, taken, strict=True) if takes_part]


def private_mean(
    privacy: UserPrivacy, seed: int, round: int, start: Tensor, trained: list[Trained]
) -> tuple[Tensor, RoundRow]:
    """w + (sum_k clip(w_k - w) + N(0, z^2 C^2 I)) / (q K), [P], for the global model ``start`` w; and the norms of the
    updates before clipping, with the share of them that was clipped. Computed in float64, in the order given.
    """
    before = start.double()
    updates = (result.weights.double() - before for result in trained)
    total, norms = private_sum(privacy, seed, round, torch.zeros_like(before), updates)
    return (before + total / privacy.participants).to(start.dtype), norms_row(privacy, norms)


def private_sum(
    privacy: UserPrivacy, seed: int, round: int, total: Tensor, updates: Iterable[Tensor], message: str = "noise"
) -> tuple[Tensor, list[float]]:
    """sum_k clip(u_k) + N(0, z^2 C^2 I) of the ``updates`` u_k [n], float64, added to ``total`` [n], which is zero;
    and their norms before clipping.

    The noise is drawn from (seed, round, ``message``), so that a resumed run adds the same, and another message of the
    round other noise; without participants there is only it.
    """
    privacy.sums.add(f"{message} {total.numel()}")
    norms = []
    for update in updates:
        norms.append(float(update.norm()))
        total.add_(update, alpha=shrinks_by(privacy, norms[-1]))
    if privacy.noise_multiplier:
        noise = torch.randn(total.shape, dtype=torch.float64, generator=generator(seed, f"privacy {message}", round))
        total.add_(noise, alpha=privacy.noise_multiplier * privacy.clip_norm)
    return total, norms


def check_sums(privacy: UserPrivacy, algorithm: str) -> None:
    """Raise :class:`UserError` unless each message of a round's clients was clipped and noised, as epsilon assumes."""
    clipped, sent = len(privacy.sums), privacy.messages
    if clipped != sent:
        raise UserError(
            f"method.algorithm={algorithm} clipped {clipped} of {counted(sent, 'message')} of a client in a "
            "round, so epsilon would be wrong. Take the mean of its clients' updates by user_privacy.private_mean, or "
            "remove privacy",
            "privacy",
        )


def norms_row(privacy: UserPrivacy, norms: list[float]) -> RoundRow:
    """A round's log entries: the ``norms`` before clipping, and the share of them above C if there are any."""
    row: RoundRow = {"update_norms": norms}
    if norms:
        row["clipped"] = sum(shrinks_by(privacy, norm) < 1 for norm in norms) / len(norms)
    return row


def shrinks_by(privacy: UserPrivacy, norm: float) -> float:
    """min(1, C / norm)."""
    bound = privacy.clip_norm
    return 1.0 if bound is None or norm <= bound else bound / norm


def private_mean_logits(
    privacy: UserPrivacy, federation: Federation, round: int, rows: int, logits: list[Tensor]
) -> Tensor:
    """The noisy mean [n, C] of the ``logits`` (each [n, C]) of a round's participants, of ``rows`` = n examples, in the
    precision of the models. Without participants there is noise alone."""
    privacy, classes = logits_privacy(privacy, rows), len(federation.labels.names)
    zeros = torch.zeros(rows, classes, dtype=torch.float64)
    total, _ = private_sum(privacy, federation.seed, round, zeros, _centered(logits), "logits")
    return (total / privacy.participants).to(federation.architectures[0].start.weights.dtype)


def logits_row(privacy: UserPrivacy, logits: list[Tensor]) -> RoundRow:
    """A round's log entries, as of models (:func:`norms_row`)."""
    norms = [float(own.norm()) for own in _centered(logits)]
    return norms_row(logits_privacy(privacy, len(logits[0]) if logits else 0), norms)


def logits_privacy(privacy: UserPrivacy, rows: int) -> UserPrivacy:
    """``privacy`` whose bound is that of ``rows`` examples' logits; without one where models are not clipped either."""
    bound = None if privacy.clip_norm is None else privacy.clip_logits * math.sqrt(rows)
    return dataclasses.replace(privacy, clip_norm=bound)


def _centered(logits: list[Tensor]) -> Iterator[Tensor]:
    for own in logits:
        yield own.double() - own.double().mean(1, keepdim=True)
