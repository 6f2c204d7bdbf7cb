"""What a run costs in bytes and FLOPs: of each round in ``rounds.jsonl``, and in all in ``result.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.config.strict import require
from knot_runner.results.base import Amount, Count

#: Of a row of ``rounds.jsonl``: all clients of the round together; FLOPs are null where they cannot be counted.
BYTES, FLOPS = ("bytes_down", "bytes_up"), ("client_flops", "server_flops")
#: What the FLOPs of a result are.
FORMULA = (
    "3 F per example and epoch of training, F per example of inference; F: matrix products, convolutions and attention "
    "of one forward pass (backward = twice forward: Kaplan et al. 2020, section 2.1)"
)


@dataclass(kw_only=True)
class CostFacts:
    """Costs of a whole run. ``sent``: what the bytes are of; ``bytes``: both ways; ``bytes_to_target``: up to the end
    of the round that reaches the target; FLOPs are by ``formula``, null where they cannot be counted.

    ``example_flops``: F of one example, a text of ``example_tokens`` tokens, the mean; ``stages``: FLOPs by stage;
    ``personal_flops``: of ``client_flops``, what followed the rounds (``method.personalisation``).
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
    """Whether ``row`` says what its round cost; those of earlier versions do not."""
    return all(key in row for key in (*BYTES, *FLOPS))


def bytes_of(rows: Sequence[dict[str, Any]]) -> int | None:
    """Both ways, in all ``rows``; None where one of them does not say."""
    if not all(has_costs(row) for row in rows):
        return None
    return sum(row[key] for row in rows for key in BYTES)


def summed_costs(rows: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """Each cost over ``rows``, which all have them; None where one is not known of some row."""
    found: dict[str, int | None] = {}
    for key in (*BYTES, *FLOPS):
        values = [row[key] for row in rows]
        found[key] = None if None in values else sum(values)
    return found


def total_costs(rows: Sequence[dict[str, Any]], reached: int | None, sent: str, **facts: Any) -> dict[str, Any] | None:
    """:class:`CostFacts`, as plain data, of the ``rows`` of a run that met its target after ``reached`` rounds (None:
    not at all), with what else there is to say; None where rows do not say what they cost."""
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
