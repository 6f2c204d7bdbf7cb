"""User-level privacy (DP-FedAvg, McMahan et al. 2018, Algorithm 1).

The server of the method must read only the mean of the clients' messages. All parts of a client's message are clipped
together, as one vector:

    m_k = u_k min(1, C / |s u_k|),  mean_p = (sum_k m_kp + N(0, z^2 C^2 / s_p^2 I)) / (q K).

- ``u_k`` and ``m_k``: the message of client k before and after clipping
- ``mean_p``: the noisy mean of part p of the messages
- ``C`` and ``z``: the clipping bound and the noise multiplier
- ``q`` and ``K``: the sampling rate and the number of clients
- ``s_p``: the scale of part p; it is 1 for the update of the model
- ``s u_k``: the message with each part multiplied by its scale

One client changes the sum of the scaled messages by at most C, and the server reads nothing except the noisy means.
With ``sampling=poisson``, each client takes part with probability q, independently of the other clients. In a round
without clients, the sum consists of noise only. The running statistics of BatchNorm are not sent.

A client's second message is a matrix with n rows of logits. The mean of each row is subtracted from the row. This does
not change the probabilities. The matrix is then clipped to the Frobenius norm B sqrt(n), where B is ``clip_logits``.
Private second messages are our own design.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from knot_runner.config.settings.privacy import UserPrivacySettings
from knot_runner.config.settings.run import Settings
from knot_runner.config.strict import without
from knot_runner.engine.seeds import generator
from knot_runner.methods.contract import ClientMessage, Method, Sent, State, nothing
from knot_runner.methods.federated.averaging import shared_of
from knot_runner.methods.federation import Federation, RoundRow
from knot_runner.methods.messages import Exchange
from knot_runner.util.errors import Misfit, UserError, counted

#: Message parts that hold logits. The mean of each row is subtracted, which does not change the probabilities.
CENTERED = {"logits", "labels"}


@dataclass(frozen=True)
class UserPrivacy:
    """The mechanism of user-level privacy.

    Attributes:
        clip_norm: The bound C on the norm of the first message, which a client sends after local training. None if
            messages are not clipped.
        noise_multiplier: The noise multiplier z.
        sampling: How a round's clients are drawn. With ``poisson``, each client is drawn independently; with ``fixed``,
            a fixed number of clients is drawn.
        participants: The number of clients in a round; with ``poisson``, the mean number.
        clients: The total number K of clients.
        scales: The scales s_p of parts of the first message, as pairs (name, scale).
        clip_logits: The factor B. The bound on the norm of a second message with n rows is B sqrt(n).
        messages: The number of messages that a client sends in a round. Each message has its own bound and noise.
        exchanges: Whether clients send second messages.
        rounds: The number of rounds in which clients send messages. Local training after these rounds costs no
            privacy.
        delta: The delta of (epsilon, delta)-differential privacy. Epsilon is computed for this delta.
    """

    clip_norm: float | None
    noise_multiplier: float
    sampling: Literal["poisson", "fixed"]
    participants: int
    clients: int
    scales: tuple[tuple[str, float], ...] = ()
    clip_logits: float = 1.0
    messages: int = 1
    exchanges: bool = False
    rounds: int = 1
    delta: float = 0.0

    @property
    def rate(self) -> float:
        """Return q, the probability that a client takes part in a round."""
        return self.participants / self.clients

    def scale(self, name: str, phase: int) -> float:
        """Return the scale of the message part called ``name``. ``phase``: 1 for first messages, 2 for second messages.

        In first messages, the scale of a part is its entry in ``scales``. The scale of a part without an entry is 1.
        In second messages, logits have the scale 1, and other parts have the scale ``clip_logits``.
        """
        if phase == 1:
            return dict(self.scales).get(name, 1.0)
        if name in CENTERED:
            return 1.0
        return self.clip_logits

    def bound(self, parts: ClientMessage, phase: int) -> float:
        """Return the clipping bound on the norm of a message with the given ``parts``; infinity without clipping."""
        if self.clip_norm is None:
            return math.inf
        if phase == 1:
            return self.clip_norm
        return self.clip_logits * math.sqrt(sum(map(len, parts.values())))

    def epsilon(self, rounds: int) -> float | None:
        """Return epsilon after the given number of rounds; None if epsilon is infinite, for example without noise."""
        from knot_runner.methods.around.privacy.accountant import epsilon_after

        return epsilon_after(self)(rounds)

    def facts(self, rounds: int, rows: list[State]) -> State:
        """Return the entry ``privacy`` of a run's result. ``rounds``: number of rounds. ``rows``: rows of the log."""
        from knot_runner.methods.around.privacy.accountant import accountant_name, neighbors

        norms: list[float] = []
        clipped = 0.0
        for row in rows:
            of_round = row.get("update_norms", [])
            norms += of_round
            clipped += row.get("clipped", 0.0) * len(of_round)
        facts: State = {
            "epsilon": self.epsilon(rounds),
            "delta": self.delta,
            "unit": "client",
            "neighbors": neighbors(self),
            "sampling": self.sampling,
            "rate": self.rate,
            "noise_multiplier": self.noise_multiplier,
            "clip_norm": self.clip_norm,
            "rounds": min(rounds, self.rounds),
            "accountant": accountant_name() if self.noise_multiplier else None,
            "clipped": None,
            "median_norm": None,
        }
        if norms:
            facts |= {"clipped": clipped / len(norms), "median_norm": statistics.median(norms)}
        if self.exchanges:
            facts |= {"clip_logits": self.clip_logits, "messages": self.messages}
        return {"privacy": facts}


def privately(
    method: Method, spec: UserPrivacySettings, settings: Settings, federation: Federation
) -> tuple[Method, Federation, list[str]]:
    """Make a method private.

    Returns:
        (1) The method with clipped messages and noisy means. (2) The federation, which samples clients by
        ``spec.sampling``. (3) Notes for the user.

    Raises:
        UserError: The method or the settings do not allow privacy, no noise multiplier reaches the given epsilon, or
            the accountant is not installed.
    """
    from knot_runner.methods.around.privacy import accountant  # an optional dependency, imported only if there is noise

    exchange = method.exchange and method.exchange(settings.method)
    misfit = partial(Misfit, f"privacy={spec.name}", f"method={settings.method.name}")
    if method.fold_each is not None and method.fold is None:
        raise misfit(
            "privacy protects only the mean of the clients' messages, but the server of this method reads each message"
        )
    if exchange is not None and exchange.reads == "each":
        why = "only the mean of all messages is private, but the server reads each client's logits or model separately"
        raise misfit(why, "Use method.server_distillation.ensemble=logits and method.server_distillation.weighting=A")
    if method.fold is None and exchange is None:
        raise misfit("the clients send nothing, so there is nothing to protect")
    privacy = _mechanism(spec, settings, federation, method, exchange)
    if spec.epsilon is not None:
        privacy = replace(privacy, noise_multiplier=accountant.noise_for(privacy, spec.epsilon))
    private = replace(
        method,
        fold_each=None,
        exchange=None if exchange is None else lambda config: replace(exchange, reads="mean"),
        send=lambda sent, phase: clip(privacy, method.send(sent, phase), phase),
        reduce=partial(reduce, privacy, federation.seed, method.fold is not None),
        facts=lambda rounds, rows: method.facts(rounds, rows) | privacy.facts(rounds, rows),
    )
    return private, replace(federation, sampling=spec.sampling), _notes(settings, privacy, method, federation)


def clip(privacy: UserPrivacy, sent: Sent, phase: int) -> Sent:
    """Clip the message ``sent``; return the clipped message. ``phase``: 1 for first messages, 2 for second messages.

    Running statistics are removed first. In a second message, the mean of each row of logits is subtracted from the
    row. The entry ``norm`` in the ``facts`` of the returned message is the norm before clipping.
    """
    parts = without(sent.parts, "statistics")
    if not parts:
        return replace(sent, parts={})
    if phase == 2:
        for name in parts.keys() & CENTERED:
            logits = parts[name].double()
            parts[name] = (logits - logits.mean(1, keepdim=True)).to(parts[name].dtype)
    squares = (float((privacy.scale(name, phase) * part.double()).square().sum()) for name, part in parts.items())
    norm = math.sqrt(sum(squares))
    bound = privacy.bound(parts, phase)
    if norm > bound:
        parts = {name: part * (bound / norm) for name, part in parts.items()}
    return replace(sent, parts=parts, facts={"norm": norm})


def reduce(
    privacy: UserPrivacy, seed: int, sends_models: bool, round: int, phase: int, messages: Iterable[Sent],
    empty: Callable[[], ClientMessage],
) -> tuple[ClientMessage, RoundRow]:  # fmt: skip
    """Return the noisy mean of the messages, in float64, and the round's log entries.

    The mean is the noisy sum divided by the expected number of clients. The log entries are the norms before clipping,
    the fraction of clipped messages, and epsilon.

    The noise is seeded by the argument ``seed``, the round, and the kind of message. A resumed run therefore adds the
    same noise as an uninterrupted run.
    """
    parts = without(empty(), "statistics")
    sums = {name: torch.zeros(part.shape, dtype=torch.float64) for name, part in parts.items()}
    norms: list[float] = []
    shapes = {name: part.shape for name, part in parts.items()}
    for sent in messages:
        if {name: part.shape for name, part in sent.parts.items()} != shapes:
            raise UserError("with privacy, the messages of a round must have equal names and shapes", "METHODS")
        if sent.parts:
            norms.append(sent.facts["norm"])
        for name, part in sent.parts.items():
            sums[name].add_(part.double())
    spent = privacy.epsilon(round + 1) if phase == 1 else None
    row: RoundRow = {} if spent is None else {"epsilon": spent}
    if not sums:
        return {}, row
    bound = privacy.bound(sums, phase)
    entry = "clipped"
    if phase == 2 and sends_models:
        entry = "logits_clipped"
    else:
        row["update_norms"] = norms
    if norms:
        row[entry] = sum(norm > bound for norm in norms) / len(norms)
    if bound < math.inf and privacy.noise_multiplier:
        stream = "noise" if phase == 1 else next(iter(sums))
        sizes = [part.numel() for part in sums.values()]
        draws = generator(seed, f"privacy {stream}", round)
        noise = torch.randn(sum(sizes), dtype=torch.float64, generator=draws).split(sizes)
        for draws_of_part, (name, total) in zip(noise, sums.items(), strict=True):
            deviation = privacy.noise_multiplier * bound / privacy.scale(name, phase)
            total.add_(draws_of_part.view(total.shape), alpha=deviation)
    return {name: total / privacy.participants for name, total in sums.items()}, row


def _mechanism(
    spec: UserPrivacySettings, settings: Settings, federation: Federation, method: Method, exchange: Exchange | None
) -> UserPrivacy:
    """Return the mechanism. Its noise multiplier is 0 if the accountant still has to compute the multiplier."""
    config = settings.method
    clients = len(federation)
    participants = federation.participants
    if config.batchnorm == "averaged" and len(federation.model.buffers):
        problem = (
            "with 'averaged', clients send running statistics, but privacy does not clip them. Use 'local' or 'frozen'"
        )
        raise UserError(problem, "method.batchnorm")
    delta = spec.delta
    if delta is None:
        if clients < 2:
            raise UserError(
                "for a single client, the default delta is 1, which gives no privacy. Use more clients", "privacy.delta"
            )
        delta = clients**-1.1  # the default of McMahan et al. 2018
    keeps = method.keep is not nothing or config.patterns != ("*",)
    if spec.sampling == "fixed" and participants < clients and (keeps or config.batchnorm == "local"):
        raise UserError(
            f"with method.algorithm={config.algorithm}, clients keep local state between rounds. With 'fixed', the "
            f"privacy guarantee does not cover this state. Use 'poisson', or "
            f"training.clients_per_round={clients}",
            "privacy.sampling",
        )
    control = spec.control_steps * federation.training.lr
    labels = spec.label_scale * (spec.clip_norm or 1.0)
    return UserPrivacy(
        spec.clip_norm,
        spec.noise_multiplier or 0.0,
        spec.sampling,
        participants,
        clients,
        scales=(("control", control), ("labels", labels)),
        clip_logits=spec.clip_logits,
        messages=(method.fold is not None) + (exchange is not None),
        exchanges=exchange is not None,
        rounds=federation.training.rounds,
        delta=delta,
    )


def _notes(settings: Settings, privacy: UserPrivacy, method: Method, federation: Federation) -> list[str]:
    if not privacy.noise_multiplier:
        return ["privacy.noise_multiplier: 0 adds no noise, so epsilon is infinite (null in the records)"]
    released = "the clients' mean logits"
    shown = "infinity"
    if method.fold is not None:
        released = "the global models"
    spent = privacy.epsilon(privacy.rounds)
    if spent is not None:
        shown = f"{spent:.3g}"
    notes = [
        f"privacy: (epsilon, delta) = ({shown}, {privacy.delta:.2g}) at user level after "
        f"{counted(privacy.rounds, 'round')}, noise multiplier {privacy.noise_multiplier:g}. Epsilon covers "
        f"{released}, not the accuracies in the records. The noise is simulated"
    ]
    weights = federation.model.weights[shared_of(settings.method, federation)]
    noise = privacy.noise_multiplier * (privacy.clip_norm or 0.0) * math.sqrt(len(weights)) / privacy.participants
    norm = float(weights.norm())
    if method.fold is not None and noise > norm:
        notes.append(
            f"privacy: the noise of a round has norm {noise:.3g}, but the shared part of the initial model "
            f"has norm {norm:.3g}, so training may diverge. Use a smaller privacy.clip_norm or model, or "
            "more clients per round"
        )
    if privacy.delta > 1 / privacy.clients:
        notes.append(
            f"privacy.delta: {privacy.delta:g} is larger than 1 / clients = 1 / {privacy.clients}. Use a smaller value"
        )
    if getattr(settings.model, "vocab", "") == "train":
        notes.append("privacy: model.vocab=train uses the clients' texts, which epsilon does not cover")
    return notes
