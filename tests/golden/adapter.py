"""Today's command words, by `terms.yaml`, and today's layout of a run's folder: the one place that knows them.
`numbers.json` describes its runs in neutral terms. A rename of a setting, a method or a metric changes `terms.yaml`,
that of a file this module, and neither `numbers.json` nor the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

import knot_runner as kr
from knot_runner.config.strict import content_of

#: One process and one thread: the order of sums, and so the bits, depends on the number of threads.
MACHINE = ["hardware=cpu", "hardware.threads=1", "hardware.num_workers=1", "paths.data_dir=null"]

#: Neutral words of settings, of their values and of numbers -> today's.
TERMS = yaml.safe_load(Path(__file__).with_name("terms.yaml").read_text())
#: Files of a run's folder that hold its final arrays: weights, clients' measurements, coresets, the probe's arrays.
ARRAYS = ["model.safetensors", "clients.safetensors", "coreset.safetensors", "probe.safetensors"]
#: Arrays that stand in the result.
ARRAYS_IN_RESULT = ["matrix"]


@dataclass(frozen=True)
class Outcome:
    """Numbers of a finished run by neutral names, and its final floating-point arrays, whose order has no meaning."""

    numbers: dict[str, float]
    arrays: list[np.ndarray]

    def entries(self, dtype: type | None = None) -> np.ndarray:
        """Return all entries of all arrays, or of those of `dtype`, from the smallest to the largest. The order of
        their values outlives renamed, reordered and reshaped tensors."""
        chosen = [array.ravel() for array in self.arrays if dtype is None or array.dtype == dtype]
        return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0)


def run(method: str, settings: dict[str, Any], out: Path) -> Outcome:
    """Run the composition that `method` and `settings` describe in neutral words, and return what came of it."""
    finished = kr.run(command(method, settings, out))
    numbers = {}
    for name, place in TERMS["numbers"].items():
        numbers |= dict(_leaves(name, _found(content_of(finished.result), place.split("."))))
    tensors = [load_file(finished.folder / name) for name in ARRAYS if (finished.folder / name).exists()]
    arrays = [array for file in tensors for array in file.values() if np.issubdtype(array.dtype, np.floating)]
    arrays += [np.array(getattr(finished.result, name)) for name in ARRAYS_IN_RESULT if hasattr(finished.result, name)]
    return Outcome(numbers, arrays)


def command(method: str, settings: dict[str, Any], out: Path) -> list[str]:
    """Return the arguments of the run that `method` and `settings` describe in neutral words."""
    words = {"method": method, **settings}
    overrides = []
    for word, value in words.items():
        if value is not None:
            overrides += f"{TERMS['settings'][word]}={_value(word, value)}".split()
    return [*overrides, *MACHINE, f"paths.output_dir={out}"]


def _value(word: str, value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_value('', item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_value("", item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if value in TERMS["values"].get(word, {}):
        return TERMS["values"][word][value]
    return value.lower().replace(" ", "_").replace("-", "_") if word == "method" else str(value)


def _found(result: Any, place: list[str]) -> Any:
    """Return what lies at `place` of `result`; None if there is nothing."""
    if not place or result is None:
        return result
    first, *rest = place
    if first == "*":
        return {key: _found(value, rest) for key, value in result.items()}
    return _found(result.get(first), rest)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name}/{key}", item)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _leaves(f"{name}/{at}", item)
    elif value is not None:
        yield name, value
