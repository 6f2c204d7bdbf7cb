"""Command lines that nobody would type on purpose, made from a seed: each is a run, or refused in one line.

    python -m tests.fuzz_commands --count 1200        counts, and what was wrong; exit code 1 where anything was

Nothing is trained: a run ends where it would begin.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from knot_runner import compose
from knot_runner.cli import launch
from knot_runner.cli import main as cli
from knot_runner.composing.overrides import GROUPS
from knot_runner.util.config_yaml import choices

#: What Hydra's parser and Python would say.
FOREIGN = (
    "mismatched input", "extraneous input", "no viable alternative", "token recognition", "NoViable", "expecting {",
    "Traceback", "hydra.cc", "antlr", "HydraException", "object at 0x",
)  # fmt: skip
VALUES = (
    "", "null", "-1", "0", "nan", "inf", "-inf", "1e400", "x", "[]", "{}", "true", "''", "99999999999999999999",
    "[", "]", "{", "}", "(", ")", "[1", "{a:1", "1]", "[[1],[2]]", "{a:{b:1}}", "\"", "'", "\"x", "'x'",
    "1,,2", ",", "1,", ",1", "[1,,2]", "1;2", "=1", "a=b", "a b", " x", "x ", "#", "a#b", "&", "<x>", "`x`", "!x",
    "~", "*", "a|b", "\\", "\\x", "x\\", "\n", "a\nb", "\t", "\0", "\x1b[31m", "ü", "/tmp/ü ö", "日本語", "\u202e",
    "\udcff", "$", "${", "${}", "${x}", "${seed}", "${.x}", "${oc.env:NO_SUCH}", "${oc.decode:1}", "${now:%Y}",
    "${${x}}", "glob(*)", "glob(fed*)", "glob(", "glob(zz*)", "interval(0,1)", "range(0,1e9)",
    "range(0,3)", "range(3)", "range(3,0)", "range(0,1,0)", "range(0,inf)", "range(a,b)", "range()", "choice()",
    "choice(1,2)", "choice(a,[1])", "sort(3,1,2)", "sort(1,a)", "shuffle(1,2)", "tag(x,1,2)", "foo(1)", "int(x)",
    "float(1,2)", "str(1)", "bool(x)", "0,1", "a,b", "1,a,[2]", "0,0", "../..", "/dev/null", "{_target_:os.system}",
    "0x10", "1_000", ".5", "1e-3", "yes", "::", "a:b",
)  # fmt: skip
KEYS = (
    "", "+", "++", "~", "~~", "a b", "a.", ".a", "a..b", "ü", "a@b", "a/b", "a:b",
    "_target_", "task._target_", "+task._target_", "$x", "-x", "1", "[a]", "a[0]", "sede", "methd", "task.", "@",
    "seed@x", "model@m",
)  # fmt: skip
HYDRA = (
    "hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir",
    "hydra.job.chdir", "hydra", "hydra.job.name", "hydra.job.env_set.A", "hydra.searchpath", "hydra.callbacks.x",
    "hydra.launcher", "hydra.launcher._target_", "hydra.launcher.n_jobs", "hydra.sweeper",
    "hydra.sweeper.max_batch_size", "hydra/launcher", "hydra/sweeper", "hydra/callbacks", "hydra/job_logging",
    "hydra/output", "hydra.help.header", "hydra.runtime.cwd", "hydra.nope",
)  # fmt: skip
FLAGS = (
    "-m", "--multirun", "--config-dir", "--config-dir=", "--config-dir=/nope", "--config-dir=.", "--config-path=/",
    "--config-name=x", "-cd", "-x", "--", "---", "-", "--stale", "--stale=x", "--stale=keep", "--all",
    "--ü", "--quick", "-c", "--cfg=x", "--cfg=job", "-p", "--package=x", "--resolve", "--info=x",
    "-sc", "-cn", "--run", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=x",
)  # fmt: skip
BASES = (
    [], [], [], ["task=femnist"], ["task=gaussians"], ["task=image_sets"], ["task=mnist", "method=dataset_distance"],
)  # fmt: skip
VERBS = (
    "check", "check", "check", "table", "plot", "claims", "report", "compare", "ls", "tabel", "help", "plot partition",
)  # fmt: skip
#: Parts of lines that say what was understood, before a command is carried out or refused.
NOTES = ("hardware: CPU (no GPU found)", " is given ", "left out", ": chosen for method=")
PRESETS = ("knot/fig5", "fedwad/toy", "chill/fig6", "nope", "a,b", "glob(x*)", "../x", "", "=", "[a]")


@dataclass(frozen=True)
class Outcome:
    """What became of a command line: the exit code (None: an exception), what was said, what was wrong with that."""

    code: int | None
    said: str
    seconds: float
    wrong: str


def cases(count: int, seed: int) -> list[list[str]]:
    """``count`` command lines, the same for the same seed."""
    draw = random.Random(seed)
    keys = sorted({key for base in BASES for key in _keys(compose(base)[0].config)})
    makers = (_plain, _plain, _plain, _groups, _hydras, _mangled, _chained, _verbs, _flags, _several)
    return [makers[at % len(makers)](draw, keys) for at in range(count)]


def _keys(node: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, value in node.items():
        yield f"{before}{name}"
        if isinstance(value, dict):
            yield from _keys(value, f"{before}{name}.")


def _plain(draw: random.Random, keys: list[str]) -> list[str]:
    sign = draw.choice(["", "", "", "", "+", "++", "~"])
    return [*draw.choice(BASES), f"{sign}{draw.choice(keys)}={draw.choice(VALUES)}"]


def _groups(draw: random.Random, keys: list[str]) -> list[str]:
    group = draw.choice(GROUPS)
    names = choices(group)
    value = draw.choice(
        [draw.choice(VALUES), f"[{draw.choice(names)},{draw.choice(names)}]", f"{draw.choice(names)},5", names[0][:-1]]
    )
    return [f"{draw.choice(['', '', '+', '~'])}{group}={value}", *draw.choice([[], ["seed=0"]])]


def _hydras(draw: random.Random, keys: list[str]) -> list[str]:
    return [f"{draw.choice(['', '', '+', '~'])}{draw.choice(HYDRA)}={draw.choice(VALUES)}"]


def _mangled(draw: random.Random, keys: list[str]) -> list[str]:
    """A key that is none, or a right override with characters taken out, doubled or put in."""
    if draw.random() < 0.5:
        return [f"{draw.choice(KEYS)}{draw.choice(['=', '=', '', '=='])}{draw.choice(VALUES)}"]
    word = list(f"{draw.choice(keys)}={draw.choice(VALUES)[:40]}")
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(word))
        word[at] = draw.choice(["", word[at] * 2, draw.choice("[]{}()=,.:'\"\\ $~+@/ü\n")])
    return ["".join(word)]


def _chained(draw: random.Random, keys: list[str]) -> list[str]:
    """Interpolations that double at every step, or lead in a circle."""
    length, key = draw.choice([2, 5, 8]), draw.choice(["task.a", "method.a", "a", "paths.a"])
    links = [f"+{key}{at + 1}=" + f"${{{key}{at}}}" * draw.choice([2, 2, 3]) for at in range(length)]
    first = draw.choice([f"+{key}0=abcdefgh", f"+{key}0=${{{key}{length}}}"])
    return draw.choice([[first, *links], [*links, first], [first, *links, f"paths.output_dir=${{{key}{length}}}"]])


def _verbs(draw: random.Random, keys: list[str]) -> list[str]:
    verb = draw.choice(VERBS).split()
    named = [] if verb[0] in ("check", "ls", "compare", "help") or len(verb) > 1 else [draw.choice(PRESETS)]
    few = ["seed=0"] if named else []
    more = [f"{draw.choice(keys)}={draw.choice(VALUES)}"] if draw.random() < 0.7 else []
    flag = ["--quick"] if verb[0] == "check" else []
    return [*verb, *named, *flag, *few, *more]


def _flags(draw: random.Random, keys: list[str]) -> list[str]:
    return [draw.choice(FLAGS), *draw.choice(BASES), *draw.choice([[], [f"{draw.choice(keys)}={draw.choice(VALUES)}"]])]


def _several(draw: random.Random, keys: list[str]) -> list[str]:
    """Keys given more than once, several presets, wide grids."""
    key = draw.choice(["seed", "task.max_examples", "method", "training", "paths.output_dir", draw.choice(keys)])
    twice = [f"{key}={draw.choice(VALUES)}", f"{draw.choice(['', '+', '~'])}{key}={draw.choice(VALUES)}"]
    presets = [f"experiment={draw.choice(PRESETS)},{draw.choice(PRESETS)}", "seed=0"]
    wide = [f"seed=range(0,{draw.choice([200, 10**5])})", f"task.max_examples=range(10,{draw.choice([10**3, 10**6])})"]
    return draw.choice([twice, twice, presets, wide])


def outcome(arguments: list[str]) -> Outcome:
    """Give ``arguments`` to the command, up to where a run would begin."""
    out, errors, began = io.StringIO(), io.StringIO(), time.process_time()
    code, wrong = None, ""
    stub = mock.patch.object(launch, "_carried_out", lambda *_, **__: 0)
    with stub, contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = cli.main(arguments)
        except BaseException:
            wrong = traceback.format_exc(limit=-3)
    said = errors.getvalue()
    return Outcome(code, said, time.process_time() - began, wrong or _wrong(code, said))


def _wrong(code: int | None, said: str) -> str:
    lines = [line for line in said.splitlines() if not any(note in line for note in NOTES)]
    foreign = [word for word in FOREIGN if word in said]
    if foreign:
        return f"says {foreign[0]!r}"
    if code == 2 and (len(lines) != 1 or len(lines[0].removeprefix("knot-runner:").strip()) < 10):
        return f"a refusal of {len(lines)} lines"
    return "" if code in (0, 2) else f"exit code {code}"


def within(folder: Path, arguments: list[str]) -> list[str]:
    """``arguments`` with ``paths.output_dir`` in ``folder``, unless they set it."""
    if any("paths" in a for a in arguments) or arguments[:1] in (["ls"], ["compare"], ["help"]):
        return arguments
    return [*arguments, f"paths.output_dir={folder}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds (of one processor) that a refusal may take")
    options = parser.parse_args()
    count: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for arguments in cases(options.count, options.seed):
            found = outcome(within(Path(folder), arguments))
            slow = found.code == 2 and found.seconds > options.limit
            count[{0: "run", 2: "refused"}.get(found.code, "traceback")] += 1
            count["wrong"] += bool(found.wrong or slow)
            if found.wrong or slow:
                typed = [argument[:80] for argument in arguments]
                print(typed, found.wrong, f"{found.seconds:.1f} s\n   ", found.said[:300], flush=True)
    print(f"{options.count} command lines, seed {options.seed}: {dict(count)}")
    return int(count["wrong"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
