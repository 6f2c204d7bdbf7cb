"""Summary of the log rows of a federated run."""

from __future__ import annotations

from knot_runner import metrics
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, LogRow
from knot_runner.util.messages import counted


def summarize(rows: list[LogRow], target: float | None) -> Facts:
    """Returns the result's metrics: those of the last evaluated round, the best accuracy, the first round at
    ``target``."""
    measured = [row for row in rows if "accuracy" in row]
    if not measured:
        problem = f"its plan ended after {counted(len(rows), 'round')}, before an evaluation"
        raise UserError(problem, "method.algorithm", hint="Return requests, or use training.evaluate_every=1")
    last = measured[-1]
    curve = [(row["round"], row[metrics.ACCURACY]) for row in measured]
    best = max(value for _, value in curve)
    return {
        "metrics": {key: {"ALL": last[key]} for key in metrics.METRICS if isinstance(last.get(key), float)}
        | {"client_accuracy": last["client_accuracy"]},
        "best": {"accuracy": best, "round": metrics.reached_at(curve, best)},
        "target": target,
        "rounds_to_target": metrics.reached_at(curve, target),
        "rounds": len(rows),
        **_distilled(rows),
        **_fleet(rows, target),
    }


def _distilled(rows: list[LogRow]) -> Facts:
    """Returns a summary of the server's distillations."""
    distilled = [row for row in rows if "distill_loss" in row]
    if not distilled:
        return {}
    found = {"rounds": len(distilled), "loss": distilled[-1]["distill_loss"]}
    measured = [(row["distill_before"], row["distill_after"]) for row in distilled if "distill_after" in row]
    if measured:
        gains = [after - before for before, after in measured]
        found |= {"before": measured[-1][0], "after": measured[-1][1], "gain": sum(gains) / len(gains)}
    return {"distilled": found}


def _fleet(rows: list[LogRow], target: float | None) -> Facts:
    """Returns the clock at the end and at the first round at ``target``, and what became of clients; {} without a
    fleet."""
    if not rows or "clock" not in rows[-1]:
        return {}
    arrived = [len(row["participants"]) for row in rows]
    stale = sum(row["staleness"] * count for row, count in zip(rows, arrived, strict=True) if count)
    facts = {
        "clock": rows[-1]["clock"],
        "arrived": sum(arrived),
        **{key: sum(row[key] for row in rows) for key in ("dropped", "late", "partial")},
        "empty": arrived.count(0),
        "staleness": stale / sum(arrived) if sum(arrived) else None,
    }
    curve = [(row["clock"], row[metrics.ACCURACY]) for row in rows if metrics.ACCURACY in row]
    return {"fleet": facts, "time_to_target": metrics.reached_at(curve, target)}
