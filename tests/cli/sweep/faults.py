"""FedAvg that misbehaves in some runs of a grid: a plug-in that the tests of sweeps name.

``method.faults``: what happens in the run of each seed, unless the variable ``NO_FAULTS`` is set.
"""

import os
import signal
import time
from dataclasses import dataclass, field, replace

import torch

from knot_runner.config.settings import AveragingSettings
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federated import averaging


@dataclass(kw_only=True)
class FaultySettings(AveragingSettings):
    faults: list[str] = field(default_factory=list)


def _raise():
    raise RuntimeError("a planted bug")


def _exhaust():
    raise MemoryError("a planted lack of memory")


def _cuda():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _wait():
    time.sleep(60)


FAULTS = {
    "raise": _raise, "exit": lambda: (_ for _ in ()).throw(SystemExit(3)),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "memory": _exhaust, "cuda": _cuda, "leave": lambda: os._exit(9), "wait": _wait, "pause": lambda: time.sleep(3),
}  # fmt: skip


def plan(config, state, federation, round):
    fault = config.faults[federation.seed]
    if round == 1 and fault in FAULTS and "NO_FAULTS" not in os.environ:
        FAULTS[fault]()
    requests = averaging.plan(config, state, federation, round)
    if fault == "diverge":
        return [replace(one, recipe=replace(one.recipe, lr=1e30)) for one in requests]
    return requests


METHODS["faulty"] = replace(METHODS["fedavg"], plan=plan, settings=FaultySettings)
