"""Records: files of a run that are verified by checksum.

A damaged record is never used. ``result.json`` contains its own checksum and those of the run's other records.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

from knot_runner import __version__
from knot_runner.config.strict import content_of, digest, without
from knot_runner.results import RunResult, result_of
from knot_runner.util.config_yaml import read_config
from knot_runner.util.errors import UserError
from knot_runner.util.files import read_json, refused, regular, sha256, write_json

RESULT_FILE = "result.json"
#: File with the generalization bound of a distillation. The file holds its own checksum; the result also has the
#: checksum if the run itself wrote the file.
BOUND_FILE = "bound.json"
#: File of a federated run: the evaluation of every client's model on every client's test examples.
CLIENTS_FILE = "clients.safetensors"
#: Files of the checkpoint from which an interrupted run or stage resumes. They are not needed after the result is
#: written.
STATE_FILES = ("commit.json", "state-0.safetensors", "state-1.safetensors")
#: Pattern of the files with tensors that several commits share.
PART_FILES = "state-part-*.safetensors"
#: The program version and the layout of records, stored in every record. Records with other values are not read.
#: Increase the layout when a record or the result of a shared stage changes.
WRITTEN_BY = f"{__version__}, layout 2"
#: File with the final model of a run (the global model or the student), and file with the run's settings.
MODEL_FILE = "model.safetensors"
CONFIG_FILE = "config.yaml"
#: File with the log of a run: a row for each round, epoch or stage.
ROUNDS_FILE = "rounds.jsonl"
#: Files in a run's folder that may change after the result is written.
NOT_SEALED = {RESULT_FILE, "log.txt", "progress.json", "failed.json", *STATE_FILES}


class OtherVersionError(UserError):
    """A record was written by another version of knot_runner."""


def write_sealed(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    """Write ``value`` and its checksum as JSON to the file ``path``. Return the written dict.

    Raises:
        UserError: The file cannot be written.
    """
    content = without(value, "digest") | {"written_by": WRITTEN_BY}
    sealed = {**content, "digest": digest(content, 64)}
    write_json(path, sealed)
    return sealed


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return the record that :func:`write_sealed` wrote to ``path``.

    Return None if the file is missing, changed, or from another version of knot_runner.
    """
    value = read_json(path)
    return None if sealed_problem(value) else value


def sealed_problem(value: object) -> str:
    """Return an error text if ``value`` is not a valid record from :func:`write_sealed`; otherwise "".

    The caller puts the path of the file before the text.
    """
    if isinstance(value, dict):
        return other_version(value) or _checksum_problem(without(value, "digest"), value.get("digest"))
    return "cannot be read"


def other_version(record: dict[str, Any]) -> str:
    """Return an error text if another version of knot_runner wrote ``record``; otherwise "".

    The caller puts the path of the file before the text.
    """
    version = record.get("written_by")
    if version == WRITTEN_BY:
        return ""
    shown = version[:60] if isinstance(version, str) and version.isprintable() else "unknown"
    return f"written by another version of knot_runner (version {shown})"


def write_result(folder: Path, result: RunResult) -> RunResult:
    """Write ``result.json`` into ``folder``, and return the written result.

    The written result is ``result`` with the run's id and the checksums of the run's files.

    Raises:
        UserError: A field of ``result`` has an invalid value.
    """
    content = without(content_of(result), "digest") | {"run_id": folder.name, "written_by": WRITTEN_BY}
    files = _digests(folder)
    sealed = {**content, "digest": {**files, RESULT_FILE: digest([content, files], 64)}}
    read_back = result_of(sealed)
    write_json(folder / RESULT_FILE, sealed)
    return read_back


def read_result(folder: Path) -> RunResult | None:
    """Return the result of the run in ``folder``.

    Return None if the result is missing or damaged, or is from another run or another version of knot_runner.
    """
    try:
        return require_result(folder)
    except UserError:
        return None


def require_result(folder: Path) -> RunResult:
    """Return the result of the run in ``folder``. Unlike :func:`read_result`, raise an error if there is no result.

    Raises:
        UserError: The result is missing or damaged, or is from another run or another version of knot_runner.
    """
    path = folder / RESULT_FILE
    if not path.exists():
        raise UserError("file not found. The run is not finished", path)
    result = read_json(path)
    if not isinstance(result, dict):
        raise UserError("cannot be read", path)
    if problem := other_version(result):
        raise OtherVersionError(f"{path}: {problem}. Repeat the command that started the run")
    digests = result.get("digest")
    if not isinstance(digests, dict):
        digests = {}
    files = without(digests, RESULT_FILE)
    if problem := _checksum_problem([without(result, "digest"), files], digests.get(RESULT_FILE)):
        raise UserError(problem, path)
    if result.get("run_id") != folder.name:
        raise UserError(f"belongs to another run ({result.get('run_id')!r:.100})", path)
    try:
        return result_of(result)
    except UserError as problem:
        raise UserError(f"{path}: {problem}") from None


def result_problem(folder: Path) -> str:
    """Return why the result in ``folder`` cannot be used; "" if the result is valid or does not exist."""
    if not (folder / RESULT_FILE).exists():
        return ""
    try:
        require_result(folder)
    except UserError as problem:
        return str(problem)
    return ""


def find_run(word: str, out: Path) -> Path:
    """Return the folder of a run.

    Args:
        word: The path of the folder, or the id of the run.
        out: Folder that is searched for the id.

    Raises:
        UserError: ``word`` is neither a folder nor the id of exactly one run.
    """
    path = Path(word).expanduser()
    if word and path.is_dir():
        return path
    folders = []
    if word and not set(word) & set("/*?[]"):
        folders = sorted(out.glob(f"*/*/{word}"))
    if len(folders) != 1:
        raise UserError(f"neither a run folder nor the id of a run in paths.output_dir={out}", word)
    return folders[0]


def _checksum_problem(content: object, checksum: object) -> str:
    with contextlib.suppress(ValueError, RecursionError):  # NaN or extreme nesting, which no run writes
        if checksum == digest(content, 64):
            return ""
    return "does not match its checksum"


def has_record(folder: Path, result: RunResult, name: str) -> bool:
    """Return whether ``folder`` contains the file ``name``, or contained it when ``result`` was written."""
    return (folder / name).exists() or name in result.digest


def read_record(folder: Path, result: RunResult, name: str) -> bytes:
    """Return the content of the file ``name`` in the run's ``folder``.

    Raises:
        UserError: The file cannot be read, or does not match its checksum in ``result``.
    """
    path = folder / name
    try:
        content = regular(path).read_bytes()
    except FileNotFoundError:
        raise UserError("file not found", path) from None
    except OSError as problem:
        raise refused(path, problem) from None
    if hashlib.sha256(content).hexdigest() != result.digest.get(name):
        raise UserError(f"does not match its checksum in {RESULT_FILE}", path)
    return content


def changed_files(folder: Path, result: RunResult) -> dict[str, str]:
    """Read all files of a finished run, and find the files that are missing or have changed.

    Returns:
        A dict from file name to a text that describes the problem.
    """
    changes = {}
    for name, checksum in result.digest.items():
        if name == RESULT_FILE:
            continue
        try:
            if sha256(folder / name) != checksum:
                changes[name] = f"does not match its checksum in {RESULT_FILE}"
        except FileNotFoundError:
            changes[name] = "file not found"
        except OSError as problem:
            changes[name] = f"{problem.strerror}"
    return changes


def recorded_config(folder: Path) -> dict[str, Any]:
    """Return the settings of the run in ``folder``.

    Raises:
        UserError: The settings cannot be read.
    """
    try:
        return read_config(folder / CONFIG_FILE)
    except (ValueError, OSError) as problem:
        raise UserError(f"cannot be read: {problem}", f"{folder / CONFIG_FILE}") from None


def lock_of(out: str | Path, run_id: str) -> Path:
    """Return the path of a run's lock. The lock is below ``out``, but outside the run's folder."""
    return Path(out) / ".locks" / run_id


def lock_of_stage(root: Path, stage: str, key: str) -> Path:
    """Return the path of the lock for the artifact of a stage.

    Args:
        root: Folder of the artifacts.
        stage: Name of the stage.
        key: Key of the artifact.
    """
    return root / ".locks" / f"{stage}-{key}"


def clear_states(folder: Path) -> None:
    """Delete the checkpoint files in ``folder``. Call this function after the result is written."""
    # The commit record is deleted first, because states without a record are never used.
    for name in STATE_FILES:
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob(PART_FILES):
        path.unlink(missing_ok=True)


def _digests(folder: Path) -> dict[str, str]:
    """Return a dict from file name to sha256 (hex) of every file that is part of the run's result."""
    digests = {}
    for path in sorted(folder.glob("[!.]*")):
        is_left_out = path.name in NOT_SEALED or path.suffix == ".tmp" or path.match(PART_FILES)
        if path.is_file() and not is_left_out:
            digests[path.name] = sha256(path)
    return digests
