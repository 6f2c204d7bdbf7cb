"""Checks of whether a finished run is reproducible with the current code, plug-ins, torch and data files.

Code and data files can change while the settings and the run id stay the same. A result therefore records the code
versions (:func:`made_by`) and the data files of its run. :func:`reasons` compares them with the current state.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import knot_runner
from knot_runner.config.settings.run import Settings
from knot_runner.config.settings.run_id import counted_settings, settings_record
from knot_runner.config.strict import dotted_leaves
from knot_runner.provenance.fingerprints import Now, Opened
from knot_runner.records import CONFIG_FILE, MODEL_FILE, changed_files, recorded_config
from knot_runner.results import RunResult
from knot_runner.util.errors import UserError, counted
from knot_runner.util.files import Facts, first_free

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
#: Parts of the package that cannot change a number in a result, because they only compose, start or report runs.
#: ``conf/`` (inside the package in a wheel) is excluded too, because settings are part of the run id.
NOT_COUNTED = {
    *("__init__", "__main__", "python", "cli", "composing", "conf", "report", "provenance"),
    *("sweeps", "bundles", "testing", "engine/tracker", "engine/tracker_services"),
    *("data/fetch", "data/preflight", "data/sources"),  # used before any run
}
#: Modules of papers that only show results.
SHOWS = tuple(
    f"papers/*/{name}" for name in ("report", "verbs", "rows", "target", "titles", "*_figures", "*_report", "*_table")
)


@functools.cache
def code_version() -> str:
    """Return the code version: the program version, ``+``, and a digest of the source files that can change results.

    The digest has 12 hex digits, as in ``0.1.0+0123456789ab``.
    """
    sources = [path for path in PACKAGE_FOLDER.rglob("*.py") if _counts(path)]
    return f"{knot_runner.__version__}+{_digest(PACKAGE_FOLDER, sources)}"


def _counts(path: Path) -> bool:
    name = path.relative_to(PACKAGE_FOLDER).with_suffix("")
    if any(name.match(pattern) for pattern in SHOWS):
        return False
    return NOT_COUNTED.isdisjoint(part.as_posix() for part in (name, *name.parents))


def _digest(folder: Path, files: Iterable[Path]) -> str:
    """Return a 12-digit hex digest of names (relative to ``folder``) and contents."""
    state = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in files):
        content = path.read_bytes()
        state.update(f"{name}\0{len(content)}\0".encode() + content)
    return state.hexdigest()[:12]


@functools.cache
def torch_version() -> str:
    """Return the version of the installed torch, without a build suffix such as ``+cpu``."""
    from importlib import metadata  # only needed for existing runs

    return _public(metadata.version("torch"))


def _public(version: str) -> str:
    return version.partition("+")[0]


def plugin_version(plugin: str) -> str | None:
    """Return a 12-digit hex digest of the Python files of a plug-in; None if the plug-in is not found.

    The plug-in is not imported.
    """
    try:
        if plugin.endswith(".py"):
            return _digest(Path(plugin).parent, [Path(plugin)])
        top, *rest = plugin.split(".")
        # Only the top package is located: finding a submodule would import its packages and run the user's code.
        spec = importlib.util.find_spec(top)
        if spec is None or spec.origin is None:
            return None
        home = Path(spec.origin).parent
        if not spec.submodule_search_locations:
            return _digest(home, [Path(spec.origin)])
        module = home.joinpath(*rest)
        if module.is_dir():
            return _digest(home, module.rglob("*.py"))
        return _digest(home, [module.with_suffix(".py")])
    except (OSError, ImportError, ValueError):
        return None


def made_by(plugins: Iterable[str]) -> Facts:
    """Return the versions of the code, of ``plugins`` and of torch. Results and checkpoints record these versions."""
    return {
        "code": code_version(),
        "plugins": {plugin: plugin_version(plugin) for plugin in plugins},
        "versions": {"torch": torch_version()},
    }


def code_changes(record: Facts) -> list[str]:
    """Return one line for each recorded version that differs from the current version.

    ``record``: versions that :func:`made_by` returned earlier.
    """
    changes = []
    code = record["code"]
    torch = _public(record["versions"]["torch"])
    if code != code_version():
        changes.append(f"code {code}, now {code_version()}")
    for plugin, version in record["plugins"].items():
        now = plugin_version(plugin)
        if now != version:
            changes.append(f"plug-in {plugin} {'was removed' if now is None else 'changed'}")
    if torch != torch_version():
        changes.append(f"torch {torch}, now {torch_version()}")
    return changes


#: prefixes of reasons about data, files and settings
DATA_CHANGE = "data: "
FILE_CHANGE = "files: "
SETTING_CHANGE = "settings: "
#: maximum number of lines with reasons in a summary
MAX_REASONS = 4


def reasons(folder: Path, result: RunResult, settings: Settings, now: Now | None = None) -> list[str]:
    """Return the reasons why the finished run in ``folder`` is stale, one line each; [] if the run is not stale.

    A run is stale if its code, data, settings or files have changed. ``now`` stores which data files were read, so that
    several calls with the same object read each file once.
    """
    files = _file_changes(folder, result)
    changes = code_changes(result.made_by) + data_changes(result, settings.paths.data_dir, now)
    if not any(reason.startswith(f"{FILE_CHANGE}{CONFIG_FILE}") for reason in files):
        changes += _setting_changes(folder, settings)
    return changes + files


def _setting_changes(folder: Path, settings: Settings) -> list[str]:
    """Return one line per setting whose recorded value differs from the value in ``settings``.

    Only settings that can change the numbers of a finished run are compared. Settings can differ although the run id is
    equal: a setting that is null in the run id may have another default today.
    """
    if not (folder / CONFIG_FILE).is_file():  # _file_changes reports this
        return []
    recorded = dict(dotted_leaves(counted_settings(recorded_config(folder))))
    now = dict(dotted_leaves(counted_settings(settings_record(settings))))
    changes = []
    for key in recorded | now:
        was = recorded.get(key)
        new = now.get(key)
        if was != new:
            changes.append(f"{SETTING_CHANGE}{key}: recorded {was}, now {new}")
    return changes


def _file_changes(folder: Path, result: RunResult) -> list[str]:
    """Return one line per file of a finished run that is missing or changed since its result was written."""
    return [f"{FILE_CHANGE}{name}: {problem}" for name, problem in changed_files(folder, result).items()]


def blocking(changes: Sequence[str]) -> list[str]:
    """Return the lines of ``changes`` that make a run count as not finished.

    Args:
        changes: Lines that :func:`reasons` returned. Lines about code versions and about missing weights are dropped.
    """
    counted_changes = (DATA_CHANGE, FILE_CHANGE, SETTING_CHANGE)
    # Users who delete weights to save space must not have to train again.
    missing_weights = f"{FILE_CHANGE}{MODEL_FILE}: file not found"
    return [reason for reason in changes if reason.startswith(counted_changes) and reason != missing_weights]


def data_changes(result: RunResult, data: str | None, now: Now | None = None) -> list[str]:
    """Return one line for each data file that has changed since a finished run read it.

    Args:
        result: Result of the run.
        data: The folder ``paths.data_dir``. If ``data`` is None, the returned list is empty.
        now: Cache of comparisons. Calls with the same cache read each data file at most once.
    """
    if data is None:
        return []
    root = Path(data).expanduser()
    now = now or Now()
    changes = []
    for row in result.files:
        change = now.change(root, Opened(**row))
        if change:
            changes.append(f"{DATA_CHANGE}{row['path']} {change}")
    return changes


@dataclass(frozen=True)
class CurrentData:
    """The current data files. A command compares them with the fingerprints that finished runs recorded.

    ``data`` is the folder ``paths.data_dir``. If ``data`` is None, data files are not compared. If a data file changes
    after its first check, the change is not noticed.
    """

    data: str | None
    now: Now = field(default_factory=Now)

    def changes(self, folder: Path, result: RunResult) -> list[str]:
        """Return the reasons why the run in ``folder`` does not count as finished; see :func:`blocking`."""
        return blocking(data_changes(result, self.data, self.now) + _file_changes(folder, result))


def refusal(changed: Sequence[tuple[str, Path, list[str]]], finished: int) -> str:
    """Return the one-line error message for finished runs whose data, settings or files have changed.

    Args:
        changed: A tuple (title, folder, changes) for each of these runs.
        finished: The number of all finished runs.
    """
    title, folder, changes = changed[0]
    kind, _, first = changes[0].partition(": ")
    what = f"{folder}/{first}"
    if f"{kind}: " == SETTING_CHANGE:
        what = f"{title} ({folder}) was run with different settings: {first}"
    elif f"{kind}: " == DATA_CHANGE:
        what = f"paths.data_dir: {title} ({folder}) was run on different data: {first}"
    if len(changes) > 1:
        what += f" and {len(changes) - 1} more"
    if len(changed) > 1:
        what += f" ({len(changed)} of {finished} finished runs are stale)"
    return f"{what}. Use --stale=rerun to rerun stale runs, or --stale=keep to show them as they are"


def set_aside(folder: Path) -> Path:
    """Move a run's ``folder`` below ``<out>/.stale`` and return the new folder.

    ``<out>/<task>/<method>/<run id>`` becomes ``<out>/.stale/<task>/<method>/<run id>-<n>`` with the smallest free
    positive number n. The caller must hold the run's lock.

    Raises:
        UserError: The folder cannot be moved.
    """
    task, method, run = folder.parts[-3:]
    home = folder.parents[2] / ".stale" / task / method
    try:
        home.mkdir(parents=True, exist_ok=True)
        return folder.rename(first_free(home, run))
    except OSError as problem:
        raise UserError(f"cannot be moved to {home}: {problem.strerror or problem}", folder) from None


def staleness_line(kept: list[list[str]]) -> list[str]:
    """Return the warning lines about stale runs whose results are shown; [] if no run is stale.

    ``kept`` holds one list per run: the reasons why the run is stale, or [] if the run is not stale.
    """
    counts = Counter(chain.from_iterable(kept))
    if not counts:
        return []
    stale = counted(sum(map(bool, kept)), "stale run")
    lines = [f"{stale} shown unchanged. To rerun stale runs, start the runs with --stale=rerun"]
    lines += [f"  {reason} ({counted(count, 'run')})" for reason, count in counts.most_common(MAX_REASONS)]
    if len(counts) > MAX_REASONS:
        lines.append(f"  and {len(counts) - MAX_REASONS} more reasons")
    return lines
