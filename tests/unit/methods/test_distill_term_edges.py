"""Distillation's loss terms at their edges: too few examples, adapters, memories, draws, and what is refused."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.config.settings.methods.terms import check_batch
from knot_runner.methods.distill import relation
from knot_runner.methods.distill.attention import pooled_to
from knot_runner.methods.distill.contrastive import draw_negatives
from knot_runner.methods.distill.hints import make_adapter
from knot_runner.methods.distill.relation import draw_triples
from knot_runner.models.taps import NetworkOutputs
from tests.changed_settings import terms_of
from tests.golden.messages import refuses
from tests.unit.methods.distill_made import a_batch, assert_same, gradients, made, random_outputs

SIDES = st.integers(1, 9)


@pytest.mark.parametrize(("name", "examples"), [("sp", 1), ("rkd", 1), ("pkt", 1), ("triplet", 1), ("triplet", 2)])
def test_relation_terms_return_zero_for_too_few_examples(name, examples):
    for seed in range(10):  # rounding would leave it to chance
        student = random_outputs(seed, trained=True, batch_size=examples, a=(3, 2, 2), b=(2, 4, 4))
        teacher = random_outputs(99, batch_size=examples, a=(3, 2, 2), b=(2, 4, 4))
        loss = made(name, student, [teacher])(student, [teacher], a_batch(torch.zeros(examples, dtype=torch.int64)))
        assert loss.shape == () and loss.item() == 0
        assert not any(gradient.any() for gradient in gradients(loss, student))


def test_angles_in_parts_are_the_same(monkeypatch):
    student, teacher = random_outputs(1, trained=True, a=(3,)), random_outputs(2, a=(4,))
    term, taken = made("rkd", student, [teacher]), []
    whole = term(student, [teacher], a_batch())
    cosines = relation._cosines
    monkeypatch.setattr(relation, "ANGLES_AT_ONCE", 4)  # 64 // 25: two corners at a time
    monkeypatch.setattr(relation, "_cosines", lambda x, part: taken.append(len(x[part])) or cosines(x, part))
    parts = term(student, [teacher], a_batch())
    assert taken == [2, 2, 2, 2, 1, 1]
    assert_same(parts, whole, student)


def test_relation_terms_are_zero_for_equal_examples(n=40):
    """Each of 20 points twice, in an order of its own; a product of matrices need not give equal rows equal sums."""
    draws = torch.Generator().manual_seed(0)
    places = torch.cat([torch.arange(n // 2), torch.randperm(n // 2, generator=draws)])
    f = torch.randn(n // 2, 301, generator=draws)[places].requires_grad_()
    equal = places[:, None] == places
    assert torch.equal(relation._relative_distances(f) == 0, equal)
    cosines = relation._cosines(f, slice(0, n))
    assert (cosines[equal] == 0).all() and (cosines.transpose(1, 2)[equal] == 0).all()
    (slope,) = torch.autograd.grad(cosines.square().sum() + relation._relative_distances(f).square().sum(), f)
    assert slope.isfinite().all()


@given(channels=st.integers(1, 3), other=st.integers(1, 3), sides=st.tuples(SIDES, SIDES), more=st.tuples(SIDES, SIDES))
def test_adapters_make_the_teachers_shape(channels, other, sides, more):
    small = torch.zeros(2, channels, *sides)
    large = torch.zeros(2, other, sides[0] + more[0], sides[1] + more[1])
    for own, wanted in ((small, large), (large, small), (small, small)):
        for always in (False, True):
            assert make_adapter(own.shape, wanted.shape, always)(own).shape == wanted.shape


@pytest.mark.parametrize(("own", "other", "always", "kind"), [
    ((2, 4, 4), (2, 4, 4), False, "Identity()"),
    ((2, 4, 4), (2, 4, 4), True, "Conv2d(2, 2, kernel_size=(1, 1), stride=(1, 1))"),
    ((2, 8, 4), (5, 4, 4), False, "Conv2d(2, 5, kernel_size=(3, 1), stride=(2, 1), padding=(1, 0))"),
    ((2, 5, 5), (5, 3, 3), False, "Conv2d(2, 5, kernel_size=(3, 3), stride=(1, 1))"),
    ((2, 4, 4), (5, 8, 8), False, "ConvTranspose2d(2, 5, kernel_size=(4, 4), stride=(2, 2), padding=(1, 1))"),
    ((2, 3, 3), (5, 5, 5), False, "ConvTranspose2d(2, 5, kernel_size=(3, 3), stride=(1, 1))"),
    ((6,), (6,), True, "Linear(in_features=6, out_features=6, bias=True)"),
])  # fmt: skip
def test_adapter_of_two_shapes(own, other, always, kind):
    student, teacher = random_outputs(1, a=own), random_outputs(2, a=other)
    assert repr(made("hint", student, [teacher], adapter="always" if always else "auto").each[0].adapter) == kind


@given(height=SIDES, width=SIDES, less=st.integers(0, 4))
def test_pooling_is_torchs_adaptive_pooling(height, width, less):
    maps = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    smaller = max(1, height - less), max(1, width - less)
    torch.testing.assert_close(pooled_to(maps, *smaller), F.adaptive_avg_pool2d(maps, smaller), rtol=0, atol=1e-12)


def test_crd_updates_and_stores_memories_in_training():
    student, teacher = random_outputs(1, a=(3,)), random_outputs(2, a=(4,))
    term, loaded = made("crd", student, [teacher]), made("crd", student, [teacher])
    before = {name: value.clone() for name, value in term.state_dict().items()}
    term.eval()(student, [teacher], a_batch())
    assert all(torch.equal(term.state_dict()[name], value) for name, value in before.items() if "memory" in name)
    term.train()(student, [teacher], a_batch())
    for name in ("student", "teacher"):
        memory = term.state_dict()[f"each.0.{name}_memory"]
        moved = (memory != before[f"each.0.{name}_memory"]).any(1)
        assert moved.nonzero()[:, 0].tolist() == [3, 4, 5, 6, 7]
        torch.testing.assert_close(memory.norm(dim=1), torch.ones_like(memory[:, 0]))
        assert before[f"each.0.{name}_constant"] == 0 < term.state_dict()[f"each.0.{name}_constant"]
    loaded.load_state_dict(term.state_dict())
    assert torch.equal(*(one(student, [teacher], a_batch(seed=1)) for one in (term, loaded)))


def test_crd_reads_no_value_that_a_gpu_computes():
    logits, tap, positions = (torch.ones(5, *shape, device="meta") for shape in ((4,), (3,), ()))
    outputs, batch = NetworkOutputs(logits, {"a": tap}), dataclasses.replace(a_batch(), positions=positions.long())
    assert made("crd", outputs, [outputs])(outputs, [outputs], batch).shape == (5,)


@given(examples=st.integers(3, 30), seed=st.integers(0, 100))
def test_negatives_are_any_others_and_triples_of_three_examples(examples, seed):
    positions = torch.arange(examples)
    drawn = draw_negatives(positions, 200, examples, torch.Generator().manual_seed(seed))
    assert not (drawn == positions[:, None]).any()
    assert set(drawn.flatten().tolist()) == set(range(examples))
    triples = draw_triples(300, examples, torch.Generator().manual_seed(seed))
    assert triples.shape == (300, 3) and all(len(set(triple)) == 3 for triple in triples.tolist())
    assert set(triples.flatten().tolist()) == set(range(examples))


@pytest.mark.parametrize(("name", "values"), [
    ("kd", {"weight": None}), ("kd", {"weight": -1}), ("kd", {"weight": "much"}),
    ("kd", {"weight": 1, "mean": "median"}), ("ce", {"weight": 1, "label_smoothing": 1}),
    ("at", {"weight": 1, "p": 0.5}), ("crd", {"weight": 1, "dim": 0}), ("sinkhorn", {"weight": 1, "epsilon": 1e-5}),
    ("sinkhorn", {"weight": 1, "tolerance": 0.1}), ("sp", {"weight": 1, "taps": [["a"]]}),
    ("triplet", {"weight": 1, "marjin": 1}),
    *((name, {"weight": 1, "taps": []}) for name in ("hint", "at", "sp", "rkd", "pkt", "crd", "triplet")),
], ids=str)  # fmt: skip
def test_term_settings_out_of_range_are_refused(name, values):
    with refuses():
        terms_of({name: values})


@pytest.mark.parametrize(("name", "least"), [("sp", 2), ("rkd", 2), ("pkt", 2), ("triplet", 3)])
def test_relations_refuse_smaller_batches(name, least):
    check_batch([name, "kd"], "method.terms", least)
    with refuses():
        check_batch([name], "method.terms", least - 1)


@pytest.mark.parametrize(("name", "change"), [
    ("at", {"pairs": [[("v", "a")]]}), ("at", {"pairs": [[("a", "v")]]}), ("hint", {"pairs": [[("v", "a")]]}),
    ("hint", {"pairs": [[("flat", "a")]]}), ("triplet", {"pairs": [[("a", "a")], [("v", "a")]]}),
    ("crd", {"pairs": [[("a", "a")]], "examples": 1}),
], ids=str)  # fmt: skip
def test_terms_reject_incomparable_taps(name, change):
    student, teacher = (random_outputs(seed, a=(3, 2, 2), v=(3,), flat=(1, 1, 9)) for seed in (1, 2))
    made(name, student, [teacher], [[("a", "a")]], examples=2)
    with refuses():
        made(name, student, [teacher] * len(change["pairs"]), **change)
