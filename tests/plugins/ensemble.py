"""An ensemble as a family: every client trains alone, and the mean of their predictions is tested."""

import contextlib
from dataclasses import dataclass

import torch

import knot_runner as kr


@dataclass(kw_only=True)
class EnsembleSettings(kr.FederatedSettings):
    """Those of the clients' training."""


def inspect(context):
    setup = kr.make_setup(context)
    return kr.RunInputs(setup.task, setup.partition, setup.counts, setup.notes, setup)


def run(context, inputs, record):
    setup = inputs.prepared
    federation, tests = setup.federation, torch.arange(len(setup.test.labels))

    def advance(state, client, rows):
        if client == len(federation):
            return None
        (trained,) = engine.train(
            [kr.local_request(context.method, federation, 0, client, federation.start_of(client))]
        )
        (logits,) = engine.logits([federation.inference(client, trained.model, tests)])
        total = state.get("total", 0) + torch.softmax(logits.double(), 1)
        return {"total": total}, {"client": client, "train_loss": trained.loss}

    with contextlib.closing(kr.open_engine(context, setup)) as engine:
        context.begin()
        state, _ = kr.run_rounds(advance, context.commits(setup.task.digest), dict, log=context.log)
    mean = state["total"] / len(federation)
    record.add(**context.predicted(mean.numpy(), setup.test.labels.numpy(), setup.task.coordinates))


steps = {"run": f"{__name__}:run", "inspect": f"{__name__}:inspect"}
kr.register(kr.Family("ensemble", {"ensemble": EnsembleSettings}, ("images", "texts"), **steps))
