"""Jobs and plans of sweeps, for tests that launch them by hand."""

from knot_runner.composing.commands import compose_all
from knot_runner.config.settings import run_id
from knot_runner.sweeps.plan import PlannedJob, new_plan, write_plan
from tests.tiny import TINY_IMAGES


def composed(out, *overrides, base=TINY_IMAGES):
    return [one.config for one in compose_all([*base, f"paths.out={out}", *overrides])[0]]


def planned(out, configs, fail_fast=False):
    jobs = [PlannedJob([], run_id(config), str(out / run_id(config)), str(at)) for at, config in enumerate(configs)]
    plan = new_plan(out, jobs, fail_fast, None)
    write_plan(plan, {run_id(config): config for config in configs})
    return plan
