"""The plan of a stack: widths, and each client's own draws in its own place."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.engine.federated import local
from knot_runner.engine.federated.cohort import Phase
from knot_runner.engine.federated.stacked.plan import PADDING, plan_chunk, structure_of, width
from tests.unit.engine.federated.cases import MODELS, PLAIN, Case, cohort


@given(st.integers(1, 5000))
def test_widths_are_few_and_close(active):
    assert active <= width(active) <= max(active * 1.25, 1)
    assert width(active) <= width(active + 1) and width(width(active)) == width(active)
    assert len({width(k) for k in range(1, active + 1)}) <= 8 + 4 * active.bit_length()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 20), st.booleans())
def test_plan_chunk_follows_each_clients_draws(sizes, batch, drop_last):
    case = Case(replace(PLAIN, batch_size=batch, drop_last=drop_last, phases=(Phase(2, "head"), Phase(1, "body"))))
    requests = sorted(cohort(MODELS["mlp"], case, sizes=sizes), key=lambda r: -len(r.rows))
    phases = plan_chunk(structure_of(requests[0]), requests, None)
    for k, request in enumerate(requests):
        epochs = list(local.epochs(request, "none"))
        drawn = {"head": epochs[:2], "body": epochs[2:]}
        for phase in phases:
            found = phase.rows[:, k]
            assert torch.equal(
                found[found != PADDING], torch.cat([request.rows[epoch.order] for epoch in drawn[phase.trains]])
            )
            assert int((found != PADDING).any(1).sum()) == sum(-(-len(e.order) // batch) for e in drawn[phase.trains])
    for phase in phases:
        alive = (phase.rows != PADDING).any(2)
        assert phase.active == [int(row.nonzero().max()) + 1 for row in alive]
