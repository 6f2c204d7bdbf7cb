"""Launching: all jobs are composed and checked first, then Hydra starts them; one that fails stops no other."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import hydra
from omegaconf import OmegaConf
from rich.console import Console

from knot_runner.compose import ComposedJob, compose_all, plain_config, run_folder
from knot_runner.errors import UserError
from knot_runner.listing import config_folder
from knot_runner.progress import Live
from knot_runner.records import read_result
from knot_runner.report.summary import summary_table
from knot_runner.settings import build_run, run_id
from knot_runner.show import show

#: Hydra's flags that show something instead of running.
HYDRA_ONLY = ("--hydra-help", "--cfg", "--resolve", "--package", "--info")
#: Exit codes: 0 done; 1 a job failed or diverged; 2 the user's input; 130 / 143 interrupted.
USER_ERROR = 2


def run_jobs(arguments: list[str]) -> int:
    """Compose and check every job first, then let Hydra launch them; a job that fails does not stop the others."""
    launch = hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")
    if any(a.startswith(HYDRA_ONLY) for a in arguments):
        sys.argv = [sys.argv[0], *arguments]
        launch(lambda _: None)()
        return 0
    jobs, expanded = compose_all(arguments)
    many = len(jobs) > 1
    if many and not {"-m", "--multirun"} & set(expanded):
        expanded = ["-m", *expanded]
    console = Console(stderr=True)
    problems: list[tuple[str, str, int]] = []
    sys.argv = [sys.argv[0], *expanded]
    launch(lambda config: run_one(config, console, problems, quiet=many))()
    code = _report_sweep(jobs, problems) if many else _report_single(jobs[0], problems)
    if code == 0 and jobs[0].settings.report:
        preset = next(a.split("=", 1)[1] for a in arguments if a.startswith("experiment="))
        show(preset, jobs, f"knot-runner {' '.join(arguments)}")
    return code


def run_one(config: Any, console: Console, problems: list[tuple[str, str, int]], quiet: bool) -> None:
    """One job of Hydra's; what goes wrong is noted in ``problems`` and, for a crash, in the job's own folder."""
    plain = plain_config(config)
    settings, method = build_run(plain)
    name = run_id(plain)
    folder = run_folder(settings, name)
    title = f"{settings.task.name} {settings.method['name']}{_variant(settings.method)} seed {settings.seed}"
    finished = read_result(folder) is not None
    if not (quiet and finished):
        console.print(f"{title}  ->  {folder}", highlight=False, soft_wrap=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from knot_runner.pipelines.errand import Errand  # torch: only now, and not for a mistyped key
        from knot_runner.run import run

        with Live(console) as live:
            text = OmegaConf.to_yaml(OmegaConf.create(plain))
            result = run(Errand(settings, method, folder, text, name, live.watch, live.say))
        if result["status"] != "done":
            problems.append((title, result["status"], 1))
    except UserError as problem:
        known = any(text == str(problem) for _, text, _ in problems)
        problems.append((title, str(problem), USER_ERROR))
        if quiet and not known:  # one mistake of a whole grid is said once
            console.print(f"{title}: {problem}", highlight=False, markup=False, soft_wrap=True)
    except Exception as problem:  # a bug or a broken machine: on record, and the sweep goes on
        problems.append((title, f"{type(problem).__name__}: {problem} (traceback: {folder / 'failed.txt'})", 1))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failed.txt").write_text(traceback.format_exc(), encoding="utf-8")


def _variant(method: dict[str, Any]) -> str:
    """What a sweep would otherwise not show: the temperature of a chilled method, the graph, the measures."""
    parts = []
    if method.get("temperature") not in (None, 1):
        parts.append(f"T={method['temperature']:g}" + (" (in the rate)" if method["lr_control"] else ""))
    if method.get("clustering"):
        parts.append(method["clustering"]["graph"])
    if method.get("fedwad") and method.get("distance") != "exact":
        mode, support = method["fedwad"]["mode"], method["fedwad"]["support"]
        parts.append(mode if mode == "exact" else f"S={support}")
    return "".join(f" {part}" for part in parts)


def _report_single(job: ComposedJob, problems: list[tuple[str, str, int]]) -> int:
    if problems:
        _, text, code = problems[0]
        print(f"knot-runner: {text}", file=sys.stderr)
        return code
    result = read_result(job.folder)
    Console().print(summary_table(result))
    print(job.folder)
    return 0


def _report_sweep(jobs: list[ComposedJob], problems: list[tuple[str, str, int]]) -> int:
    done = sum(status(job) == "done" for job in jobs)
    print(f"{done} done, {len(jobs) - done} failed", file=sys.stderr)
    alike: dict[str, list[str]] = {}
    for title, text, _ in problems:
        alike.setdefault(text, []).append(title)
    for text, titles in alike.items():
        more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        print(f"  {titles[0]}{more}: {text}", file=sys.stderr)
    if problems:
        return max(code for _, _, code in problems)
    return 0 if done == len(jobs) else 1


def status(job: ComposedJob) -> str | None:
    """``done``, ``diverged``, or None when the job has no whole result yet."""
    result = read_result(job.folder)
    return result["status"] if result else None
