"""Terminal summary of one run, from its ``result.json``."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from knot_runner.config.settings.families import FAMILIES, load
from knot_runner.metrics import METRICS, accuracy_first
from knot_runner.report.records.run_view import SummaryRow, bold, cost_lines, dim_lines, run_view
from knot_runner.report.render.table_model import display
from knot_runner.report.render.terminal import DIM, text_line
from knot_runner.report.render.text import number, plain
from knot_runner.report.run_rows import MODELS
from knot_runner.results.base import EVALUATED, RunResult
from knot_runner.results.federated import FederatedResult
from knot_runner.results.training import ProbeResult, StagesResult
from knot_runner.util.messages import counted


def summary_table(result: RunResult) -> Group:
    """Summary of a run: measures per data set before and after distillation; a federated run's measures and rounds; a
    probe's temperatures."""
    name = f"{result.task} · {display(result.method)} · seed {result.seed}"
    if result.status == "diverged":
        return Group(text_line(f"{name}: diverged, so there are no numbers", "bold"), *dim_lines([], result))
    summary: Group = load(FAMILIES[result.kind].summary)(name, result)
    return summary


# ------------------------------------------------------------------------------------------------------- distillation


def stages_summary(name: str, result: StagesResult) -> Group:
    epoch = result.selected_epoch
    measures = [metric for metric in METRICS if metric in result.metrics]
    names = dict.fromkeys(data for metric in measures for data in result.metrics[metric] if data != "ALL")
    rows: list[SummaryRow] = []
    for data in (*names, "ALL"):
        rows += [None] if data == "ALL" else []
        is_global = data in result.datasets and result.datasets[data].role == "global"
        title = data + (" (global)" if is_global else "")
        rows.append((title, [_change(result, metric, data) for metric in measures]))
    kept = "the weights of epoch 0, the undistilled global model" if epoch == 0 else f"the weights of epoch {epoch}"
    what = "each model on its own test set" if epoch is None else "pretrained global model -> after distillation"
    if result.parties:
        what = "each party's own model on its own test set, alone -> after mutual learning"
    lines = [f"{what}; SD: semantic distance, lower is better", *_ensemble(result)]
    lines += [f"kept: {kept}"] if epoch is not None else []
    lines += cost_lines(result)
    heads = ["data set", *(METRICS[metric].short or METRICS[metric].title for metric in measures)]
    return run_view(name, result, heads, rows, lines)


def _ensemble(result: StagesResult) -> list[str]:
    """A line on the ensemble (mean of all teachers' probabilities), if it was evaluated."""
    found = (result.baselines or {}).get("ensemble", {})
    values = [f"{METRICS[metric].short or METRICS[metric].title} {number(value, 3)}" for metric, value in found.items()]
    return [f"ensemble of the teachers, on the global model's test set: {', '.join(values)}"] if values else []


def _change(result: StagesResult, metric: str, dataset: str) -> Text:
    distilled = result.selected_epoch is not None
    before = (result.before or {}).get(metric, {}).get(dataset) if distilled else None
    after = result.metrics[metric].get(dataset)
    text = Text(f"{number(before, 3)} -> " if before is not None else "", style=DIM)
    text.append(number(after, 3) if after is not None else "-", style="not dim bold")
    return text


# ------------------------------------------------------------------------------------------------- federated and probe


def federated_summary(name: str, result: FederatedResult) -> Group:
    metrics, shown = result.metrics, {}
    for metric in accuracy_first():
        shown[METRICS[metric].title] = metrics.get(metric, {}).get("ALL")
    titles = {"weighted": "weighted by examples", "unweighted": "unweighted", "clusters": "unweighted over clusters"}
    for key, title in titles.items():
        shown[f"accuracy over clients, {title}"] = metrics.get("client_accuracy", {}).get(key)
    rows = [(title, [bold(number(value, 3))]) for title, value in shown.items() if value is not None]
    best, sizes = result.best, result.datasets
    largest = "up to " if result.models else ""
    lines = [
        f"best accuracy {number(best.accuracy, 3)} after {counted(best.round, 'round')}",
        *_reached(result),
        *_on_clock(result),
        *cluster_lines(result),
        *_distilled(result),
        *_architectures(result),
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
    """``5 clusters (affinity) of 4, 3, 5, 4, 4 clients``, and their agreement with planted groups."""
    clusters = result.clusters
    if clusters is None:
        return []
    if clusters.graph == "none":
        return ["one cluster of all clients (method.clustering.graph=none)"]
    sizes = ", ".join(map(str, clusters.sizes))
    lines = [f"{clusters.count} clusters ({clusters.graph}) of {sizes} clients"]
    if clusters.ari is not None:
        lines.append(f"adjusted Rand index to the planted groups {number(clusters.ari, 3)} (1: the same; 0: chance)")
    return lines


def _distilled(result: FederatedResult) -> list[str]:
    """``distilled in 30 rounds: accuracy +0.012 from before to after, on average``."""
    found = result.distilled
    if found is None:
        return []
    gain = found.gain
    what = "" if gain is None else f": accuracy {gain:+.3f} from before to after, on average"
    return [f"distilled in {counted(found.rounds, 'round')}{what}"]


def _architectures(result: FederatedResult) -> list[str]:
    """``accuracy by architecture: cnn_8 (7 clients) 0.812, ...``, where clients have several."""
    shown = []
    for name, own in (result.models or {}).items():
        accuracy = "-" if own.accuracy is None else number(own.accuracy, 3)
        shown.append(f"{name} ({own.clients} clients) {accuracy}")
    return [f"accuracy by architecture: {', '.join(shown)}"] if shown else []


def _reached(result: FederatedResult) -> list[str]:
    """``target 0.740 not reached in 30 rounds``, or how to set one."""
    if result.target is None:
        return ["rounds to target: not recorded. Set training.target=0.8 to count the rounds to 80% accuracy"]
    first, trained = result.rounds_to_target, counted(result.rounds, "round")
    end = f"reached after {counted(first, 'round')}" if first is not None else f"not reached in {trained}"
    which = MODELS.get(str(result.evaluated))
    return [f"target {number(result.target, 3)}{f' (accuracy of {which})' if which else ''} {end}"]


def _privacy_lines(result: FederatedResult) -> list[str]:
    """``(epsilon, delta) = (3.2, 0.001) at user level after 60 rounds`` of private training, and how much was
    clipped."""
    facts = result.privacy
    if facts is None:
        return []
    epsilon, rounds = facts.epsilon, facts.rounds
    shown = "infinity" if epsilon is None else f"{epsilon:.3g}"
    after = counted(rounds, "round")
    by = f" ({facts.accountant}, simulated)" if facts.accountant else " (without noise)"
    lines = [f"(epsilon, delta) = ({shown}, {facts.delta:.2g}) at user level after {after}{by}"]
    lines.append(f"neighboring relation of epsilon: {facts.neighbors} one client")
    if facts.clipped is not None:
        clip = "nothing is clipped" if facts.clip_norm is None else f"{facts.clipped:.0%} of updates clipped"
        lines.append(f"{clip}, median norm {number(facts.median_norm, 3)}")
    return lines


def _on_clock(result: FederatedResult) -> list[str]:
    """``virtual clock: target after 900 s of 3,000 s; 90 updates, 8 of partial work, 12 dropped out``."""
    fleet = result.fleet
    if fleet is None:
        return []
    first, lost = result.time_to_target, []
    end = f"{fleet.clock:,.0f} s" if first is None else f"target after {first:,.0f} s of {fleet.clock:,.0f} s"
    for key, what in (("partial", "of partial work"), ("dropped", "dropped out"), ("late", "came too late")):
        count = getattr(fleet, key)
        lost += [f"{count:,} {what}"] if count else []
    stale = [f"{fleet.staleness:.1f} server steps old on average"] if fleet.staleness else []
    return [f"virtual clock: {end}; " + ", ".join([f"{fleet.arrived:,} updates", *stale, *lost])]


def probe_summary(name: str, result: ProbeResult) -> Group:
    temperatures = ", ".join(f"{value:g}" for value in result.temperatures)
    about = f"{result.model} probed at T = {temperatures}; report.kind=gradients of a preset draws it"
    return Group(text_line(name, "bold"), *dim_lines([about], result))


def personal_lines(result: FederatedResult) -> list[str]:
    """Lines on which of the clients' models is reported, and its gains and losses against the last round's."""
    facts = result.personalization
    if facts is None:
        return _unseen(result)
    point, start = facts.points[facts.chosen], facts.start
    if point.alpha == 0:
        which = "the models of the last round were the best on the held-out examples"
    else:
        which = f"each client's own model, {point.epochs} epochs after the rounds"
    lines = [f"{plain(facts.kind)}: {which}"]
    for key, title in (("id_accuracy", "ID"), ("ood_accuracy", "OOD")):
        before, after = number(getattr(start, key), 3), number(getattr(point, key), 3)
        lines.append(f"{title} accuracy {before} after the last round -> {after}")
    return [*lines, *_unseen(result)]


def _unseen(result: FederatedResult) -> list[str]:
    count = result.unseen
    return [f"{count} more clients took part in no round; their accuracy is that of unseen clients"] if count else []
