"""FedAvg that misbehaves in some runs of a grid: a plug-in that the tests of sweeps name. ``method.faults``: what
happens in the run of each seed, unless the variable ``NO_FAULTS`` is set."""

import os
import signal
import time
from dataclasses import dataclass, field, replace

from knot_runner import METHODS, AveragingSettings
from knot_runner.methods.federated import averaging


@dataclass(kw_only=True)
class FaultySettings(AveragingSettings):
    faults: list[str] = field(default_factory=list)


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "leave": lambda: os._exit(9), "wait": lambda: time.sleep(60), "pause": lambda: time.sleep(3),
}  # fmt: skip


def plan(config, state, federation, round):
    fault = config.faults[federation.seed]
    if round == 1 and "NO_FAULTS" not in os.environ:
        if fault == "raise":
            raise RuntimeError("a planted bug")
        FAULTS.get(fault, int)()
    requests = averaging.plan(config, state, federation, round)
    if fault == "diverge":
        return [replace(one, recipe=replace(one.recipe, lr=1e30)) for one in requests]
    return requests


METHODS["faulty"] = replace(METHODS["fedavg"], plan=plan, settings=FaultySettings)
