"""``hardware.engine=ray``: distribute the requests of a cohort to actors in a Ray cluster.

Each actor holds the data and a ``lean`` engine.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knot_runner.config.plugins import load_plugins
from knot_runner.engine.examples import stored_data
from knot_runner.engine.federated.cohort import ClientModel, EngineInputs, Inference, Trained
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.lean.worker import as_arrays, as_tensors, packed, unpacked
from knot_runner.engine.federated.local import EngineRequest, RequestEngine, Result
from knot_runner.models.network import Network
from knot_runner.util.errors import UserError, first_line
from knot_runner.util.ray_cluster import connected
from knot_runner.util.workers import WorkerDied

_KEY = "hardware.engine=ray"


class RayEngine(RequestEngine):
    """Ray actors that each train one client at a time. Results are bitwise equal to those of the ``lean`` engine.

    ``hardware.num_workers`` is the number of actors (0: one per ``hardware.threads`` cores of the cluster).

    The data are sent to each machine once. If an actor is lost, the run ends with a :class:`UserError`; the same
    command resumes from the last commit.
    """

    name = "ray"

    def __init__(self, inputs: EngineInputs) -> None:
        self._ray = ray = connected(_KEY)
        threads = inputs.hardware.threads
        count = _number(ray, inputs.hardware.num_workers, threads)
        data = ray.put([as_arrays(part.tensors()) for part in (inputs.data, inputs.test)])
        actor = ray.remote(num_cpus=threads, max_restarts=0)(EngineActor)
        arguments = data, list(inputs.networks), inputs.dtype, threads, list(inputs.plugins), str(Path.cwd())
        self._actors = [actor.remote(*arguments) for _ in range(count)]
        inputs.note(f"ray: clients are assigned to {count} actors")

    def close(self) -> None:
        """Implement :meth:`Engine.close`."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []

    def _run(self, requests: list[EngineRequest]) -> list[Result]:
        """Give every actor one request at a time; return the results in the order of ``requests``."""
        waiting, places = deque(enumerate(requests)), dict[tuple[Any, ...], Any]()
        idle = list(self._actors)
        under_way: dict[Any, tuple[int, Any]] = {}
        results: list[Result | None] = [None] * len(requests)
        while waiting or under_way:
            while waiting and idle:
                actor = idle.pop()
                index, request = waiting.popleft()
                under_way[self._send(actor, request, places)] = index, actor
            (ended,), _ = self._ray.wait(list(under_way), num_returns=1)
            index, actor = under_way.pop(ended)
            results[index] = self._result(ended)
            idle.append(actor)
        return results

    def _send(self, actor: Any, request: EngineRequest, places: dict[tuple[Any, ...], Any]) -> Any:
        """Send the request to ``actor``; return the Ray reference to the result.

        ``places``: the vectors that are already in Ray's object store, with their references. A vector that several
        requests share is stored once. The method adds each vector that it stores to ``places``.
        """
        model = request.model if isinstance(request, Inference) else request.start
        vectors = [model.weights, model.buffers, getattr(request, "control", None)]
        sent = [None if vector is None else self._placed(vector, places) for vector in vectors]
        return actor.run.remote(packed(request), *sent)

    def _placed(self, vector: Tensor, places: dict[tuple[Any, ...], Any]) -> Any:
        key = vector.data_ptr(), vector.shape, vector.stride()
        if key not in places:
            places[key] = self._ray.put(vector.numpy())
        return places[key]

    def _result(self, ended: Any) -> Result:
        """Return the actor's result; raise its :class:`UserError`, or :class:`WorkerDied` if the actor was lost."""
        try:
            return as_tensors(copy.deepcopy(self._ray.get(ended)))  # arrays from Ray are read-only
        except self._ray.exceptions.RayTaskError as problem:
            if isinstance(problem.cause, UserError):
                raise problem.cause from None
            raise RuntimeError(f"in an actor of Ray: {problem}") from None
        except self._ray.exceptions.RayError as problem:
            self.close()
            raise WorkerDied(
                f"{_KEY}: an actor was lost ({first_line(problem)}). Repeat the command to resume from the last commit"
            ) from None


class EngineActor:
    """A Ray actor with the data and a local engine.

    ``folder``: the folder to which plug-in paths are relative. It is used only if it exists on the machine of the
    actor.
    """

    def __init__(
        self, data: list[dict[str, np.ndarray]], networks: list[Network], dtype: torch.dtype, threads: int,
        plugins: list[str], folder: str,
    ) -> None:  # fmt: skip
        if Path(folder).is_dir():
            os.chdir(folder)
        torch.set_num_threads(threads)
        load_plugins(plugins)
        parts = [stored_data({name: _tensor(array) for name, array in part.items()}) for part in data]
        self._engine = Lean(networks, *parts, dtype, 1, threads)

    def run(
        self, request: EngineRequest, weights: np.ndarray, buffers: np.ndarray, control: np.ndarray | None
    ) -> Trained | np.ndarray:
        """Execute the request, and return its result with numpy arrays instead of tensors."""
        model = ClientModel(_tensor(weights), _tensor(buffers))
        request = unpacked(request, model, None if control is None else _tensor(control))
        if isinstance(request, Inference):
            return as_arrays(self._engine.logits([request])[0])
        return as_arrays(self._engine.train([request])[0])


def _number(ray: Any, workers: int, threads: int) -> int:
    """Return the number of actors.

    Raises:
        UserError: The cluster does not have enough cores for the actors.
    """
    cores = int(ray.cluster_resources().get("CPU", 0))
    count = workers or cores // threads
    if not 1 <= count <= cores // threads:
        raise UserError(
            f"the Ray cluster has {cores} cores, which are too few for {count or 1} actors with "
            f"hardware.threads={threads}. Use 0 for as many actors as fit",
            "hardware.num_workers",
        )
    return count


def _tensor(array: np.ndarray) -> Tensor:
    """Return a tensor on the memory of ``array``, which Ray shares between processes.

    This is safe because engines do not write into data or initial weights.
    """
    with warnings.catch_warnings(action="ignore"):
        return torch.from_numpy(array)
