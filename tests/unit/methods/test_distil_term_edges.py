"""Distillation's loss terms at their edges: lone examples, dead features, equal teachers, adapters, memories, typos."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.config.strict import build
from knot_runner.methods.distil.attention import pooled_to
from knot_runner.methods.distil.contrastive import draw_negatives
from knot_runner.methods.distil.hints import make_adapter
from knot_runner.methods.distil.relation import draw_triples
from knot_runner.methods.distil.term import TERMS, NetworkOutputs
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.methods.distil_made import a_batch, gradients, made, random_outputs

POINTS = torch.tensor([[0.0], [1.0], [1.5], [3.0]], dtype=torch.float64)
TAPS = {"a": (3, 2, 2), "b": (2, 4, 4)}
#: all that read a teacher, less the two whose every pair has random weights of its own
ALIKE = ["kd", "dkd", "sinkhorn", "at", "sp", "rkd", "pkt", "triplet"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ALIKE)
def test_two_equal_teachers_are_one_bit_for_bit(name, dtype):
    student, teacher = (random_outputs(seed, **TAPS) for seed in (1, 2))
    student, teacher = (
        NetworkOutputs(net.logits.to(dtype), {tap: values.to(dtype) for tap, values in net.taps.items()})
        for net in (student, teacher)
    )
    for leaf in (student.logits, *student.taps.values()):
        leaf.requires_grad_()
    said = []
    for teachers in ([teacher], [teacher, teacher]):
        loss = made(name, student, teachers, points=POINTS)(student, teachers, a_batch())
        said.append([loss, *gradients(loss, student)])
    assert said[0][0].dtype == dtype
    assert all(torch.equal(one, two) for one, two in zip(*said, strict=True))


@pytest.mark.parametrize(("name", "examples"), [("sp", 1), ("rkd", 1), ("pkt", 1), ("triplet", 1), ("triplet", 2)])
def test_the_last_batch_may_be_too_small_for_relations(name, examples):
    for seed in range(10):  # exactly 0, which rounding would leave to chance
        student = random_outputs(seed, trained=True, batch=examples, **TAPS)
        teacher = random_outputs(99, batch=examples, **TAPS)
        loss = made(name, student, [teacher])(student, [teacher], a_batch(torch.zeros(examples, dtype=torch.int64)))
        assert loss.shape == () and loss.item() == 0
        assert not any(gradient.any() for gradient in gradients(loss, student))


@pytest.mark.parametrize("name", ["ce", "kd", "dkd", "sinkhorn", "hint", "at", "crd"])
def test_the_other_terms_take_a_lone_example(name):
    student, teacher = (random_outputs(seed, seed == 1, batch=1, **TAPS) for seed in (1, 2))
    loss = made(name, student, [teacher], points=POINTS)(student, [teacher], a_batch(torch.tensor([1])))
    assert loss.shape == (() if name == "ce" else (1,)) and loss.item() > 0


@pytest.mark.parametrize("name", ["at", "sp", "rkd", "pkt", "triplet", "crd"])
def test_dead_features_have_ordinary_gradients(name):
    """One example's features all 0, two examples alike, a whole map 0, as ReLUs make them."""
    student, teacher = (random_outputs(seed, a=(3, 2, 2)) for seed in (1, 2))
    maps = student.taps["a"]
    maps[0], maps[1], maps[2] = 0, maps[3], 0
    maps.requires_grad_()
    student.logits.requires_grad_()
    loss = made(name, student, [teacher])(student, [teacher], a_batch())
    gradient = gradients(loss, student)[1]
    assert bool(loss.isfinite().all()) and gradient.abs().max().item() < 1e3
    still = torch.zeros_like(maps).requires_grad_()
    loss = made(name, student, [teacher])(NetworkOutputs(student.logits, {"a": still}), [teacher], a_batch())
    assert bool(torch.autograd.grad(loss.sum(), still)[0].isfinite().all())


def test_unlabelled_rows_do_not_touch_the_labelled_ones():
    student, teacher = (random_outputs(seed, seed == 1) for seed in (1, 2))
    batch = a_batch(torch.tensor([2, -1, 3, -1, -1]))
    loss = made("dkd", student, [teacher])(student, [teacher], batch)
    assert ((loss != 0) == (batch.labels >= 0)).all()
    assert (gradients(loss, student)[0].any(1) == (batch.labels >= 0)).all()


# ------------------------------------------------------------------------------------------------------------ adapters

SIDES = st.integers(1, 9)


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
    ((2, 4, 4), (5, 4, 4), False, "Conv2d(2, 5, kernel_size=(1, 1), stride=(1, 1))"),
    ((2, 8, 4), (5, 4, 4), False, "Conv2d(2, 5, kernel_size=(3, 1), stride=(2, 1), padding=(1, 0))"),
    ((2, 5, 5), (5, 3, 3), False, "Conv2d(2, 5, kernel_size=(3, 3), stride=(1, 1))"),
    ((2, 4, 4), (5, 8, 8), False, "ConvTranspose2d(2, 5, kernel_size=(4, 4), stride=(2, 2), padding=(1, 1))"),
    ((2, 3, 3), (5, 5, 5), False, "ConvTranspose2d(2, 5, kernel_size=(3, 3), stride=(1, 1))"),
    ((6,), (4,), False, "Linear(in_features=6, out_features=4, bias=True)"),
    ((6,), (6,), False, "Identity()"),
    ((6,), (6,), True, "Linear(in_features=6, out_features=6, bias=True)"),
])  # fmt: skip
def test_which_adapter_joins_two_shapes(own, other, always, kind):
    student, teacher = random_outputs(1, a=own), random_outputs(2, a=other)
    term = made("hint", student, [teacher], adapter="always" if always else "auto")
    assert repr(term.adapters[0]) == kind
    if "Identity" in kind:
        return
    optimiser = torch.optim.SGD(term.parameters(), lr=0.01)
    before = term(student, [teacher], a_batch()).mean()
    before.backward()
    optimiser.step()
    assert term(student, [teacher], a_batch()).mean().item() < before.item()


def test_adapters_begin_at_the_seed():
    student, teacher = random_outputs(1, a=(3,)), random_outputs(2, a=(4,))
    weights = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        weights.append(made("hint", student, [teacher]).adapters[0].weight)
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@given(height=SIDES, width=SIDES, less=st.integers(0, 4))
def test_pooling_is_torchs_adaptive_pooling(height, width, less):
    maps = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    smaller = max(1, height - less), max(1, width - less)
    torch.testing.assert_close(pooled_to(maps, *smaller), F.adaptive_avg_pool2d(maps, smaller), rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------------------- memories and draws


def test_memories_move_at_the_batchs_positions_and_are_kept():
    student, teacher = random_outputs(1, a=(3,)), random_outputs(2, a=(4,))
    term, loaded = made("crd", student, [teacher]), made("crd", student, [teacher])
    before = {name: value.clone() for name, value in term.state_dict().items()}
    term(student, [teacher], a_batch())
    for name in ("student", "teacher"):
        moved = (term.state_dict()[f"contrasts.0.{name}_memory"] != before[f"contrasts.0.{name}_memory"]).any(1)
        assert moved.nonzero()[:, 0].tolist() == [3, 4, 5, 6, 7]
        assert before[f"contrasts.0.{name}_constant"] == 0 < term.state_dict()[f"contrasts.0.{name}_constant"]
        lengths = term.state_dict()[f"contrasts.0.{name}_memory"].norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))
    loaded.load_state_dict(term.state_dict())
    one, two = (each(student, [teacher], a_batch(seed=1)) for each in (term, loaded))
    assert torch.equal(one, two)


def test_memories_rest_outside_training():
    student, teacher = random_outputs(1, a=(3,)), random_outputs(2, a=(4,))
    term = made("crd", student, [teacher]).eval()
    memory = term.contrasts[0].student_memory.clone()
    term(student, [teacher], a_batch())
    assert torch.equal(term.contrasts[0].student_memory, memory)


def test_training_lowers_the_contrast():
    student, teacher = random_outputs(1, a=(6,)), random_outputs(2, a=(4,))
    torch.manual_seed(0)
    term = made("crd", student, [teacher])
    optimiser = torch.optim.Adam(term.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = term(student, [teacher], a_batch()).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@given(examples=st.integers(2, 30), seed=st.integers(0, 100))
def test_negatives_are_any_others(examples, seed):
    positions = torch.arange(examples)
    drawn = draw_negatives(positions, 200, examples, torch.Generator().manual_seed(seed))
    assert not (drawn == positions[:, None]).any()
    assert set(drawn.flatten().tolist()) == set(range(examples))


@given(examples=st.integers(3, 30), seed=st.integers(0, 100))
def test_triples_are_of_three_examples(examples, seed):
    triples = draw_triples(300, examples, torch.Generator().manual_seed(seed))
    assert triples.shape == (300, 3) and all(len(set(triple)) == 3 for triple in triples.tolist())
    assert set(triples.flatten().tolist()) == set(range(examples))


# -------------------------------------------------------------------------------------------------------------- typos


@pytest.mark.parametrize(("name", "values", "message"), [
    ("kd", {}, "method.terms.kd.weight: is not set"),
    ("kd", {"weight": -1}, "method.terms.kd.weight: -1.0 is negative"),
    ("kd", {"weight": "much"}, "method.terms.kd.weight: expected a number, got 'much'; or auto"),
    ("kd", {"weight": 1, "tau": 0}, "method.terms.kd.tau: 0.0 is not above 0; 1 is ordinary training"),
    ("kd", {"weight": 1, "mean": "median"}, "method.terms.kd.mean: 'median' is not one of probabilities, logits"),
    ("ce", {"weight": 1, "label_smoothing": 1}, "method.terms.ce.label_smoothing: 1.0 is not in [0, 1)"),
    ("at", {"weight": 1, "p": 0.5}, "method.terms.at.p: 0.5 is not at least 1"),
    ("crd", {"weight": 1, "dim": 0}, "method.terms.crd.dim: 0 is not at least 1"),
    ("sinkhorn", {"weight": 1, "epsilon": 1e-5},
     "method.terms.sinkhorn.epsilon: 1e-05 is below 1e-4; solver=exact has no regularisation"),
    ("sinkhorn", {"weight": 1, "tolerance": 0.1}, "method.terms.sinkhorn.tolerance: 0.1 is outside 1e-12..1e-3"),
    ("sp", {"weight": 1, "taps": [["a"]]},
     "method.terms.sp.taps: ['a'] is not a pair [student's tap, teacher's tap]"),
    ("triplet", {"weight": 1, "marjin": 1},
     "method.terms.triplet.marjin: there is no such setting (did you mean 'margin'?)"),
    *((name, {"weight": 1, "taps": []}, f"method.terms.{name}.taps: names no pair; null = the term's default")
      for name in ("hint", "at", "sp", "rkd", "pkt", "crd", "triplet")),
])  # fmt: skip
def test_settings_that_cannot_be_meant(name, values, message):
    with pytest.raises(UserError) as problem:
        build(TERMS[name].options, values, f"method.terms.{name}")
    assert str(problem.value) == message


def test_a_weight_may_be_left_to_the_run():
    for name, term in TERMS.items():
        assert build(term.options, {"weight": "auto"}, f"method.terms.{name}").weight == "auto"


@pytest.mark.parametrize(("name", "change", "message"), [
    ("at", {"pairs": [[("v", "a")]]}, "method.terms.at.taps: the student's 'v' is a vector and has no map"),
    ("at", {"pairs": [[("a", "v")]]}, "method.terms.at.taps: the teacher's 'v' is a vector and has no map"),
    ("crd", {"examples": 1},
     "method.terms.crd.negatives: the student trains on one example, there is none to tell it from"),
])  # fmt: skip
def test_networks_that_a_term_cannot_compare(name, change, message):
    student, teacher = (random_outputs(seed, a=(3, 2, 2), v=(3,), flat=(1, 1, 9)) for seed in (1, 2))
    with pytest.raises(UserError) as problem:
        made(name, student, [teacher], **change)
    assert str(problem.value) == message
    made(name, student, [teacher], [[("a", "a")]], examples=2)


@pytest.mark.parametrize("tap", ["v", "flat"])
def test_features_that_no_adapter_joins_are_refused(tap):
    student, teacher = (random_outputs(seed, a=(3, 2, 2), v=(3,), flat=(1, 1, 9)) for seed in (1, 2))
    with refuses():
        made("hint", student, [teacher], [[(tap, "a")]])


def test_voters_compare_the_same_taps_of_the_student():
    student = random_outputs(1, a=(3,), v=(3,))
    with refuses():
        made("triplet", student, [student, student], [[("a", "a")], [("v", "a")]])
