"""Compatible choices: writes the table in ``docs/configuration.md``, and tries random compositions against it.

    python scripts/compositions.py table
    python scripts/compositions.py try --inside 300 --outside 200 --run 60 --seed $(git rev-parse HEAD)

The table is found by building the settings of every pair of choices: a pair that is refused with
:class:`~knot_runner.util.errors.Misfit` does not go together. ``try`` draws whole compositions from it: those inside
must pass ``check``, some of them must run to the end, and those outside must be refused in a line with two groups.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import pickle
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from knot_runner.cli.main import main as command
from knot_runner.composing.commands import compose_all
from knot_runner.composing.hydra_compose import choice_config, plain_config
from knot_runner.config.settings.families import family_of_algorithm
from knot_runner.config.settings.partition import SHARE_KEYS
from knot_runner.config.settings.run import build_run
from knot_runner.util.config_yaml import Config, choices, config_folder
from knot_runner.util.errors import Misfit

GUIDE = config_folder().parent / "docs/configuration.md"
BEGIN, END = "<!-- compatible choices -->", "<!-- end -->"
#: Kind of task -> the task that its other choices are tried on; of images one that is no transfer set.
KINDS = {"texts": "sa", "images": "gld23k", "gaussians": "gaussians", "image_sets": "image_sets"}
#: Tasks and transfer sets that need a user's files, beside folders and csv.
USERS = {"csv", "folders", "own"}
#: Groups that a composition may choose beside task and method.
OTHERS = ("model", "training", "partition", "transfer", "fleet", "privacy")
SIZES = ("quick", "small")


@dataclass
class Fits:
    """The choices that go with one method on one kind of task, by group; ``tasks`` of that kind."""

    method: str
    kind: str
    tasks: list[str] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Table:
    """Everything that goes together: by method and kind of task, and the pairs of other groups that do not."""

    fits: list[Fits]
    misfits: set[tuple[str, str]]
    #: task -> the model that it brings
    models: dict[str, str]

    def holds(self, words: Sequence[str]) -> bool:
        """Whether the composition ``words`` is inside the table."""
        chosen = dict(word.split("=") for word in words)
        chosen.setdefault("model", self.models[chosen["task"]])
        for fits in self.fits:
            if fits.method == chosen["method"] and chosen["task"] in fits.tasks:
                named = {group: name for group, name in chosen.items() if group in OTHERS and name}
                inside = all(name in fits.others[group] for group, name in named.items())
                return inside and not any({one, other} <= set(words) for one, other in self.misfits)
        return False


def table() -> Table:
    """Find the table by building the settings of every pair of choices; takes a minute."""
    tasks = {name: composed(f"task={name}") for name in choices("task")}
    groups = {group: {name: _group(group, name) for name in choices(group)} for group in OTHERS}
    fits = []
    for method in choices("method"):
        settings = plain_config(choice_config(f"method/{method}", None))["method"]
        family = family_of_algorithm(settings["algorithm"])
        for kind in filter(family.tasks.__contains__, KINDS):
            base = composed(f"method={method}", f"task={KINDS[kind]}")
            if base is not None:
                fits.append(_fits(method, kind, base, tasks, groups))
    pairs = [("fleet", "privacy"), ("privacy", "partition"), ("fleet", "partition")]
    federated = composed("method=fedavg", f"task={KINDS['images']}")
    misfits = {
        (f"{one}={a}", f"{other}={b}")
        for one, other in pairs
        for a, first in groups[one].items()
        for b, second in groups[other].items()
        if _refused({**federated, one: first, other: second})
    }
    same = [(name, task["task"]["name"]) for name, task in tasks.items() if task["task"]["name"] in groups["transfer"]]
    misfits |= {
        (f"task={task}", f"transfer={transfer}")
        for task, transfer in same
        if composed("method=feddf", f"task={task}", f"transfer={transfer}") is None
    }
    models = {name: (task["model"] or {}).get("name", "") for name, task in tasks.items()}
    return Table(fits, misfits, models)


def composed(*words: str) -> Config | None:
    """Return the settings of one composition; None if it does not go together."""
    try:
        jobs, _ = compose_all([*words, "hardware=cpu"])
    except Misfit:
        return None
    config = jobs[0].config
    if config["method"].get("aggregation") == "weighted":  # what null was filled in with
        config["method"]["aggregation"] = None
    if config["partition"]:
        config["partition"] |= dict.fromkeys(SHARE_KEYS)
    return config


def _group(group: str, name: str) -> Config:
    """The settings of a choice of ``group``; of a transfer set with the task's source."""
    if group == "transfer":
        return composed(f"task={KINDS['images']}", "method=fedavg", f"transfer={name}")["transfer"] or {}
    return plain_config(choice_config(f"{group}/{name}", None))[group]


def _kind(task: Config) -> str:
    return task["task"]["kind"] if task["task"]["kind"] in KINDS else "texts"


def _refused(config: Config) -> bool:
    """Whether the groups of ``config`` do not go together."""
    try:
        build_run(pickle.loads(pickle.dumps(config)))  # a copy, in a fifth of the time of copy.deepcopy
    except Misfit:
        return True
    return False


def _fits(method: str, kind: str, base: Config, tasks: dict[str, Config], groups: dict[str, dict[str, Config]]) -> Fits:
    own = [name for name, task in tasks.items() if _kind(task) == kind]
    found = Fits(method, kind, [name for name in own if not _refused({**base, "task": tasks[name]["task"]})])
    for group, values in groups.items():
        found.others[group] = [name for name, value in values.items() if not _refused({**base, group: value})]
    return found


# ----------------------------------------------------------------------------------------------------------- the guide


def markdown(found: Table) -> str:
    """Return the table as the guide shows it.

    Methods that go with the same choices share a row. So do the kinds of tasks of a method that differ only in their
    models and transfer sets.
    """
    tasks = {kind: {task for fits in found.fits if fits.kind == kind for task in fits.tasks} for kind in KINDS}
    similar: dict[tuple[str, ...], list[Fits]] = {}
    for fits in found.fits:
        shared = [_cell(group, fits.others[group], choices(group)) for group in ("partition", "fleet", "privacy")]
        similar.setdefault((fits.method, *shared), []).append(fits)
    rows: dict[tuple[str, ...], list[str]] = {}
    for (method, partition, fleet, privacy), members in similar.items():
        kinds = ", ".join(_cell(fits.kind, fits.tasks, tasks[fits.kind]) for fits in members)
        models = [
            name for name in choices("model") if name.startswith("bert") in {fits.kind == "texts" for fits in members}
        ]
        model = _cell("model", {name for fits in members for name in fits.others["model"]}, models)
        transfer = _cell(
            "transfer", {name for fits in members for name in fits.others["transfer"]}, choices("transfer")
        )
        cells = (model, partition, transfer, fleet, privacy)
        rows.setdefault((kinds, "; ".join(filter(None, cells)) or "none"), []).append(method)
    lines = ["| methods | tasks | groups |\n|---|---|---|"]
    lines += [f"| {', '.join(methods)} | {kinds} | {groups} |" for (kinds, groups), methods in rows.items()]
    refused: dict[str, list[str]] = {}
    for one, other in sorted(found.misfits):
        first, second = (one, other) if "privacy" in one else (other, one)
        refused.setdefault(first, []).append(second)
    pairs = [f"- `{one}`: not with `{'`, `'.join(others)}`" for one, others in sorted(refused.items())]
    text = "\nIncompatible choices:\n"
    return "\n".join([*lines, text, *pairs])


def _cell(group: str, fitting: Iterable[str], names: Iterable[str]) -> str:
    """Return the name of a group with those of ``names`` that are ``fitting``, in few words; "" if it is not used."""
    own = sorted(set(names) & set(fitting))
    others = sorted(set(names) - set(own))
    if not own or own == ["none"]:
        return ""
    if not others:
        return group
    return f"{group} but {', '.join(others)}" if len(others) < len(own) else f"{group} {', '.join(own)}"


def write_table() -> None:
    """Replace the table in the guide."""
    before, _, rest = GUIDE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    GUIDE.write_text(f"{before}{BEGIN}\n{markdown(table())}\n{END}{after}", encoding="utf-8")


# --------------------------------------------------------------------------------------------------------- random tries


def drawn(found: Table, draw: random.Random, inside: bool) -> list[str]:
    """Return a random composition that is ``inside`` the table, or outside of it."""
    while True:
        fits = draw.choice(found.fits)
        tasks = fits.tasks if inside else choices("task")
        words = [f"task={draw.choice(tasks)}", f"method={fits.method}"]
        for group in OTHERS:
            names = fits.others[group] if inside else choices(group)
            if group == "training":
                names = [name for name in names if name in SIZES]  # the others are for some tasks only
            if names and draw.random() < 0.4:
                words.append(f"{group}={draw.choice(names)}")
        if not USERS & {word.partition("=")[2] for word in words} and found.holds(words) == inside:
            return words


def command_output(words: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and its output."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = command(list(words))
    return code, errors.getvalue() + out.getvalue()


def tried(args: argparse.Namespace) -> int:
    """Try random compositions; returns 1 if any is not as the table says."""
    found = table()
    draw = random.Random(args.seed)
    failures = 0
    insides = [drawn(found, draw, inside=True) for _ in range(args.inside)]
    outsides = [drawn(found, draw, inside=False) for _ in range(args.outside)]
    with tempfile.TemporaryDirectory() as folder:
        paths = ["hardware=cpu", f"paths.output_dir={folder}"]
        runs = [[word for word in words if "training=" not in word] for words in insides[: args.run]]
        tries: list[tuple[str, list[str], Callable[[int, str], bool]]] = [
            *(("check", ["check", *words, *paths], lambda code, _: code == 0) for words in insides),
            *(("refused", [*words, *paths], _names_two_groups) for words in outsides),
            *(("run", [*words, "training=quick", *paths], lambda code, _: code == 0) for words in runs),
        ]
        for what, words, right in tries:
            code, text = command_output(words)
            if not right(code, text):
                failures += 1
                print(f"{what} {' '.join(words[:-2])} -> {code} {' '.join(text.split())[-400:]}", flush=True)
    print(f"{len(insides)} inside, {len(outsides)} outside, {len(runs)} runs: {failures} not as the table says")
    return int(failures > 0)


def _names_two_groups(code: int, text: str) -> bool:
    lines = [line for line in text.splitlines() if line.startswith("knot-runner: ")]
    groups = set(re.findall(rf"\b({'|'.join(('task', 'method', *OTHERS))})=", lines[-1] if lines else ""))
    return code == 2 and len(groups) >= 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "try"))
    parser.add_argument("--inside", type=int, default=300)
    parser.add_argument("--outside", type=int, default=200)
    parser.add_argument("--run", type=int, default=60, help="so many of those inside run to the end")
    parser.add_argument("--seed", default="0")
    args = parser.parse_args()
    if args.what == "table":
        write_table()
        return 0
    return tried(args)


if __name__ == "__main__":
    raise SystemExit(main())
