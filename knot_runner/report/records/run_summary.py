"""Terminal summary of one run, from its ``result.json``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.text import Text

from knot_runner.config.plugins import load
from knot_runner.config.settings.families import FAMILIES
from knot_runner.metrics import METRICS, accuracy_first
from knot_runner.report.render.table_model import display
from knot_runner.report.render.terminal import DIM, TerminalColumn, summary_grid, text_line
from knot_runner.report.render.text import number, plain, quantity
from knot_runner.report.run_folders import lookup
from knot_runner.report.run_rows import MODELS
from knot_runner.results import EVALUATED, RunResult
from knot_runner.results.federated import FederatedResult
from knot_runner.results.training import DistillResult, StagesResult
from knot_runner.util.errors import counted

#: A row of a summary: the row's name and values. None is a line between rows.
SummaryRow = tuple[str, Sequence[Text | str]] | None


def summary_table(result: RunResult) -> Group:
    """Return the summary of a run.

    It shows the measures per data set before and after distillation, a federated run's measures and rounds, or a
    probe's temperatures.
    """
    name = f"{result.task} · {display(result.method)} · seed {result.seed}"
    if result.status == "diverged":
        return Group(text_line(f"{name}: diverged, so there are no results", "bold"), *dim_lines([], result))
    summary: Group = load(FAMILIES[result.kind].summary)(name, result)
    return summary


def metrics_summary(name: str, result: RunResult) -> Group:
    """Return each metric over all data sets, for a method family without a summary function."""
    return run_view(name, result, ["metric", "value"], _overall(result), cost_lines(result))


def _overall(result: RunResult) -> list[tuple[str, list[Text]]]:
    """Return a row per metric, with its value over all data sets."""
    values = {METRICS[metric].title: lookup(result, f"metrics.{metric}.ALL") for metric in accuracy_first()}
    return [(title, [bold(number(value, 3))]) for title, value in values.items() if value is not None]


# ------------------------------------------------------------------------------------------------------- distillation


def stages_summary(name: str, result: StagesResult) -> Group:
    """Return the summary of a distillation."""
    epoch = result.selected_epoch
    measures = [metric for metric in METRICS if metric in result.metrics]
    names = dict.fromkeys(itertools.chain(*(result.metrics[metric] for metric in measures)))
    names.pop("ALL", None)
    rows: list[SummaryRow] = []
    for data in (*names, "ALL"):
        if data == "ALL":
            rows.append(None)
        title = data + (" (global)" if data in result.global_sets else "")
        rows.append((title, [_change(result, metric, data) for metric in measures]))
    what = "each model on its own test set" if epoch is None else "pretrained global model -> after distillation"
    if result.parties:
        what = "model of each party on its own test set: trained alone -> after mutual learning"
    lines = [f"{what}; {_short_names()}"]
    ensemble = lookup(result, "baselines.ensemble")  # the mean of all teachers' probabilities
    if ensemble:
        values = ", ".join(f"{_head(metric)} {number(value, 3)}" for metric, value in ensemble.items())
        lines.append(f"ensemble of the teachers, on the global model's test set: {values}")
    if epoch is not None:
        kept = f"epoch {epoch}" if epoch else "epoch 0, the undistilled global model"
        lines.append(f"selected: the weights of {kept}")
    lines += cost_lines(result)
    return run_view(name, result, ["data set", *map(_head, measures)], rows, lines)


def _head(metric: str) -> str:
    return METRICS[metric].short or METRICS[metric].title


def _short_names() -> str:
    """Explain the metrics that have a short name, as in ``SD: semantic distance, lower is better``."""
    named = [metric for metric in METRICS.values() if metric.short]
    return "; ".join(f"{metric.short}: {metric.title}, {metric.better} is better" for metric in named)


def _change(result: StagesResult, metric: str, dataset: str) -> Text:
    distilled = result.selected_epoch is not None
    before = (result.before or {}).get(metric, {}).get(dataset) if distilled else None
    after = result.metrics[metric].get(dataset)
    text = Text(f"{number(before, 3)} -> " if before is not None else "", style=DIM)
    text.append(number(after, 3) if after is not None else "-", style="not dim bold")
    return text


# ----------------------------------------------------------------------------------------------------------- federated


def federated_summary(name: str, result: FederatedResult) -> Group:
    """Return the summary of a federated run."""
    rows = _overall(result)
    titles = {"weighted": "weighted by examples", "unweighted": "unweighted", "clusters": "unweighted over clusters"}
    for key, title in titles.items():
        if (value := lookup(result, f"metrics.client_accuracy.{key}")) is not None:
            rows.append((f"accuracy over clients, {title}", [bold(number(value, 3))]))
    best = result.best
    sizes = result.datasets
    distilled = result.distilled
    lines = [f"best accuracy {number(best.accuracy, 3)} after {counted(best.round, 'round')}"]
    lines += _reached(result) + _on_clock(result) + cluster_lines(result)
    if distilled is not None:
        gained = f": average change of accuracy {distilled.gain:+.3f}" if distilled.gain is not None else ""
        lines.append(f"distilled in {counted(distilled.rounds, 'round')}{gained}")
    if result.models:
        each = []
        for architecture, score in result.models.items():
            accuracy = "-" if score.accuracy is None else number(score.accuracy, 3)
            each.append(f"{architecture} ({score.clients} clients) {accuracy}")
        lines.append(f"accuracy by architecture: {', '.join(each)}")
    largest = "up to " if result.models else ""
    lines += [
        *personal_lines(result),
        *_privacy_lines(result),
        f"{result.clients} clients with {sizes.train:,} training examples; {sizes.test:,} test examples",
        f"{result.model}, {largest}{result.parameters:,} parameters; "
        f"{counted(result.rounds, 'round')} on engine {result.engine} "
        f"in {result.seconds.rounds:,.0f} s",
        *cost_lines(result),
    ]
    return run_view(name, result, (EVALUATED.get(str(result.evaluated), "after the last round"), ""), rows, lines)


def cluster_lines(result: FederatedResult) -> list[str]:
    """Return lines such as ``5 clusters (affinity) of 4, 3, 5, 4, 4 clients``.

    They also state the agreement with known groups.
    """
    clusters = result.clusters
    if clusters is None:
        return []
    if clusters.graph == "none":
        return ["one cluster of all clients (method.clustering.graph=none)"]
    sizes = ", ".join(map(str, clusters.sizes))
    lines = [f"{clusters.count} clusters ({clusters.graph}) of {sizes} clients"]
    if clusters.ari is not None:
        lines.append(f"adjusted Rand index with the planted groups {number(clusters.ari, 3)} (1: identical; 0: chance)")
    return lines


def _reached(result: FederatedResult) -> list[str]:
    """Return a line such as ``target 0.740 not reached in 30 rounds``, or how to set a target."""
    if result.target is None:
        return ["rounds to target: not recorded. Set training.target=0.8 to count the rounds to 80% accuracy"]
    first = result.rounds_to_target
    trained = counted(result.rounds, "round")
    end = f"reached after {counted(first, 'round')}" if first is not None else f"not reached in {trained}"
    which = MODELS.get(str(result.evaluated))
    return [f"target {number(result.target, 3)}{f' (accuracy of {which})' if which else ''} {end}"]


def _privacy_lines(result: FederatedResult) -> list[str]:
    """Return the line on private training: its epsilon and delta, and the share of clipped updates.

    For example ``(epsilon, delta) = (3.2, 0.001) at user level after 60 rounds``.
    """
    facts = result.privacy
    if facts is None:
        return []
    epsilon = "infinity" if facts.epsilon is None else f"{facts.epsilon:.3g}"
    after = counted(facts.rounds, "round")
    by = f" ({facts.accountant}, simulated)" if facts.accountant else " (without noise)"
    lines = [f"(epsilon, delta) = ({epsilon}, {facts.delta:.2g}) at user level after {after}{by}"]
    lines.append(f"neighboring relation of epsilon: {facts.neighbors} one client")
    if facts.clipped is not None:
        clip = "nothing is clipped" if facts.clip_norm is None else f"{facts.clipped:.0%} of updates clipped"
        lines.append(f"{clip}, median norm {number(facts.median_norm, 3)}")
    return lines


def _on_clock(result: FederatedResult) -> list[str]:
    """Return a line that summarizes a fleet's virtual clock.

    For example ``virtual clock: target after 900 s of 3,000 s; 90 updates, 8 of partial work, 12 dropped out``.
    """
    fleet = result.fleet
    first = result.time_to_target
    if fleet is None:
        return []
    end = f"{fleet.clock:,.0f} s" if first is None else f"target after {first:,.0f} s of {fleet.clock:,.0f} s"
    facts = [f"{fleet.arrived:,} updates"]
    if fleet.staleness:
        facts.append(f"{fleet.staleness:.1f} server steps old on average")
    lost = {"of partial work": fleet.partial, "dropped out": fleet.dropped, "came too late": fleet.late}
    facts += [f"{count:,} {what}" for what, count in lost.items() if count]
    return [f"virtual clock: {end}; {', '.join(facts)}"]


def personal_lines(result: FederatedResult) -> list[str]:
    """Return lines on the clients' reported models, and on their gains and losses since the last round."""
    lines = []
    facts = result.personalization
    if facts is not None:
        point = facts.points[facts.chosen]
        start = facts.start
        which = f"each client's own model, after {point.epochs} more epochs"
        if point.alpha == 0:
            which = "the models of the last round were the best on the held-out examples"
        lines.append(f"{plain(facts.kind)}: {which}")
        for title, before, after in (
            ("ID", start.id_accuracy, point.id_accuracy),
            ("OOD", start.ood_accuracy, point.ood_accuracy),
        ):
            lines.append(f"{title} accuracy {number(before, 3)} after the last round -> {number(after, 3)}")
    if result.unseen:
        lines.append(f"{result.unseen} more clients participated in no round; they are the unseen clients")
    return lines


# ---------------------------------------------------------------------------------------------- distillation by terms


def distill_summary(name: str, result: DistillResult) -> Group:
    """Return the measures of the student and the teachers, and the weight and first ratio of every loss term."""
    measures = [metric for metric in METRICS if metric in result.metrics]
    models = {"student": {metric: result.metrics[metric]["ALL"] for metric in measures}, **(result.baselines or {})}
    rows: list[SummaryRow] = []
    for model, values in models.items():
        rows.append((model, [bold(number(values[metric], 3) if metric in values else "-") for metric in measures]))
    lines = [f"on the test set; {_short_names()}"]
    phases = [(f"phase {i}, {phase.epochs} epochs: ", phase.terms) for i, phase in enumerate(result.phases or [], 1)]
    for when, terms in [*phases, ("", result.terms)]:
        for name_of_term, term in terms.items():
            facts = f"weight {term.weight:.3g}, initially {term.ratio:.3g} times the cross-entropy"
            lines.append(f"{when}{plain(name_of_term)}: {facts}")
    if synthesis := result.synthesis:
        released = synthesis.released
        size = f"{plain(released.kind)}, {released.floats:,} numbers, {released.bytes:,} bytes"
        lines.append(f"{synthesis.images:,} images generated by {plain(synthesis.kind)}; released: {size}")
    lines.append(f"selected: the weights of epoch {result.selected_epoch}")
    lines += cost_lines(result)
    return run_view(name, result, ["model", *map(_head, measures)], rows, lines)


# ---------------------------------------------------------------------------------------------------- building blocks


def run_view(
    name: str,
    result: RunResult,
    heads: Sequence[str],
    rows: Iterable[SummaryRow],
    lines: Iterable[str],
    wraps: bool = False,
) -> Group:
    """Return a table titled ``name`` with ``rows`` under ``heads``. The first column names the rows.

    ``lines`` and the run's notes are printed dimmed below the table. ``wraps`` controls whether values may wrap.
    """
    columns = [TerminalColumn(heads[0], no_wrap=True)]
    columns += [TerminalColumn(head, right=True, no_wrap=not wraps) for head in heads[1:]]
    cells = [None if row is None else (row[0], *row[1]) for row in rows]
    return Group(summary_grid(columns, cells, name), *dim_lines(lines, result))


def bold(text: str) -> Text:
    """Return the main value of a row, in bold."""
    return Text(text, style="bold")


def dim_lines(lines: Iterable[str], result: RunResult) -> list[Text]:
    """Return ``lines`` and the run's notes, dimmed."""
    return [text_line(str(text), DIM) for text in [*lines, *result.notes]]


def cost_lines(result: RunResult) -> list[str]:
    """Return a line such as ``12.4 MB up, 12.4 MB down; 3.1 TFLOP at clients``; no line for results without costs."""
    costs = result.costs
    if costs is None:
        return []
    text = f"{quantity(costs.bytes_up, 'B')} up, {quantity(costs.bytes_down, 'B')} down"
    by_side = {"clients": costs.client_flops, "server": costs.server_flops}
    known = [f"{quantity(flops, 'FLOP')} at {side}" for side, flops in by_side.items() if flops]
    unknown = [side for side, flops in by_side.items() if flops is None]
    if known:
        text += f"; {', '.join(known)}"
    if unknown:
        text += f"; FLOPs at {' and '.join(unknown)} not counted"
    reached = costs.bytes_to_target
    if reached is None:
        return [text]
    return [text, f"{quantity(reached, 'B')} up and down until the target was reached"]
