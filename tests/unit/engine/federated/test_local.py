"""What all engines share of local training: draws by name, augmentation against a slow loop, temperatures."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from knot_runner.engine.examples import augmented_images, normalized
from knot_runner.engine.federated import flat, local
from knot_runner.engine.federated.cohort import ClientModel, Phase
from knot_runner.models.network import build_network
from tests.unit.engine.federated.cases import MODELS, PLAIN, Case, cohort, images


def request_with(size=20, **changes):
    return cohort(MODELS["mlp"], Case(replace(PLAIN, **changes)), sizes=(size,))[0]


def orders(request, augment="none"):
    return [epoch.order.tolist() for epoch in local.epochs(request, augment)]


@given(st.integers(0, 60), st.integers(1, 25), st.booleans(), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_epochs_permute_rows_and_steps_counts_batches(size, batch, drop_last, phases):
    names = ("head", "body", "all")
    request = request_with(
        size, batch_size=batch, drop_last=drop_last, phases=tuple(Phase(n, names[k]) for k, n in enumerate(phases))
    )
    actual = list(local.epochs(request, "none"))
    assert [epoch.trains for epoch in actual] == [names[k] for k, n in enumerate(phases) for _ in range(n)]
    kept = size - size % batch if drop_last else size
    for epoch in actual:
        assert len(epoch.order) == len(set(epoch.order.tolist())) == kept
        assert set(epoch.order.tolist()) <= set(range(size))
    assert local.steps(request.recipe, size) == sum(len(range(0, kept, batch)) for _ in actual)


def test_local_draws_depend_on_seed_round_client_alone():
    request = request_with()
    other = ClientModel(torch.ones(1), torch.ones(0))
    assert orders(request) == orders(replace(request, recipe=replace(request.recipe, lr=9.0), start=other))
    for change in ({"seed": 4}, {"round": 3}, {"client": 1}):
        assert orders(replace(request, **change)) != orders(request)
    assert orders(request)[0] != orders(request)[1]


def test_augmentation_draws_cover_their_range():
    epoch = next(local.epochs(request_with(60, batch_size=8, drop_last=True), "crop_flip"))
    assert epoch.crops.shape == (56, 3)
    assert set(epoch.crops[:, :2].flatten().tolist()) == set(range(9)) and set(epoch.crops[:, 2].tolist()) == {0, 1}


def reflected(at, size):
    """The pixel that a border without repeated edge shows at ``at``."""
    at = abs(at)
    return at if at < size else 2 * (size - 1) - at


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9)])
def test_augmentation_against_a_loop_over_pixels(shape):
    draws = torch.Generator().manual_seed(2)
    pictures = torch.rand(12, *shape, generator=draws)
    shifts, flips = torch.randint(0, 9, (12, 2), generator=draws), torch.arange(12) % 2 == 0
    actual = augmented_images(pictures, torch.cat([shifts, flips[:, None]], 1))
    channels, height, width = shape
    for n in range(12):
        for i in range(height):
            for j in range(width):
                column = width - 1 - j if flips[n] else j
                y = reflected(int(shifts[n, 0]) + i - 4, height)
                x = reflected(int(shifts[n, 1]) + column - 4, width)
                assert torch.equal(actual[n, :, i, j], pictures[n, :, y, x])
    assert augmented_images(pictures, None) is pictures


def test_bytes_and_fractions_are_normalized_alike():
    whole, parts = images((3, 8, 8)), images((3, 8, 8), kind=torch.float64)
    rows = torch.tensor([3, 0, 79, 3])
    actual = normalized(whole, rows, torch.float64)
    assert torch.allclose(actual, normalized(parts, rows, torch.float64), rtol=0, atol=1e-6)
    by_hand = (whole.pixels[0, 2, 4, 5].item() / 255 - whole.mean[2].item()) / whole.std[2].item()
    assert actual[1, 2, 4, 5].item() == pytest.approx(by_hand, abs=1e-6)


def built(network, seed=1):
    torch.manual_seed(seed)
    return build_network(network)


@pytest.mark.parametrize("model", MODELS)
def test_flat_vectors_restore_models_whose_last_layer_is_the_head(model):
    layout, source, target = flat.layout_of(MODELS[model]), built(MODELS[model], 1), built(MODELS[model], 2)
    for buffer in source.buffers():
        buffer.add_(torch.rand_like(buffer))
    weights, buffers = flat.flat_vectors(source)
    flat.load_flat(target, weights, buffers)
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value), name
    head, body = layout.mask("head"), layout.mask("body")
    assert layout.mask("all").all() and torch.equal(head, ~body)
    last = [module for module in source.modules() if isinstance(module, nn.Linear)][-1]
    count = last.weight.numel() + last.bias.numel()
    assert int(head.sum()) == count and head[-count:].all()


def test_views_keep_leading_dimensions_and_share_memory():
    layout = flat.layout_of(MODELS["mlp"])  # 64-16-12-5
    values = torch.arange(3 * layout.size, dtype=torch.float64).view(3, -1)
    named = flat.views(values, layout.parameters)
    for field in layout.parameters:
        assert named[field.name].shape == (3, *field.shape)
        assert torch.equal(named[field.name].flatten(1), values[:, field.start : field.stop])
    named["head.bias"].fill_(-1)
    assert int((values == -1).sum()) == 3 * 5
    biases = layout.biases().nonzero()[:, 0].tolist()
    starts = [(64 * 16, 16), (65 * 16 + 16 * 12, 12), (65 * 16 + 17 * 12 + 12 * 5, 5)]
    assert biases == [start + k for start, size in starts for k in range(size)]
