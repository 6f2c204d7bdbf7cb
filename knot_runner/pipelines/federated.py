"""Federated learning on examples partitioned over clients. Each round plans, trains, folds, evaluates and commits."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from knot_runner import metrics
from knot_runner.config.settings.methods.federated import server_distillation
from knot_runner.config.settings.partition import Centralized
from knot_runner.engine.federated.cohort import Engine
from knot_runner.methods.around import surrounded
from knot_runner.methods.contract import METHODS, RoundMethod
from knot_runner.methods.federation import FederatedState
from knot_runner.methods.messages import in_rounds
from knot_runner.pipelines import scores
from knot_runner.pipelines.clients import Setup, client_counts, make_setup, open_engine
from knot_runner.pipelines.context import RunContext, RunInputs, RunRecord, total_seconds
from knot_runner.pipelines.models import architecture_facts, keep_models
from knot_runner.pipelines.rounds import ClientRounds, TrainingResult, run_rounds, scalars
from knot_runner.pipelines.scores import summarize
from knot_runner.results import Evaluated, total_costs
from knot_runner.util.errors import DivergedError
from knot_runner.util.files import Facts, LogRow, write_json

if TYPE_CHECKING:
    from knot_runner.pipelines.clustered import Grouping


def inspect_federated(context: RunContext) -> RunInputs:
    """Return the clients, the method with its first state, and notes on both, before distances and training.

    Raises:
        UserError: The settings do not fit the data or each other.
    """
    config, settings = context.method, context.settings
    setup = make_setup(context)
    method, federation, notes = surrounded(METHODS[config.algorithm], settings, setup.federation)
    notes = [*setup.notes, *notes]
    rounds = in_rounds(method, config)
    setup = replace(setup, federation=federation)
    if config.personalization is not None or settings.evaluate.matrix is not None:
        from knot_runner.methods.personalization.matrix import check_own_models, untested_notes

        check_own_models(config.personalization, federation)
        notes += untested_notes(federation)
    if config.clustering is not None:
        from knot_runner.methods.federated import clustering  # scikit-learn, which other runs do not need

        clustering.check_clustering(config.clustering, len(federation))
    start = rounds.init(config, federation)  # the method is checked before distances are computed
    if config.personalization is not None:
        from knot_runner.methods.personalization import PERSONALIZATIONS

        notes += PERSONALIZATIONS[config.personalization.kind].check(config.personalization, federation)
    return RunInputs(setup.task, setup.partition, setup.counts, notes, (setup, rounds, start))


def run_federated(context: RunContext, inputs: RunInputs, record: RunRecord) -> None:
    """Train all clients together, or each cluster separately, and record the metrics and costs.

    Raises:
        DivergedError: A loss, weight or logit is not finite.
    """
    setup, method, start = inputs.prepared
    grouping = None
    if context.method.clustering is not None:
        from knot_runner.methods.around.clusters import per_cluster
        from knot_runner.pipelines import clustered  # imports scikit-learn and distances, which other runs do not need

        grouping = clustered.group_clients(context, setup)
        for note in grouping.notes:
            record.note(note)
        method = per_cluster(method, grouping.clusters)
        start = method.init(context.method, setup.federation)
    with contextlib.closing(open_engine(context, setup)) as engine:
        context.note(f"engine {engine.name}, {context.settings.hardware.precision}")
        context.begin()
        write_json(context.folder / "partition.json", client_counts(setup))
        record.add(**_described(context, setup, engine))
        try:
            outcome = _train(context, setup, method, engine, grouping, start)
        except DivergedError as problem:
            # the round that diverged counts: its model may have been seen
            record.add(**method.facts(problem.where.get("round", 0), []))
            raise
        record.add(**_summary(context, setup, outcome, engine))
        keep_models(context, setup, outcome, engine)
    context.progress("rounds", 1, 1, "done")
    record.seconds |= {"rounds": total_seconds(outcome.rows), **outcome.seconds}
    record.add(**outcome.facts, **method.facts(len(outcome.rows), outcome.rows))


def _train(
    context: RunContext, setup: Setup, method: RoundMethod, engine: Engine, grouping: Grouping | None,
    start: FederatedState,
) -> TrainingResult:  # fmt: skip
    """Return the result of the rounds, with all clients or by cluster, and of personalization."""
    clusters, facts, seconds = [], {}, {}
    if grouping is not None:
        clusters, facts, seconds = grouping.clusters, {"clusters": grouping.facts}, grouping.seconds
    commits = context.commits(setup.task.digest)
    rounds = ClientRounds(context, setup, method, engine, clusters)

    def _rounds() -> tuple[FederatedState, list[LogRow]]:
        return run_rounds(rounds.advance, commits, lambda: start, log=lambda row: context.log(scalars(row)))

    if not clusters and context.method.personalization is None:
        state, rows = _rounds()
        return TrainingResult(method, state, rows, facts, seconds)
    from knot_runner.pipelines.shared_rounds import rounds_key, run_shared_rounds

    key = rounds_key(context, setup, engine, clusters)
    state, rows = run_shared_rounds(context, key, commits, _rounds)
    outcome = TrainingResult(method, state, rows, facts | {"artifact": key}, seconds)
    if context.method.personalization is None:
        return outcome
    from knot_runner.pipelines.personalization.personalized import personalize

    return personalize(context, setup, engine, outcome)


def _summary(context: RunContext, setup: Setup, outcome: TrainingResult, engine: Engine) -> Facts:
    """Return the metrics, costs and counts of a finished run."""
    rows = outcome.rows
    summary = summarize(rows, setup.federation.training.target) | architecture_facts(setup, rows)
    summary["evaluated"] = _evaluated(context, outcome)
    summary["selected_on"] = "valid" if _selects(context) else None
    summary |= _costs(context, setup, outcome, summary["rounds_to_target"])
    summary["metrics"] |= _own_models(context, setup, outcome, engine)
    if outcome.personal is None:  # personalization chooses by validation and records it
        valid = scores.measure_valid(outcome.method, context.method, outcome.state, setup, engine)
        if valid is not None:
            summary["valid"] = valid
    return summary


def _evaluated(context: RunContext, outcome: TrainingResult) -> Evaluated:
    """Return the kind of models that were evaluated."""
    if outcome.personal is not None or not scores.one_model(METHODS[context.method.algorithm], context.method):
        return "personalized"
    return "clusters" if outcome.facts.get("clusters", {}).get("count", 1) > 1 else "global"


def _selects(context: RunContext) -> bool:
    """Return whether the run selects an epoch, a step or a point, which always uses held-out examples."""
    config, personal = context.method, context.method.personalization
    by_point = personal is not None and (personal.select == "valid" or getattr(personal, "early_stop", False))
    distillation = server_distillation(config)
    by_step = distillation is not None and distillation.valid > 0
    return by_point or by_step or config.selects


def _own_models(context: RunContext, setup: Setup, outcome: TrainingResult, engine: Engine) -> Facts:
    """Return metrics of the clients' own models.

    The models are evaluated after the last round (``evaluate.matrix``) or after personalization; {} without either.
    """
    if outcome.personal is not None:
        temperature = scores.evaluation_temperature(context.method, len(outcome.rows) - 1)
        measures = scores.score(outcome.personal.predictions, setup.federation, temperature, setup.task.coordinates)
        measures = {key: measures[key] for key in metrics.METRICS if key in measures} | outcome.personal.measures
    elif context.settings.evaluate.matrix is not None:
        from knot_runner.pipelines.personalization.client_matrix import deployed_matrix

        federation, classes = setup.federation, len(setup.task.classes)
        matrix = deployed_matrix(
            outcome.method, context.method, outcome.state, federation, setup.test.labels, classes, engine
        )
        matrix.save(context.folder)
        measures = matrix.measures(setup.federation)
    else:
        return {}
    return {key: {"ALL": value} if isinstance(value, float) else value for key, value in measures.items()}


def _costs(context: RunContext, setup: Setup, outcome: TrainingResult, reached: int | None) -> Facts:
    """Return the total costs of the rounds and of personalization."""
    sent = "all that clients receive and send"
    if isinstance(context.settings.partition, Centralized):
        sent = "nothing, since all examples are at one client"
    if context.method.clustering is not None and context.method.clustering.graph != "none":
        sent += "; without the distances between clients"
    flops = setup.example_flops
    facts = {"example_flops": flops.forward if flops else None, "example_tokens": setup.example_tokens or None}
    costs = total_costs(outcome.rows, reached, sent, **facts)
    if outcome.personal is not None:
        both = [costs["client_flops"], outcome.personal.flops]
        costs |= {"personal_flops": outcome.personal.flops, "client_flops": None if None in both else sum(both)}
    return {"costs": costs}


def _described(context: RunContext, setup: Setup, engine: Engine) -> Facts:
    """Return the facts of the result that are known before training."""
    federation = setup.federation
    valid = sum(len(rows) for rows in federation.rows("valid"))
    datasets = {"train": len(setup.task.train) - setup.held_out - valid, "test": len(setup.task.test)}
    transfer = getattr(setup.task, "transfer", None)
    if transfer is not None:
        datasets["transfer"] = len(transfer)
    if valid:
        datasets["valid"] = valid
    facts = {
        "device": str(engine.device),
        "datasets": datasets,
        "clients": len(federation),
        "engine": engine.name,
        "precision": context.settings.hardware.precision,
        "model": ", ".join(network.spec.name for network in setup.networks),
        "parameters": max(architecture.layout.size for architecture in federation.architectures),
    }
    if federation.unseen:
        facts["unseen"] = len(federation.unseen)
    return facts
