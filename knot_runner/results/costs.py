"""Costs of a run in bytes and FLOPs: per round in ``rounds.jsonl``, in total in ``result.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.config.strict import require
from knot_runner.results.base import Amount, Count

#: Keys in a row of ``rounds.jsonl``, summed over the round's clients; FLOPs are null if they cannot be counted.
BYTES, FLOPS = ("bytes_down", "bytes_up"), ("client_flops", "server_flops")
#: How the FLOPs of a result are counted.
FORMULA = (
    "3 F per example and epoch of training, F per example of inference; F: matrix products, convolutions and attention "
    "of one forward pass (backward = twice forward: Kaplan et al. 2020, section 2.1)"
)


@dataclass(kw_only=True)
class CostFacts:
    """Costs of a whole run. ``sent``: what the bytes consist of; ``bytes``: both directions; ``bytes_to_target``: up to
    the end of the round that reaches the target; FLOPs are counted by ``formula``, null if they cannot be counted.

    ``example_flops``: F of one example, for texts of ``example_tokens`` tokens (the mean); ``stages``: FLOPs by stage;
    ``personal_flops``: the part of ``client_flops`` after the rounds (``method.personalisation``).
    """

    sent: str
    bytes_up: Count
    bytes_down: Count
    bytes: Count
    bytes_per_round: Amount
    client_flops: Count | None
    server_flops: Count | None
    formula: str
    bytes_to_target: Count | None = None
    example_flops: Count | None = None
    example_tokens: Count | None = None
    stages: dict[str, Count | None] | None = None
    personal_flops: Count | None = None

    def __post_init__(self) -> None:
        require(self.bytes == self.bytes_up + self.bytes_down, "bytes", "are not those up and down together")
        reached = self.bytes_to_target
        require(reached is None or reached <= self.bytes, "bytes_to_target", f"{reached} is more than all bytes")


def has_costs(row: dict[str, Any]) -> bool:
    """Whether log row ``row`` has costs; those of earlier versions have none."""
    return all(key in row for key in (*BYTES, *FLOPS))


def bytes_of(rows: Sequence[dict[str, Any]]) -> int | None:
    """Total bytes of ``rows`` in both directions; None if a row has no costs."""
    if not all(has_costs(row) for row in rows):
        return None
    return sum(row[key] for row in rows for key in BYTES)


def summed_costs(rows: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """Each cost summed over ``rows``, which all have costs; None if it is unknown in some row."""
    found: dict[str, int | None] = {}
    for key in (*BYTES, *FLOPS):
        values = [row[key] for row in rows]
        found[key] = None if None in values else sum(values)
    return found


def total_costs(rows: Sequence[dict[str, Any]], reached: int | None, sent: str, **facts: Any) -> dict[str, Any] | None:
    """:class:`CostFacts`, as plain data, from the log ``rows`` of a run that met its target after ``reached`` rounds
    (None: never), with the further fields ``facts``; None if rows have no costs."""
    total = bytes_of(rows)
    if total is None:
        return None
    return {
        "sent": sent,
        **summed_costs(rows),
        "bytes": total,
        "bytes_per_round": total / max(len(rows), 1),
        "bytes_to_target": None if reached is None else bytes_of(rows[:reached]),
        "formula": FORMULA,
        **facts,
    }
