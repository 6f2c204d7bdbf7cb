"""Distillation: teachers train separately, then a student is distilled and evaluated.

Each stage is stored as an artifact. Later runs with the same stage reuse it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from knot_runner.config.plugins import Table
from knot_runner.config.strict import build, without
from knot_runner.data.counts import of_parties
from knot_runner.data.tasks import PartyTask
from knot_runner.engine.commit import join_machines
from knot_runner.engine.execute import Executor
from knot_runner.engine.requests import ref_of, request_title
from knot_runner.engine.store import TENSORS, Store
from knot_runner.methods.contract import METHODS
from knot_runner.methods.distill.costs import StageCounter, sent_bytes
from knot_runner.methods.party import PartyFederation, StageState
from knot_runner.metrics import Measures
from knot_runner.pipelines.context import RunContext, RunInputs, RunRecord
from knot_runner.pipelines.federations.texts import model_files
from knot_runner.pipelines.models import KeptModels, write_models
from knot_runner.pipelines.parties.evaluation import evaluate, finished_rounds, parties_after, trained_models
from knot_runner.pipelines.parties.setup import FINISHED_STAGE, make_federation
from knot_runner.pipelines.rounds import Advanced, State, run_rounds
from knot_runner.records import BOUND_FILE, MODEL_FILE, write_sealed
from knot_runner.results import SelectedOn, summed_costs, total_costs
from knot_runner.results.training import KeptEpoch
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, LogRow, write_atomic

#: Stages that run at the owners of local data. All other stages run at the server.
AT_CLIENTS = ("local", "records")
#: A loss term is reported if its initial value is larger than the cross-entropy by this factor. Published weights for
#: large networks are often too large for small networks.
LARGE_RATIO = 10.0
#: Method setting -> function that measures the finished student if the setting is true. It receives the context, the
#: federation, the state and an executor. Papers add entries.
STUDENT_MEASURES: Table[Callable[..., Facts]] = Table("STUDENT_MEASURES", {}, papers="bound")


def inspect_distillation(context: RunContext) -> RunInputs:
    """Return the run's inputs before training: the federation, the class counts, and notes for the user.

    Raises:
        UserError: The settings do not fit the data or each other.
    """
    if getattr(context.method, "bound", False) and "bound" not in STUDENT_MEASURES:
        raise UserError("'true' requires the folder knot_runner/papers/knot. Use false", "method.bound")
    task = context.services.parties(context)
    counts = of_parties(task)
    federation = make_federation(context, task)
    METHODS[context.method.algorithm].init(context.method, federation)
    batch = context.settings.training.local.batch_size
    notes = [*task.notes, *counts.warnings(batch), *federation.notes]
    return RunInputs(task, None, counts, notes, federation, model_files(context))


def run_distillation(context: RunContext, inputs: RunInputs, record: RunRecord) -> None:
    """Train teachers, compute soft labels, distill and evaluate; record the metrics and costs.

    Raises:
        DivergedError: A loss is not finite.
    """
    settings = context.settings
    store = context.store
    task = inputs.task
    federation = inputs.prepared
    with Executor(store, settings.hardware, context.data_root, settings.plugins, context.progress) as executor:
        datasets = {}
        for name, data in task.datasets.items():
            datasets[name] = {"role": data.role} | {split: len(part) for split, part in data.splits.items()}
        record.add(device=str(executor.resources.device), datasets=datasets, rows=task.rows)
        context.begin()
        state = advance_stages(context, federation, executor)
        for name, facts in state.facts.get("terms", {}).items():
            if (ratio := facts["ratio"]) > LARGE_RATIO:
                record.note(
                    f"warning: method.terms.{name} starts at {ratio:.3g} times the cross-entropy and may "
                    "dominate it. To set the weight on the first batches, use weight=auto"
                )
        record.add(**evaluate(context, task, federation, state, executor))
        record.add(**_bound(context, federation, state, executor))
        write_atomic(context.folder / MODEL_FILE, store.get(*ref_of(state.student)).read(TENSORS))
        _describe_models(context, task, federation, state)
    kept = {}
    selected_on: SelectedOn | None = None
    for name in (*state.weights.values(), state.student):
        if name.startswith(f"{FINISHED_STAGE}/"):
            continue
        info = store.get(*ref_of(name)).info
        kept[info["title"]] = epoch = KeptEpoch(info["best_epoch"], info["kept"])
        if epoch.select != "last":
            selected_on = "valid"
    if selected_on and state.synthetic:
        selected_on = "generated"
    seconds: Measures = {}  # time of each stage, measured when this or another run computed the stage
    for ref in state.artifacts:
        info = store.get(*ref).info
        title = info["title"]
        seconds[title] = round(seconds.get(title, 0) + info["seconds"], 2)
    record.add(
        bias=state.bias,
        selected_epoch=state.selected_epoch,
        kept_epochs=kept,
        selected_on=selected_on,
        costs=distillation_costs(context, federation),
        **state.facts,
    )
    record.seconds.update(stages=seconds)


def _bound(context: RunContext, federation: PartyFederation, state: StageState, executor: Executor) -> dict[str, Facts]:
    """Write ``bound.json``, and return facts about the bound for the result; {} if ``method.bound`` is off."""
    path = context.folder / BOUND_FILE
    if not getattr(context.method, "bound", False):
        path.unlink(missing_ok=True)  # the file may be from the run that this run replaces
        return {}
    bound = STUDENT_MEASURES["bound"](context, federation, state, executor)
    write_sealed(path, bound)
    return {"bound": {"texts": bound["texts"]["train"], **without(bound["loss"], "constant")}}


def distillation_costs(context: RunContext, federation: PartyFederation) -> Facts:
    """Return the costs (bytes sent, and FLOPs) of all stages, including stages that another run has computed."""
    counter = StageCounter(context.store)
    rows = []
    stages = {}
    for round in finished_rounds(context, federation):
        for request, artifact in zip(round.requests, round.artifacts, strict=True):
            title = request_title(request)
            flops = counter.flops(request, artifact)
            earlier = stages.get(title, 0)
            stages[title] = None
            if flops is not None and earlier is not None:
                stages[title] = earlier + flops
            at_client = request.stage in AT_CLIENTS
            rows.append({
                "bytes_down": 0,
                "bytes_up": sent_bytes(request, artifact),
                "client_flops": flops if at_client else 0,
                "server_flops": 0 if at_client else flops,
            })  # fmt: skip
    sent = "every local model once, to the server" if federation.clients else "nothing, since there are no local models"
    return total_costs([summed_costs(rows)], None, sent, stages=stages)


def advance_stages(context: RunContext, federation: PartyFederation, executor: Executor) -> StageState:
    """Run every round of the method; return the final state."""
    method = METHODS[context.method.algorithm]
    config = context.method
    store = context.store

    def advance(state: State, round: int, rows: list[LogRow]) -> Advanced:
        """Run one round of stages."""
        stages = build(StageState, state, "")
        requests = method.plan(config, stages, federation, round)
        if not requests:
            return None
        artifacts = executor(requests)
        for artifact in artifacts:
            for epoch in artifact.info.get("epochs", []):
                context.log({artifact.info["title"]: epoch})
        stages, row = method.fold(config, stages, federation, round, requests, artifacts)
        return asdict(stages), row

    values, _ = run_rounds(
        advance,
        context.commits(federation.data),
        lambda: asdict(method.init(config, federation)),
        log=context.log,
        usable=lambda values: all_stored(build(StageState, values, ""), store),
        timed=False,
    )
    state = build(StageState, values, "")
    join_machines((store.get(*ref).info for ref in state.artifacts), context.note)
    return state


def all_stored(state: StageState, store: Store) -> bool:
    """Return whether the store still contains every artifact to which ``state`` refers."""
    return all(store.find(*ref) is not None for ref in state.artifacts)


def _describe_models(context: RunContext, task: PartyTask, federation: PartyFederation, state: StageState) -> None:
    """Write the files for prediction with the student and, if they exist, with the parties' own models."""
    store = context.store
    kept = KeptModels()
    kept.models["student"] = (federation.server.network, [""])
    models = parties_after(federation, state)
    if state.selected_epoch is None:
        models = trained_models(federation, state)[2]
    for party, model in models.items():
        prefix = f"own/{party}/"
        kept.models[f"party/{party}"] = (model.network, [prefix])
        tensors = store.get(*model.weights).tensors()
        kept.tensors |= {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    if context.settings.on_images:
        tensors = store.get(*federation.server.test).tensors()
        mean = tensors["mean"].tolist()
        std = tensors["std"].tolist()
        view = getattr(context.method, "view", "none")
        write_models(context, kept, task.labels.names, mean=mean, std=std, view=view)
    else:
        write_models(context, kept, task.labels.names, task)
