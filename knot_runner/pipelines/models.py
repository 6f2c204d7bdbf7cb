"""Files in a run's folder with the models of a finished run, and with all that is needed for prediction.

- ``model.json`` describes the classes, the inputs, the networks and the tensors of each model.
- ``tokenizer.json`` is the tokenizer with its maximum length, in the format of the library tokenizers.
- ``model.safetensors`` holds the tensors of the final state, such as a global model or a student.
- ``own_models.safetensors`` holds further tensors of the models of clients and parties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.engine.federated import flat
from knot_runner.engine.tensor_file import Tensors, tensor_parts
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.models.network import Network
from knot_runner.pipelines import scores
from knot_runner.pipelines.clients import FederatedContext, TrainingResult
from knot_runner.pipelines.context import RunContext, write_predictions
from knot_runner.records import MODEL_FILE
from knot_runner.util.files import Facts, LogRow, write_atomic, write_json

if TYPE_CHECKING:
    from knot_runner.data.tasks import PartyTask


DESCRIPTION_FILE = "model.json"
TOKENIZER_FILE = "tokenizer.json"
OWN_MODELS_FILE = "own_models.safetensors"


@dataclass
class KeptModels:
    """The models to write into the run's folder.

    ``models`` maps the name of a model to its network and a list of prefixes. Parameter ``p`` is stored
    as ``<prefix>p``. If it is stored with several prefixes, the value with the last prefix in the list is used.

    ``tensors`` maps names to the models' tensors that are not in ``model.safetensors``.
    """

    models: dict[str, tuple[Network, list[str]]] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)


def write_models(
    context: RunContext, kept: KeptModels, classes: list[str], texts: PartyTask | None = None, **images: Any
) -> None:
    """Write the files, other than ``model.safetensors``, that are needed to predict with the models in ``kept``.

    Args:
        context: The run.
        kept: The models to write.
        classes: Names of the classes.
        texts: The text task, for the tokenizer; None for images.
        images: For image tasks, ``mean`` and ``std`` of each channel, and optionally the ``view`` of the images.
    """
    settings = context.settings
    folder = context.folder
    inputs: Facts = {"kind": "images", **images}
    if texts is not None:
        from knot_runner.data.rows import CONTEXT_MARK
        from knot_runner.models.tokens import cut_to
        from knot_runner.pipelines.federations.texts import load_tokenizer

        tokenizer = load_tokenizer(context, texts)
        write_atomic(folder / TOKENIZER_FILE, cut_to(tokenizer, settings.task.max_length).to_str())
        inputs = {"kind": "texts", "context": settings.task.context, "context_mark": CONTEXT_MARK}
    networks: list[Network] = []
    models = {}
    for name, (network, parts) in kept.models.items():
        if network not in networks:
            networks.append(network)
        models[name] = {"network": networks.index(network), "parts": parts}
    (folder / OWN_MODELS_FILE).unlink(missing_ok=True)  # the file may be from the run that this run replaces
    if kept.tensors:
        write_atomic(folder / OWN_MODELS_FILE, tensor_parts(kept.tensors))
    described = [asdict(network) for network in networks]
    write_json(
        folder / DESCRIPTION_FILE, {"classes": classes, "inputs": inputs, "networks": described, "models": models}
    )


def joined_parts(tensors: Mapping[str, Tensor], parts: Sequence[str], layout: flat.FlatLayout) -> Tensors:
    """Return the parameters and buffers of a model as a dict from name to tensor.

    The keys of ``tensors`` are names with a prefix. ``parts`` lists the prefixes of the model. If a name occurs with
    several of these prefixes, the tensor whose prefix is last in ``parts`` is returned.
    """
    joined: Tensors = {}
    for part in parts:
        for entry in (*layout.parameters, *layout.buffers):
            key = f"{part}{entry.name}"
            if key in tensors:
                joined[entry.name] = tensors[key]
    return joined


# ---------------------------------------------------------------------------------------------------- clients' models


def architecture_facts(federation: Federation, rows: list[LogRow]) -> Facts:
    """Return the result's entry ``models`` with facts about each architecture; {} if there is only one architecture.

    The facts are the number of clients, the number of parameters, and two mean accuracies in the last evaluated round.
    Each client's model is tested on the client's own test examples. ``accuracy`` weights all examples equally.
    ``unweighted`` weights all clients equally. Without test examples, both means are None.
    """
    if len(federation.architectures) == 1:
        return {}
    last = next(row["clients"] for row in reversed(rows) if "clients" in row)
    facts = {}
    for number, architecture in enumerate(federation.architectures):
        sizes = []
        accuracies = []
        for client, accuracy in zip(federation.numbers, last, strict=True):
            if federation.network_number(client) == number:
                sizes.append(len(federation.clients[client].test))
                accuracies.append(accuracy)
        weighted = unweighted = None
        if any(sizes):
            weighted, unweighted = scores.over_clients(accuracies, sizes).values()
        facts[architecture.network.spec.name] = {
            "clients": len(sizes),
            "parameters": architecture.layout.size,
            "accuracy": weighted,
            "unweighted": unweighted,
        }
    return {"models": facts}


def keep_models(run: FederatedContext, outcome: TrainingResult) -> None:
    """Write the final models, and their predictions on all test examples, into the run's folder."""
    folder = run.context.folder
    task = run.setup.task
    state = outcome.state
    tests = outcome.personal.predictions if outcome.personal is not None else scores.predict_test(run, state)
    write_predictions(folder, {"test": (torch.softmax(tests.logits.double(), 1), tests.labels)})
    named = _named(run.config, run.federation, state)
    write_atomic(folder / MODEL_FILE, tensor_parts(named))
    inputs = {"mean": task.mean, "std": task.std} if run.context.settings.on_images else {"texts": task.whole}
    write_models(run.context, _kept_models(run, outcome, named), task.classes, **inputs)


def _kept_models(run: FederatedContext, outcome: TrainingResult, named: Tensors) -> KeptModels:
    """Return the global model or each cluster's model, and the clients' own models if these are used for prediction."""
    networks = run.setup.networks
    federation = run.federation
    kept = KeptModels()
    bases = [f"cluster/{number}/" for number in range(len(run.clusters))] or [""]
    base_of: dict[int, str] = {}
    for base, cluster in zip(bases, run.clusters or [federation], strict=True):
        base_of |= dict.fromkeys(cluster.numbers, base)
        if f"{base}weights" in outcome.state:
            kept.models[base.removesuffix("/") or "global"] = (networks[0], [base])
    own_models = {}
    if outcome.personal is not None:
        own_models = outcome.personal.models
        if not own_models:
            return kept
    elif scores.one_model(run.method, run.config):
        return kept
    for client in federation.numbers:
        base = base_of[client]
        prefix = f"own/{client}/"
        parts = [base, f"{base}client/{client}/"]
        layout = federation.layout_of(client)
        model = own_models.get(client) or run.deployed(outcome.state, client)
        wanted = flat.views(model.weights, layout.parameters) | flat.views(model.buffers, layout.buffers)
        joined = joined_parts(named, parts, layout)
        for name, value in wanted.items():
            if name not in joined or not joined[name].equal(value):
                kept.tensors[f"{prefix}{name}"] = value
                if prefix not in parts:
                    parts.append(prefix)
        kept.models[f"client/{client}"] = (networks[federation.network_number(client)], parts)
    return kept


def _named(config: FederatedSettings, federation: Federation, state: FederatedState) -> Tensors:
    """Return the state's tensors by parameter name. Names of clients' own tensors have the prefix ``client/<k>/``.

    If there are several global models, their names have the prefix ``cluster/<c>/``.
    """
    tensors: Tensors = {}
    for key, value in state.items():
        prefix, slash, name = key.rpartition("/")
        # entries below fleet/ are models that were sent to clients
        if "fleet/" in key or name not in ("weights", "buffers", "statistics", "unshared"):
            continue
        *_, owner, number = ["", "", *prefix.split("/")]
        layout = federation.layout_of(int(number)) if owner == "client" else federation.layout
        fields = layout.parameters if name == "weights" else layout.buffers
        if name == "unshared":
            shared = layout.matching(config.patterns)
            fields = tuple(field for field in layout.parameters if not shared[field.start])
            unshared = value
            value = torch.zeros(layout.size, dtype=value.dtype)
            value[~shared] = unshared
        for parameter, tensor in flat.views(value, fields).items():
            tensors[f"{prefix}{slash}{parameter}"] = tensor
    return tensors
