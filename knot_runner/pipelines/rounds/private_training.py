"""Private training of a run: its mechanism, notes, epsilon of every round, and facts of the result."""

from __future__ import annotations

import dataclasses
import statistics

from knot_runner.config.settings import Settings
from knot_runner.config.settings.methods.federated import FederatedTraining, server_distillation
from knot_runner.config.settings.privacy import UserPrivacySettings
from knot_runner.methods.federated.accountant import accountant_name, epsilon_after, neighbors, noise_for
from knot_runner.methods.federated.user_privacy import UserPrivacy
from knot_runner.methods.federation import Federation
from knot_runner.pipelines.context import as_kind
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, LogRow
from knot_runner.util.messages import counted


def with_privacy(federation: Federation, settings: Settings) -> Federation:
    """Returns ``federation`` with the sampling and clipping of ``settings.privacy``. Raises :class:`UserError`."""
    spec = as_kind(settings.privacy, UserPrivacySettings)
    if settings.method.batchnorm == "averaged" and len(federation.model.buffers):
        raise UserError(
            f"model={settings.model.name} has running statistics, which averaged sends without "
            "clipping; with privacy local or frozen is right",
            "method.batchnorm",
        )
    if spec.delta is None and len(federation) < 2:
        raise UserError("1 / K^1.1 of one client is 1, which hides nothing; more clients would fit", "privacy.delta")
    known = _mechanism(federation, settings)
    if spec.epsilon is not None:
        rounds = as_kind(federation.training, FederatedTraining).rounds
        found = noise_for(known, rounds, spec.epsilon, _delta(spec, known.clients))
        known = dataclasses.replace(known, noise_multiplier=found)
    if known.noise_multiplier:
        accountant_name()  # a missing accountant is reported before training
    return dataclasses.replace(federation, privacy=known)


def _mechanism(federation: Federation, settings: Settings) -> UserPrivacy:
    """Returns the mechanism of ``settings.privacy``, without noise while that is to be found. Raises
    :class:`UserError` where clients are not drawn as the accountant takes it."""
    spec, method = as_kind(settings.privacy, UserPrivacySettings), settings.method
    clients, participants = len(federation), federation.participants
    if spec.sampling == "fixed" and participants < clients and method.remembers():
        raise UserError(
            f"with fixed, who was drawn before shows in what clients of algorithm={method.algorithm} send, "
            "by what they have kept since, which the accountant does not cover; poisson, or all "
            f"{clients} clients in every round, would fit",
            "privacy.sampling",
        )
    return UserPrivacy(
        spec.clip_norm,
        spec.noise_multiplier or 0.0,
        spec.sampling,
        participants,
        clients,
        control_scale=spec.control_steps * as_kind(federation.training, FederatedTraining).lr,
        label_scale=spec.label_scale * (spec.clip_norm or 1.0),
        clip_logits=spec.clip_logits,
        messages=2 if method.averages and server_distillation(method) is not None else 1,
    )


def privacy_notes(settings: Settings, federation: Federation) -> list[str]:
    """Returns notes to the user before a private run."""
    privacy, spec = as_kind(federation.privacy, UserPrivacy), as_kind(settings.privacy, UserPrivacySettings)
    if not privacy.noise_multiplier:
        return ["privacy.noise_multiplier: 0 adds no noise, so epsilon is infinite (null in the records)"]
    rounds = as_kind(federation.training, FederatedTraining).rounds
    delta = _delta(spec, privacy.clients)
    released = "the global models" if settings.method.averages else "the clients' mean logits"
    notes = [
        f"privacy: {guarantee(epsilon_after(privacy, delta)(rounds), delta, rounds)}, noise multiplier "
        f"{privacy.noise_multiplier:g}; it is of {released}, simulated, and not of the accuracies in the records"
    ]
    if delta > 1 / privacy.clients:
        notes.append(f"privacy.delta: {delta:g} is more than 1 / {privacy.clients} clients; less is usual")
    if getattr(settings.model, "vocab", "") == "train":
        notes.append("privacy: model.vocab=train is learned from the clients' texts, which epsilon does not cover")
    return notes


def guarantee(epsilon: float | None, delta: float, rounds: int) -> str:
    """``(epsilon, delta) = (3.2, 0.001) at user level after 60 rounds``."""
    shown = "infinity" if epsilon is None else f"{epsilon:.3g}"
    return f"(epsilon, delta) = ({shown}, {delta:.2g}) at user level after {counted(rounds, 'round')}"


def epsilon_row(settings: Settings, federation: Federation, round: int) -> LogRow:
    """Returns the epsilon spent after ``round``; {} without noise. Clients' own training after the last round sends
    nothing and costs nothing."""
    spent = _spent(settings, federation, round + 1)
    return {} if spent is None else {"epsilon": spent}


def privacy_facts(settings: Settings, federation: Federation, rounds: int, rows: list[LogRow]) -> Facts:
    """Returns ``privacy`` of a result after ``rounds`` with these ``rows``."""
    privacy, spec = as_kind(federation.privacy, UserPrivacy), as_kind(settings.privacy, UserPrivacySettings)
    norms = [norm for row in rows for norm in row.get("update_norms", [])]
    clipped = [row["clipped"] * len(row["update_norms"]) for row in rows if "clipped" in row]
    facts: Facts = {
        "epsilon": _spent(settings, federation, rounds),
        "delta": _delta(spec, privacy.clients),
        "unit": "client",
        "neighbors": neighbors(privacy),
        "sampling": privacy.sampling,
        "rate": privacy.rate,
        "noise_multiplier": privacy.noise_multiplier,
        "clip_norm": privacy.clip_norm,
        "rounds": min(rounds, as_kind(federation.training, FederatedTraining).rounds),
        "accountant": accountant_name() if privacy.noise_multiplier else None,
        "clipped": sum(clipped) / len(norms) if norms else None,
        "median_norm": statistics.median(norms) if norms else None,
    }
    if server_distillation(settings.method) is not None or settings.method.sends_logits:
        facts |= {"clip_logits": privacy.clip_logits, "messages": privacy.messages}
    return {"privacy": facts}


def _spent(settings: Settings, federation: Federation, rounds: int) -> float | None:
    privacy, spec = as_kind(federation.privacy, UserPrivacy), as_kind(settings.privacy, UserPrivacySettings)
    most = as_kind(federation.training, FederatedTraining).rounds
    return epsilon_after(privacy, _delta(spec, privacy.clients))(min(rounds, most))


def _delta(spec: UserPrivacySettings, clients: int) -> float:
    """Returns the given delta, or by default that of McMahan et al. 2018."""
    return clients**-1.1 if spec.delta is None else spec.delta
