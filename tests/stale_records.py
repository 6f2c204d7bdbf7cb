"""Records as today's code makes them, and files that are touched: for the tests of stale results."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from knot_runner import provenance
from knot_runner.config.settings.groups import PathSettings
from knot_runner.provenance import fingerprints
from knot_runner.results import RunResult
from tests.contents import result_with


def settings(root: Path | None) -> Any:
    return SimpleNamespace(paths=PathSettings(output_dir="o", data_dir=None if root is None else str(root)))


def result(*files: fingerprints.Opened, plugins: tuple[str, ...] = (), **changes: Any) -> RunResult:
    """A result made by the code of today, as it comes back from its file."""
    rows = [dataclasses.asdict(one) for one in files]
    return result_with(json.loads(json.dumps({**provenance.made_by(plugins), "files": rows, "digest": {}} | changes)))


def touch(path: Path, seconds: int = 5) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + seconds * 10**9))
