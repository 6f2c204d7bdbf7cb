"""Federated learning on examples that are partitioned over clients.

Each round trains clients, aggregates their updates, and evaluates the deployed models.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial

import torch

from knot_runner import metrics
from knot_runner.config.settings.methods.federated import FederatedTraining, server_distillation
from knot_runner.config.settings.partition import Centralized
from knot_runner.methods.around import round_flops, surrounded
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.methods.messages import check_outcomes, is_over
from knot_runner.pipelines import scores
from knot_runner.pipelines.clients import FederatedContext, TrainingResult, client_counts, make_setup, open_engine
from knot_runner.pipelines.context import RunContext, RunInputs, RunRecord, total_seconds
from knot_runner.pipelines.models import architecture_facts, keep_models
from knot_runner.pipelines.rounds import Advanced, run_rounds, scalars
from knot_runner.results import total_costs
from knot_runner.util.errors import DivergedError
from knot_runner.util.files import Facts, LogRow, write_json


def inspect_federated(context: RunContext) -> RunInputs:
    """Return the run's inputs before training: the setup, the method with its initial state, and notes for the user.

    Raises:
        UserError: The settings do not fit the data or each other.
    """
    config = context.method
    settings = context.settings
    setup = make_setup(context)
    rounds, federation, notes = surrounded(METHODS[config.algorithm], settings, setup.federation)
    notes = [*setup.notes, *notes]
    setup = replace(setup, federation=federation)
    if config.personalization is not None or settings.evaluate.matrix is not None:
        from knot_runner.methods.personalization.matrix import check_own_models, untested_notes

        check_own_models(config.personalization, federation)
        notes += untested_notes(federation)
    if config.clustering is not None:
        from knot_runner.methods.federated import clustering  # scikit-learn, which other runs do not need

        clustering.check_clustering(config.clustering, len(federation))
    start = rounds.init(config, federation)  # checks the method before distances are computed
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
    clusters: list[Federation] = []
    if context.method.clustering is not None:
        from knot_runner.methods.around.clusters import per_cluster
        from knot_runner.pipelines.clustered import group_clients  # imports scikit-learn, which other runs do not need

        clusters = group_clients(context, setup, record)
        method = per_cluster(method, clusters)
        start = method.init(context.method, setup.federation)
    with contextlib.closing(open_engine(context, setup)) as engine:
        run = FederatedContext(context, setup, method, engine, clusters)
        context.note(f"engine {engine.name}, {context.settings.hardware.precision}")
        context.begin()
        write_json(context.folder / "partition.json", client_counts(setup))
        record.add(**_described(run))
        try:
            outcome = _train(run, start, record)
        except DivergedError as problem:
            # the diverged round counts for privacy, because its model may have been seen
            record.add(**method.facts(problem.where.get("round", 0), []))
            raise
        record.add(**_summary(run, outcome) | method.facts(len(outcome.rows), outcome.rows))
        keep_models(run, outcome)
    context.progress("rounds", 1, 1, "done")


# ------------------------------------------------------------------------------------------------------------ rounds


def _train(run: FederatedContext, start: FederatedState, record: RunRecord) -> TrainingResult:
    """Run the rounds, with all clients or per cluster, and personalization; return the result."""
    context = run.context
    commits = context.commits(run.setup.task.digest)
    advance = partial(_advance, run)

    def train() -> tuple[FederatedState, list[LogRow]]:
        return run_rounds(advance, commits, lambda: start, log=lambda row: context.log(scalars(row)))

    personalizes = run.config.personalization is not None
    if not run.clusters and not personalizes:
        state, rows = train()
    else:
        from knot_runner.pipelines.shared_rounds import rounds_key, run_shared_rounds

        key = rounds_key(run)
        state, rows = run_shared_rounds(context, key, commits, train)
        record.add(artifact=key)
    record.seconds.update(rounds=total_seconds(rows))
    if not personalizes:
        return TrainingResult(state, rows)
    from knot_runner.pipelines.personalization.personalized import personalize

    return TrainingResult(state, rows, personalize(run, state, record))


def _advance(run: FederatedContext, state: FederatedState, round: int, rows: list[LogRow]) -> Advanced:
    """Run one round: train, aggregate, exchange second messages and evaluate.

    Arguments and result are those of :data:`~knot_runner.pipelines.rounds.Advance`.

    Raises:
        DivergedError: A loss, weight or logit is not finite.
    """
    method = run.method
    config = run.config
    federation = run.federation
    context = run.context
    training = federation.training
    if reached_target(training, rows):
        return None
    requests = method.plan(config, state, federation, round)
    if not requests and is_over(method, config, state, federation, round):
        return None
    trained = run.engine.train(requests) if requests else []
    check_outcomes(round, trained, federation)
    state, row, further = method.fold(config, state, federation, round, requests, trained, run.engine)
    row |= scores.local_facts(requests, trained) | round_flops(run.setup.example_flops, requests, further)
    if isinstance(context.settings.partition, Centralized):
        row |= {"bytes_down": 0, "bytes_up": 0}  # nothing is sent, because one client has all examples
    if training.measures(round):
        row |= _measured(run, state, round)
    shown = ""
    for earlier in (*rows, row):
        if metrics.ACCURACY in earlier:
            shown = f"accuracy {earlier[metrics.ACCURACY]:.3f}"
    context.progress("rounds", round + 1, training.rounds, shown)
    return state, row


def reached_target(training: FederatedTraining, rows: list[LogRow]) -> bool:
    """Return whether the run stops because the last round reached the target accuracy."""
    if not training.stop_at_target or not rows or metrics.ACCURACY not in rows[-1]:
        return False
    return bool(rows[-1][metrics.ACCURACY] >= training.target)


def _measured(run: FederatedContext, state: FederatedState, round: int) -> LogRow:
    """Return every metric of the deployed models on test examples."""
    predictions = scores.predict_test(run, state)
    if not bool(torch.isfinite(predictions.logits).all()):
        problem = f"diverged in round {round + 1}: the averaged model's logits are not finite"
        raise DivergedError(problem, round=round + 1)
    row = scores.score(run, predictions, round)
    if run.clusters:
        row["client_accuracy"]["clusters"] = scores.over_clusters(predictions.clients, run.federation, run.clusters)
    return row


# ------------------------------------------------------------------------------------------------------------ result


def _summary(run: FederatedContext, outcome: TrainingResult) -> Facts:
    """Return the metrics, costs and counts of a finished run."""
    rows = outcome.rows
    summary = scores.summarize(rows, run.federation.training.target) | architecture_facts(run.federation, rows)
    if run.config.personalization is not None or not scores.one_model(METHODS[run.config.algorithm], run.config):
        evaluated = "personalized"
    else:
        evaluated = "clusters" if len(run.clusters) > 1 else "global"
    summary |= {"evaluated": evaluated, "costs": _costs(run, outcome, summary["rounds_to_target"])}
    personal = run.config.personalization
    distillation = server_distillation(run.config)
    by_point = personal is not None and (personal.select == "valid" or getattr(personal, "early_stop", False))
    by_step = distillation is not None and distillation.valid > 0
    if by_point or by_step or run.config.selects:
        summary |= {"selected_on": "valid"}
    summary["metrics"] |= _own_models(run, outcome)
    if outcome.personal is None:  # personalization records its own validation accuracy
        valid = scores.measure_valid(run, outcome.state)
        if valid is not None:
            summary |= {"valid": valid}
    return summary


def _own_models(run: FederatedContext, outcome: TrainingResult) -> Facts:
    """Return metrics of the clients' own models after personalization or (``evaluate.matrix``) after the last round.

    The result is {} if neither applies.
    """
    if outcome.personal is not None:
        measures = scores.score(run, outcome.personal.predictions, len(outcome.rows) - 1)
        measures = {key: measures[key] for key in metrics.METRICS if key in measures} | outcome.personal.measures
    elif run.context.settings.evaluate.matrix is not None:
        from knot_runner.pipelines.personalization.client_matrix import deployed_matrix

        matrix = deployed_matrix(run, outcome.state)
        matrix.save(run.context.folder)
        measures = matrix.measures(run.federation)
    else:
        return {}
    return {key: {"ALL": value} if isinstance(value, float) else value for key, value in measures.items()}


def _costs(run: FederatedContext, outcome: TrainingResult, reached: int | None) -> Facts:
    """Return the total costs of the rounds and of personalization."""
    setup = run.setup
    clustering = run.config.clustering
    sent = "all that clients receive and send"
    if isinstance(run.context.settings.partition, Centralized):
        sent = "nothing, since all examples are at one client"
    if clustering is not None and clustering.graph != "none":
        sent += "; without the distances between clients"
    flops = setup.example_flops
    facts = {"example_flops": flops.forward if flops else None, "example_tokens": setup.example_tokens or None}
    costs = total_costs(outcome.rows, reached, sent, **facts)
    if outcome.personal is not None:
        both = [costs["client_flops"], outcome.personal.flops]
        costs |= {"personal_flops": outcome.personal.flops, "client_flops": None}
        if None not in both:
            costs |= {"client_flops": sum(both)}
    return costs


def _described(run: FederatedContext) -> Facts:
    """Return the facts of the result that are known before training."""
    setup = run.setup
    federation = run.federation
    valid = sum(len(rows) for rows in federation.rows("valid"))
    datasets = {"train": len(setup.task.train) - setup.held_out - valid, "test": len(setup.task.test)}
    transfer = getattr(setup.task, "transfer", None)
    if transfer is not None:
        datasets |= {"transfer": len(transfer)}
    if valid:
        datasets |= {"valid": valid}
    facts = {
        "device": str(run.engine.device),
        "datasets": datasets,
        "clients": len(federation),
        "engine": run.engine.name,
        "precision": run.context.settings.hardware.precision,
        "model": ", ".join(network.spec.name for network in setup.networks),
        "parameters": max(architecture.layout.size for architecture in federation.architectures),
    }
    if federation.unseen:
        facts |= {"unseen": len(federation.unseen)}
    return facts
