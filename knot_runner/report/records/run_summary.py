"""Terminal summary of one run, from its ``result.json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group
from rich.text import Text

from knot_runner.config.plugins import load
from knot_runner.config.settings.families import FAMILIES
from knot_runner.metrics import METRICS, accuracy_first
from knot_runner.report.render.table_model import display
from knot_runner.report.render.terminal import DIM, TerminalColumn, dimmed, summary_grid, text_line
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
    """Return the terminal summary of a run. The form of the summary depends on the kind of run."""
    name = f"{result.task} · {display(result.method)} · seed {result.seed}"
    if result.status == "diverged":
        return Group(text_line(f"{name}: diverged, so there are no results", "bold"), *dim_lines([], result))
    summary: Group = load(FAMILIES[result.kind].summary)(name, result)
    return summary


def metrics_summary(name: str, result: RunResult) -> Group:
    """Return a summary with one row per metric. Each metric is computed over all data sets."""
    return run_view(name, result, ["metric", "value"], _overall(result), cost_lines(result))


def _overall(result: RunResult) -> list[SummaryRow]:
    """Return a row per metric, with its value over all data sets."""
    keys = {METRICS[metric].title: f"metrics.{metric}.ALL" for metric in accuracy_first()}
    return _number_rows(result, keys)


def _number_rows(result: RunResult, keys: dict[str, str]) -> list[SummaryRow]:
    """Return a row (title, number) for each of ``keys`` (title -> dotted key) that the ``result`` has."""
    rows: list[SummaryRow] = []
    for title, key in keys.items():
        value = lookup(result, key)
        if value is not None:
            rows.append((title, [_score(value)]))
    return rows


# ------------------------------------------------------------------------------------------------------- distillation


def stages_summary(name: str, result: StagesResult) -> Group:
    """Return the summary of a run in stages: one row per data set, with the metrics before and after distillation."""
    measures = _measures(result)
    names: dict[str, float] = {}
    for metric in measures:
        names |= result.metrics[metric]
    names.pop("ALL", None)
    rows: list[SummaryRow] = []
    for data in (*names, "ALL"):
        if data == "ALL":
            rows.append(None)
        title = data + (" (global)" if data in result.global_sets else "")
        rows.append((title, [_change(result, metric, data) for metric in measures]))
    return run_view(name, result, ["data set", *map(_head, measures)], rows, _stages_lines(result))


def _stages_lines(result: StagesResult) -> Iterator[str]:
    epoch = result.selected_epoch
    what = "each model on its own test set" if epoch is None else "pretrained global model -> after distillation"
    if result.parties:
        what = "model of each party on its own test set: trained alone -> after mutual learning"
    yield f"{what}; {_short_names()}"
    ensemble = lookup(result, "baselines.ensemble")  # the mean of all teachers' probabilities
    if ensemble:
        values = ", ".join(f"{_head(metric)} {number(value, 3)}" for metric, value in ensemble.items())
        yield f"ensemble of the teachers, on the global model's test set: {values}"
    if epoch is not None:
        yield f"selected: the weights of epoch {epoch or '0, the undistilled global model'}"
    yield from cost_lines(result)


def _measures(result: RunResult) -> list[str]:
    return [metric for metric in METRICS if metric in result.metrics]


def _head(metric: str) -> str:
    return METRICS[metric].short or METRICS[metric].title


def _short_names() -> str:
    """Explain the metrics that have a short name, as in ``SD: semantic distance, lower is better``."""
    return "; ".join(f"{m.short}: {m.title}, {m.better} is better" for m in METRICS.values() if m.short)


def _change(result: StagesResult, metric: str, dataset: str) -> Text:
    before = (result.before or {}).get(metric, {}).get(dataset)
    text = Text(style=DIM)
    if before is not None and result.selected_epoch is not None:
        text.append(f"{number(before, 3)} -> ")
    return text.append(_score(result.metrics[metric].get(dataset)))


# ----------------------------------------------------------------------------------------------------------- federated


def federated_summary(name: str, result: FederatedResult) -> Group:
    """Return the summary of a federated run: a table of accuracies, and lines on rounds, clients, privacy and costs."""
    titles = {"weighted": "weighted by examples", "unweighted": "unweighted", "clusters": "unweighted over clusters"}
    over = {f"accuracy over clients, {title}": f"metrics.client_accuracy.{key}" for key, title in titles.items()}
    rows = [*_overall(result), *_number_rows(result, over)]
    heads = (EVALUATED.get(str(result.evaluated), "after the last round"), "")
    return run_view(name, result, heads, rows, _federated_lines(result))


def _federated_lines(result: FederatedResult) -> Iterator[str]:
    rounds = counted(result.rounds, "round")
    yield f"best accuracy {number(result.best.accuracy, 3)} after {counted(result.best.round, 'round')}"
    which = MODELS.get(str(result.evaluated))
    if result.target is None:
        yield "rounds to target: not recorded. Set training.target=0.8 to count the rounds to 80% accuracy"
    else:
        line = f"target {number(result.target, 3)}"
        if which:
            line += f" (accuracy of {which})"
        if result.rounds_to_target is None:
            yield f"{line} not reached in {rounds}"
        else:
            yield f"{line} reached after {counted(result.rounds_to_target, 'round')}"
    if fleet := result.fleet:
        parts = [f"{fleet.clock:,.0f} s; {fleet.arrived:,} updates"]
        if result.time_to_target is not None:
            parts[0] = f"target after {result.time_to_target:,.0f} s of {parts[0]}"
        if fleet.staleness:
            parts.append(f"{fleet.staleness:.1f} server steps old on average")
        lost = {"with partial work": fleet.partial, "dropped out": fleet.dropped, "came too late": fleet.late}
        for what, count in lost.items():
            if count:
                parts.append(f"{count:,} {what}")
        yield f"virtual clock: {', '.join(parts)}"
    yield from cluster_lines(result)
    if distilled := result.distilled:
        gained = "" if distilled.gain is None else f": average change of accuracy {distilled.gain:+.3f}"
        yield f"distilled in {counted(distilled.rounds, 'round')}{gained}"
    if result.models:
        each = []
        for architecture, score in result.models.items():
            each.append(f"{architecture} ({score.clients} clients) {_score(score.accuracy)}")
        yield f"accuracy by architecture: {', '.join(each)}"
    if facts := result.personalization:
        point = facts.points[facts.chosen]
        of_models = f"each client's own model, after {point.epochs} more epochs"
        if point.alpha == 0:
            of_models = "the models of the last round were the best on the held-out examples"
        yield f"{plain(facts.kind)}: {of_models}"
        for key in ("id_accuracy", "ood_accuracy"):
            before, after = (number(getattr(models, key), 3) for models in (facts.start, point))
            yield f"{key.partition('_')[0].upper()} accuracy {before} after the last round -> {after}"
    if result.unseen:
        yield f"{result.unseen} more clients participated in no round; they are the unseen clients"
    if privacy := result.privacy:
        epsilon = "infinity" if privacy.epsilon is None else f"{privacy.epsilon:.3g}"
        by = f"({privacy.accountant}, simulated)" if privacy.accountant else "(without noise)"
        after = counted(privacy.rounds, "round")
        yield f"(epsilon, delta) = ({epsilon}, {privacy.delta:.2g}) at user level after {after} {by}"
        yield f"neighboring relation of epsilon: {privacy.neighbors} one client"
        if privacy.clipped is not None:
            clip = "nothing is clipped" if privacy.clip_norm is None else f"{privacy.clipped:.0%} of updates clipped"
            yield f"{clip}, median norm {number(privacy.median_norm, 3)}"
    sizes = result.datasets
    yield f"{result.clients} clients with {sizes.train:,} training examples; {sizes.test:,} test examples"
    size = f"{'up to ' if result.models else ''}{result.parameters:,} parameters"
    yield f"{result.model}, {size}; {rounds} on engine {result.engine} in {result.seconds.rounds:,.0f} s"
    yield from cost_lines(result)


def cluster_lines(result: FederatedResult) -> Iterator[str]:
    """Yield lines on the clusters, such as ``5 clusters (affinity) of 4, 3, 5, 4, 4 clients``.

    If the partition has known groups of clients, another line states how well the clusters agree with these groups.
    """
    clusters = result.clusters
    if clusters is None:
        return
    if clusters.graph == "none":
        yield "one cluster of all clients (method.clustering.graph=none)"
        return
    yield f"{clusters.count} clusters ({clusters.graph}) of {', '.join(map(str, clusters.sizes))} clients"
    if clusters.ari is not None:
        yield f"adjusted Rand index with the planted groups {number(clusters.ari, 3)} (1: identical; 0: chance)"


# ---------------------------------------------------------------------------------------------- distillation by terms


def distill_summary(name: str, result: DistillResult) -> Group:
    """Return the summary of a distillation that minimizes a weighted sum of loss terms.

    The table shows the metrics of the student and of the other trained models. Below the table, one line per loss term
    gives the weight of the term, and the initial ratio of the weighted term to the cross-entropy.
    """
    measures = _measures(result)
    models = {"student": {metric: result.metrics[metric]["ALL"] for metric in measures}, **(result.baselines or {})}
    rows: list[SummaryRow] = []
    for model, values in models.items():
        rows.append((model, [_score(values.get(metric)) for metric in measures]))
    return run_view(name, result, ["model", *map(_head, measures)], rows, _distill_lines(result))


def _distill_lines(result: DistillResult) -> Iterator[str]:
    yield f"on the test set; {_short_names()}"
    phases = [(f"phase {i}, {phase.epochs} epochs: ", phase.terms) for i, phase in enumerate(result.phases or [], 1)]
    for when, terms in [*phases, ("", result.terms)]:
        for name, term in terms.items():
            yield f"{when}{plain(name)}: weight {term.weight:.3g}, initially {term.ratio:.3g} times the cross-entropy"
    if synthesis := result.synthesis:
        released = synthesis.released
        size = f"{plain(released.kind)}, {released.floats:,} numbers, {released.bytes:,} bytes"
        yield f"{synthesis.images:,} images generated by {plain(synthesis.kind)}; released: {size}"
    yield f"selected: the weights of epoch {result.selected_epoch}"
    yield from cost_lines(result)


# ---------------------------------------------------------------------------------------------------- building blocks


def run_view(
    name: str,
    result: RunResult,
    heads: Sequence[str],
    rows: Iterable[SummaryRow],
    lines: Iterable[str],
    wraps: bool = False,
) -> Group:
    """Return a summary of a run: a table, and dimmed lines below the table.

    Args:
        name: The title of the table.
        result: The result of the run. The notes of the result are printed below ``lines``.
        heads: The headings of the columns. The first column contains the names of the rows.
        rows: The rows of the table.
        lines: The lines below the table.
        wraps: Whether long values are wrapped.
    """
    columns = [TerminalColumn(heads[0], no_wrap=True)]
    columns += [TerminalColumn(head, right=True, no_wrap=not wraps) for head in heads[1:]]
    cells = [None if row is None else (row[0], *row[1]) for row in rows]
    return Group(summary_grid(columns, cells, name), *dim_lines(lines, result))


def bold(text: str) -> Text:
    """Return ``text`` in bold."""
    return Text(text, style="not dim bold")


def _score(value: float | None) -> Text:
    """Return the main value of a row with three digits; a dash if it is missing."""
    return bold("-" if value is None else number(value, 3))


def dim_lines(lines: Iterable[str], result: RunResult) -> list[Text]:
    """Return ``lines`` and the notes of the run, as dimmed lines."""
    return dimmed((*lines, *result.notes))


def cost_lines(result: RunResult) -> Iterator[str]:
    """Yield lines on costs, such as ``12.4 MB up, 12.4 MB down; 3.1 TFLOP at clients``.

    If the run reached the target accuracy, another line states the bytes transferred until then. If the
    result has no costs, there are no lines.
    """
    costs = result.costs
    if costs is None:
        return
    text = f"{quantity(costs.bytes_up, 'B')} up, {quantity(costs.bytes_down, 'B')} down"
    by_side = {"clients": costs.client_flops, "server": costs.server_flops}
    known = [f"{quantity(flops, 'FLOP')} at {side}" for side, flops in by_side.items() if flops]
    unknown = [side for side, flops in by_side.items() if flops is None]
    if known:
        text += f"; {', '.join(known)}"
    if unknown:
        text += f"; FLOPs at {' and '.join(unknown)} not counted"
    yield text
    if costs.bytes_to_target is not None:
        yield f"{quantity(costs.bytes_to_target, 'B')} up and down until the target was reached"
