"""Running statistics: averaged, kept by each client, or frozen."""

import pytest
import torch

from tests.unit.methods.federated.worlds import method_of, normed_world, settings


@pytest.mark.parametrize("how", ["averaged", "local", "frozen"])
def test_batchnorm_setting_decides_where_statistics_are_kept(world, how):
    normed = normed_world(world)
    config, federation = settings(batchnorm=how), normed.federation
    method = method_of(config)
    start = state = method.init(config, federation)
    for round in range(2):
        requests = method.plan(config, state, federation, round)
        for request in requests:
            own = state.get(f"client/{request.client}/statistics")
            assert torch.equal(request.start.buffers, state["buffers"] if own is None else own)
        trained = normed.engine.train(requests)
        before, (state, _) = state, method.fold(config, state, federation, round, requests, trained)
    mean = sum(len(r.rows) * t.buffers for r, t in zip(requests, trained, strict=True))
    mean = mean / sum(len(r.rows) for r in requests)
    torch.testing.assert_close(state["buffers"], mean, rtol=1e-13, atol=1e-15)
    assert not torch.equal(state["weights"], start["weights"])
    if how == "frozen":
        assert torch.equal(state["buffers"], start["buffers"])
    else:
        assert not torch.equal(state["buffers"], start["buffers"])
    kept = [key for key in state if key.endswith("/statistics")]
    assert (len(kept) >= 3) == (how == "local")
    for result in trained:
        model = method.deployed(config, state, federation, result.client)
        assert torch.equal(model.buffers, result.buffers if how == "local" else state["buffers"])
    assert before is not state


@pytest.mark.parametrize("how", ["averaged", "local"])
def test_batchnorm_last_head_round_keeps_statistics_in_place(world, how):
    """The server's stay as they are; a client's own are those that its head was trained with."""
    normed = normed_world(world)
    config = settings("fedper", batchnorm=how, final_head_epochs=1)
    method = method_of(config)
    federation = normed.federation
    start = method.init(config, federation)
    requests = method.plan(config, start, federation, federation.training.rounds)
    trained = normed.engine.train(requests)
    state, _ = method.fold(config, start, federation, federation.training.rounds, requests, trained)
    assert torch.equal(state["buffers"], start["buffers"])
    for result in trained:
        assert not torch.equal(result.buffers, start["buffers"])
        wanted = result.buffers if how == "local" else start["buffers"]
        assert torch.equal(method.deployed(config, state, federation, result.client).buffers, wanted)
