"""Jobs and plans of sweeps, for tests that launch them by hand."""

from types import SimpleNamespace

from knot_runner.composing.commands import compose_all
from knot_runner.sweeps.plan import new_plan, write_plan
from tests.tiny import TINY_IMAGES


def composed(out, *overrides, base=TINY_IMAGES):
    return compose_all([*base, f"paths.output_dir={out}", *overrides])[0]


def planned(out, jobs, fail_fast=False):
    plan = new_plan(out, fail_fast, None)
    write_plan(plan, {job.run_id: job.config for job in jobs})
    return plan


def pretended(out, count, title="job {}"):
    """Jobs as far as a launcher, its board and its summary look at them."""
    return [SimpleNamespace(run_id=str(at), folder=out / str(at), title=title.format(at)) for at in range(count)]
