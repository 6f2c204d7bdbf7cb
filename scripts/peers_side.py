"""What ``bench_peers`` runs in the peers' own Python: one workload in Flower or in pfl. Knows nothing of this project.

Two traps of Flower, both avoided here: a client function of ``__main__`` is pickled by value, with its data, for every
client (hence the import of this file by its name at the end); and data must be made once per actor, not per client.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import process_tree
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PROCESSES = 2
#: environment variable that hands the job (a path) down to torchrun's ranks and Ray's actors
JOB = "KNOT_PEER_JOB"


@cache
def _job() -> dict[str, Any]:
    return json.loads(Path(os.environ[JOB]).read_text())


@cache
def _data() -> list[tuple[Tensor, Tensor]]:
    """(images [n, C, H, W] or token ids [n, longest], 0 where there is none, and labels [n]) of each client; made once
    a process."""
    job = _job()
    draws = torch.Generator().manual_seed(1)
    made = _texts if "bert" in job else _images
    return [(made(n, draws), torch.randint(job["classes"], (n,), generator=draws)) for n in job["sizes"]]


def _images(count: int, draws: torch.Generator) -> Tensor:
    return torch.randn(count, *_job()["shape"], generator=draws)


def _texts(count: int, draws: torch.Generator) -> Tensor:
    """Ids of texts of ``lengths`` [least, most] tokens, the rest of a row 0."""
    job = _job()
    least, most = job["lengths"]
    lengths = torch.randint(least, most + 1, (count, 1), generator=draws)
    ids = torch.randint(5, job["bert"]["vocab_size"], (count, most), generator=draws)
    return ids * (torch.arange(most) < lengths)


def _model() -> nn.Module:
    return _bert() if "bert" in _job() else _convolutional()


def _bert() -> nn.Module:
    """The classifier of Hugging Face's transformers, of ids [B, L] alone."""
    from transformers import BertConfig, BertForSequenceClassification

    job = _job()

    class Classifier(BertForSequenceClassification):
        def forward(self, ids: Tensor) -> Tensor:
            used = ids[:, : int((ids > 0).sum(1).max())]  # a batch is as long as its longest text
            return super().forward(used, attention_mask=(used > 0).long()).logits

    return Classifier(BertConfig(num_labels=job["classes"], **job["bert"]))


def _convolutional() -> nn.Module:
    job = _job()
    layers = []
    channels, height, width = job["shape"]
    for after, kernel, padding in job["convs"]:
        layers += [nn.Conv2d(channels, after, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        channels = after
        height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
    sizes = [channels * height * width, *job["hidden"]]
    layers.append(nn.Flatten())
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], job["classes"]))


def _train(model: nn.Module, client: int) -> int:
    """The client's epochs, in place; its number of examples."""
    torch.set_num_threads(1)
    job = _job()
    (inputs, labels) = _data()[client]
    model.train()
    if job["optimizer"] == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=job["lr"], weight_decay=0.0)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=job["lr"])
    for _ in range(job["epochs"]):
        for part in torch.randperm(len(labels)).split(job["batch"]):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[part]), labels[part]).backward()
            optimizer.step()
    return len(labels)


def _now(root: int) -> tuple[float, float]:
    """Wall clock, and CPU seconds of the process tree below ``root``."""
    return time.perf_counter(), process_tree.cpu_seconds(root)


def _write(ends: list[tuple[float, float]]) -> None:
    Path(_job()["result"]).write_text(json.dumps(ends))


def flower() -> None:
    """Flower's message API: FedAvg whose messages say which client a node is."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    job = _job()
    ends = []
    nodes, count = len(job["sizes"]), len(job["cohorts"][0])

    class Timed(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Message]:
            drawn = super().configure_train(server_round, arrays, config, grid)
            return [
                Message(
                    RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})}),
                    dst_node_id=message.metadata.dst_node_id,
                    message_type=message.metadata.message_type,
                )
                for message, client in zip(drawn, job["cohorts"][server_round - 1], strict=True)
            ]

        def aggregate_train(self, server_round: int, replies: Any) -> tuple[Any, Any]:
            replies = list(replies)
            if len(replies) != count or any(reply.has_error() for reply in replies):
                raise RuntimeError(f"round {server_round}: a client failed")  # Flower would go on without it
            found = super().aggregate_train(server_round, replies)
            ends.append(_now(os.getpid()))
            return found

    server = ServerApp()
    clients = ClientApp()
    clients.train()(flower_client)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        strategy = Timed(count / nodes, fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=nodes)
        strategy.start(grid, ArrayRecord(_model().state_dict()), num_rounds=len(job["cohorts"]))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": PROCESSES}}
    run_simulation(server, clients, num_supernodes=nodes, backend_config=resources)
    _write(ends)


def flower_client(message: Any, context: Any) -> Any:
    """One client's round in an actor."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    model = _model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    count = _train(model, message.content["config"]["client"])
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": count})}
    return Message(RecordDict(content), reply_to=message)


def pfl() -> None:
    """pfl's federated averaging; each of torchrun's ranks trains its share of the cohort."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    job = _job()
    ends = []

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            ends.append(_now(os.getppid()))  # torchrun, above the ranks
            return False, Metrics()

    order = iter([client for cohort in job["cohorts"] for client in cohort])
    clients = FederatedDataset(lambda client: Dataset(_data()[client], user_id=str(client)), lambda: next(order))
    module = _with_loss(_model())
    central = torch.optim.SGD(module.parameters(), lr=1.0)  # adds the mean change
    FederatedAveraging().run(
        # pfl measures its clients in the first round whatever one asks for; that round is not timed
        NNAlgorithmParams(len(job["cohorts"]), evaluation_frequency=10**9, train_cohort_size=len(job["cohorts"][0]),
                          val_cohort_size=0),
        SimulatedBackend(clients, clients),
        PyTorchModel(module, torch.optim.SGD, central),
        NNTrainHyperParams(local_batch_size=job["batch"], local_num_epochs=job["epochs"],
                           local_learning_rate=job["lr"]),
        callbacks=[Clock()],
    )  # fmt: skip
    if int(os.environ["RANK"]) == 0:
        _write(ends)


def _with_loss(model: nn.Module) -> nn.Module:
    """``model`` with the two methods that pfl calls."""
    from pfl.metrics import Weighted

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels)

    model.loss = loss
    model.metrics = lambda images, labels: {"loss": Weighted(loss(images, labels).item() * len(labels), len(labels))}
    return model


if __name__ == "__main__":
    import peers_side  # by name: what Flower sends to its actors then travels as a name, not as code and data

    {"flower": peers_side.flower, "pfl": peers_side.pfl}[sys.argv[1]]()
