"""``tracker=tensorboard``: event files in ``tensorboard/`` of the run's folder; ``tensorboard --logdir outputs``."""

from __future__ import annotations

from typing import Any

import yaml

from knot_runner.engine.tracker.mirror import TrackedRun, flat, points

EVENTS_FOLDER = "tensorboard"


class TensorBoardMirror:
    """See :class:`~knot_runner.engine.tracker.mirror.Mirror`. Values that are not numbers are left out."""

    def __init__(self, run: TrackedRun) -> None:
        self._run, self._rows, self._writer = run, 0, None

    def _begun(self, first: int | None) -> Any:
        """Returns the writer; ``first``: the round from which a run resumes; older rows from there on are hidden."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._run.folder / EVENTS_FOLDER), purge_step=first)
            text = yaml.safe_dump(self._run.config, sort_keys=False, allow_unicode=True)
            facts = {"group": self._run.group, "family": self._run.family, "tags": ", ".join(self._run.tags)}
            self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()), 0)
            for name, value in facts.items():
                self._writer.add_text(name, value, 0)
        return self._writer

    def log(self, row: dict[str, Any], steps: dict[str, str]) -> None:
        writer = self._begun(row.get("round") if self._run.family == "federated" else None)
        for key, value, step in points(row, steps, self._rows):
            writer.add_scalar(key, value, step)
        self._rows += 1

    def summarise(self, values: dict[str, Any]) -> None:
        """As the hyperparameters' measures: the dashboard HPARAMS compares runs by them."""
        settings = flat(self._run.config, ".")
        plain = {key: value for key, value in settings.items() if isinstance(value, int | float | str)}
        measured = {f"final/{key}": value for key, value, _ in points(values, {}, 0)}
        self._begun(None).add_hparams(plain, measured, run_name=".")

    def close(self, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()
