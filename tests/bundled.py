"""A small finished run, archives of any members, and bundles of a run that has been tampered with."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from knot_runner.bundles.pack import packed_run, write_bundle
from knot_runner.cli.main import main
from tests.contents import seal_content
from tests.runs import command
from tests.tiny import TINY_IMAGES, replaced

SMALL = [*replaced(TINY_IMAGES, "training.lr=0.05"), "task.source=embedded", "hardware=cpu", "paths.data_dir=null"]


def small_run(out: Path, *overrides: str) -> Path:
    """The folder of a federated run of three rounds."""
    return command(out, *replaced(SMALL, *overrides)).folder


def bundled(folder: Path, to: Path) -> Path:
    """A bundle of the run in ``folder``."""
    assert main(["bundle", str(folder), f"--to={to}"]) == 0
    return to


def tampered(folder: Path, place: Path, change: Callable[[dict[str, Any], list[dict[str, Any]]], Any]) -> Path:
    """A bundle, whole and sealed, of a run whose result and rounds somebody has changed."""
    copy = place / folder.name
    shutil.copytree(folder, copy)
    result = json.loads((copy / "result.json").read_text())
    rows = [json.loads(line) for line in (copy / "rounds.jsonl").read_text().splitlines()]
    change(result, rows)
    (copy / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seal_content(copy, result)
    with mock.patch("knot_runner.records.result_of", lambda content: SimpleNamespace(**content)):
        write_bundle([packed_run(copy)], place / "tampered.tar.gz")
    return place / "tampered.tar.gz"


def tampered_config(folder: Path, place: Path, old: str, new: str) -> Path:
    """A bundle of the run in ``folder`` with another text in its config."""
    config = (folder / "config.yaml").read_text()
    try:
        (folder / "config.yaml").write_text(config.replace(old, new))
        return tampered(folder, place, lambda *_: None)
    finally:
        (folder / "config.yaml").write_text(config)


def members_of(path: Path) -> dict[str, bytes]:
    """Name -> bytes of all files of an archive, in their order."""
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def archive(path: Path, members: Mapping[str, bytes | tarfile.TarInfo]) -> Path:
    """An archive of ``members``: bytes, or a member of another kind."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path
