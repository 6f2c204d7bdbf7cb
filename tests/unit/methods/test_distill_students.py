"""Students by loss terms: against plain loops, killed and resumed, in phases, and how terms are weighed."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from knot_runner import TERMS, Term, compose
from knot_runner.config.settings.methods.terms import PktTermSettings
from knot_runner.config.settings.networks import ResnetSettings
from knot_runner.engine.seeds import generator, keyed
from knot_runner.methods.distill import learner, students
from knot_runner.methods.distill.distill import in_phase, phases_of
from knot_runner.methods.distill.students import PickStudent, Students
from knot_runner.methods.party import StageState
from knot_runner.models.network import Network, build_network
from knot_runner.models.taps import read_taps
from tests.changed_settings import stage
from tests.distill_runs import TWO_STAGE
from tests.golden.messages import refuses
from tests.runs import run
from tests.tiny import TINY_TAUGHT, replaced
from tests.unit.methods import distill_requests as small

CE, CNN, WIDE, KD = small.CE, small.CNN, small.WIDE, small.KD
NORMED = Network(ResnetSettings("resnet", "r", [1], 4, "cifar", "batch", 1), small.SHAPE, small.CLASSES)


@pytest.fixture
def place(tmp_path):
    return small.make_place(tmp_path)


def compare(place, request, loss, *models, **ends):
    """(What the request leaves, its facts), which is what a plain loop over ``models`` leaves."""
    actual, facts = small.trained(request, place, f"compared {request.stage}")
    small.plain(place, request, loss, models, **ends)
    for number, model in enumerate(models):
        small.assert_same(actual, model, f"{number}." if len(models) > 1 else "")
    return actual, facts


def test_offline_equals_a_plain_loop(place):
    teacher = small.put_teacher(place, WIDE, 1)
    request = small.students(place, {"ce": {"weight": 0.5}, "kd": KD}, [teacher], unlabeled=15)
    model = learner.frozen_network(*teacher, place)
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    loss = small.taught_by(model, labels=0.5)
    _, facts = compare(place, request, loss, small.started("student"))
    assert facts["best_epoch"] == 3 and [row["epoch"] for row in facts["epochs"]] == [1, 2, 3]


def test_mutual_learning_equals_two_plain_loops(place):
    request = small.students(place, {"ce": CE, "kd": KD}, schedule={"kind": "mutual", "students": 2})
    models = [small.started("student"), small.started("student 2")]
    compare(place, request, small.taught_by(*reversed(models)), *models)


def test_average_schedule_equals_a_plain_loop(place):
    schedule = {"kind": "average", "decay": 0.8, "ramp": 2}
    request, student = small.students(place, {"ce": CE, "kd": KD}, schedule=schedule), small.started("student")
    teacher = copy.deepcopy(student)

    @torch.no_grad()
    def average():
        for mean, own in zip(teacher.parameters(), student.parameters(), strict=True):
            mean.mul_(0.8).add_(own, alpha=0.2)

    compare(place, request, small.taught_by(teacher, share=lambda epoch: min(1.0, epoch / 2)), student, after=average)


def test_snapshot_schedule_equals_a_plain_loop(place):
    request = small.students(place, {"ce": CE, "kd": KD}, schedule={"kind": "snapshot"})
    student = small.started("student")
    teacher = copy.deepcopy(student)
    loss = small.taught_by(teacher, share=lambda epoch: float(epoch > 1))
    compare(place, request, loss, student, epoch_end=lambda: teacher.load_state_dict(student.state_dict()))


def test_sgd_with_milestones_equals_a_plain_loop(place):
    sgd = {"optimizer": "sgd", "momentum": 0.9, "milestones": [1, 2]}
    settings = stage(3, 16, 0.1, 0.01, select="last", **sgd)
    request = small.students(place, {"ce": CE}, training=settings)
    compare(place, request, lambda _, model, x, y, epoch: F.cross_entropy(model(x), y), small.started("student"))


def test_teacher_sees_same_crop_as_student(place, monkeypatch):
    seen = []

    def read_and_note(model, network, names):
        read = read_taps(model, network, names)

        def noted(x):
            seen.append((model, x.clone()))
            return read(x=x)

        return noted

    monkeypatch.setattr(students, "read_taps", read_and_note)
    one = dataclasses.replace(small.students(place, {"ce": CE}).training, epochs=1)
    teacher = small.put_teacher(place, WIDE, 1)
    request = small.students(place, {"ce": CE, "kd": KD}, [teacher], augment="crop_flip", training=one)
    small.trained(request, place, "a")
    steps = [pair for pair in zip(seen, seen[1:], strict=False) if len(pair[0][1]) in (16, 8)][-5::2]
    assert len(steps) == 3 and all(a is not b and torch.equal(x, y) for (a, x), (b, y) in steps)


@pytest.mark.parametrize(("stage", "schedule", "terms"), [
    ("phase1", {"kind": "offline"}, {"hint": CE}),
    ("distill", {"kind": "offline"}, {"ce": CE, "hint": CE, "crd": {"weight": 0.5, "dim": 4}}),
    ("distill", {"kind": "mutual"}, {"ce": CE, "kd": KD}), ("distill", {"kind": "snapshot"}, {"ce": CE, "kd": KD}),
    ("distill", {"kind": "average", "decay": 0.8, "ramp": 0}, {"ce": CE, "kd": KD}),
], ids=["phase", "offline", "mutual", "snapshot", "average"])  # fmt: skip
def test_student_resumes_bit_identically_after_kill(place, stage, schedule, terms):
    teachers = [small.put_teacher(place, WIDE, 1)] if schedule["kind"] == "offline" else []
    request = small.students(place, terms, teachers, CNN, schedule=schedule, stage=stage)
    undisturbed, facts = small.trained(request, place, "a")
    for epoch in (1, 3):
        resumed, again = small.killed_and_resumed(request, place, epoch)
        small.assert_same_bits(resumed, undisturbed)
        assert again["terms"] == facts["terms"]
        assert [row["loss"] for row in again["epochs"]] == [row["loss"] for row in facts["epochs"]]


def test_pick_student_returns_numbered_student(place):
    request = small.students(place, {"ce": CE, "kd": KD}, schedule={"kind": "mutual", "students": 3})
    tensors, facts = small.trained(request, place, "a")
    place.store.put("distill", "together", tensors, facts)
    for number in range(3):
        own, _ = PickStudent("picked", "x", ("distill", "together"), number).run(place, None, small.silent)
        assert set(own) == set(build_network(small.MLP).state_dict())
        assert all(torch.equal(tensor, tensors[f"{number}.{name}"]) for name, tensor in own.items())
    assert not torch.equal(tensors["0.head.weight"], tensors["1.head.weight"])


def test_phases_equal_plain_loops(place):
    """FitNets: the lower part and the regressor follow the hint, then the whole the labels and the teacher."""
    teacher = small.put_teacher(place, WIDE, 1)
    request = small.students(place, {"hint": {"weight": 0.5}}, [teacher], CNN, stage="phase1")
    model, student = small.frozen_model(place, teacher), small.started("student", CNN)
    untrained = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    torch.manual_seed(keyed(5, "adapters", "student"))
    regressor = torch.nn.Conv2d(4, 6, 1)
    student.add_module("regressor", regressor)  # trained with it

    def block1(model, x):
        return F.max_pool2d(F.relu(model.convs[0](x)), 2)

    def hint(_, student, x, y, epoch):
        return 0.5 * (regressor(block1(student, x)) - block1(model, x)).square().mean()

    guided, facts = small.trained(request, place, "a")
    small.plain(place, request, hint, [student])
    del student.regressor
    small.assert_same(guided, student)
    for name, tensor in guided.items():
        assert torch.equal(tensor, untrained[name]) != name.startswith("convs.0"), name
    assert set(facts["terms"]) == {"hint"} and facts["best_epoch"] == 3
    place.store.put("phase1", "guided", guided, facts)
    second = small.students(place, {"ce": CE, "kd": KD}, [teacher], CNN, start=("phase1", "guided"))
    student.load_state_dict(guided)
    compare(place, second, small.taught_by(model), student)


def test_run_records_and_shares_its_phase(tmp_path):
    result = run(tmp_path, *TWO_STAGE).result
    (phase,) = result["phases"]
    assert phase["epochs"] == 3 and set(phase["terms"]) == {"hint"} and set(result["terms"]) == {"ce", "kd"}
    assert set(result["baselines"]) == {"teacher"} and set(result["kept_epochs"]) == {
        "local teacher",
        "distill student",
    }
    run(tmp_path, *TWO_STAGE, "training.distill.lr=0.001")
    assert len(list(tmp_path.glob("artifacts/phase1/*"))) == 2  # the rate is the phase's too
    run(tmp_path, *TWO_STAGE, "method.terms.kd.temperature=2")
    assert len(list(tmp_path.glob("artifacts/phase1/*"))) == 2  # what comes after it is not


def method_of(*overrides):
    (job,) = compose([*replaced(TINY_TAUGHT, *overrides)])
    return job.method


def test_phase_begins_with_the_one_before(place):
    phases = "[{epochs: 3, terms: {hint: {weight: 1}}}, {epochs: 4, terms: {kd: {weight: 1}}}]"
    config = method_of("method=kd", f"+method.schedule.phases={phases}")
    last = small.students(place, {"ce": CE}, [small.put_teacher(place, WIDE, 1)], CNN)
    last = dataclasses.replace(last, training=dataclasses.replace(last.training, select="best", milestones=[1]))
    first = in_phase(config, StageState(), last)
    assert (first.stage, first.start, list(first.terms), first.training.epochs) == ("phase1", None, ["hint"], 3)
    assert first.training.select == "last" and first.training.milestones == []
    second = in_phase(config, StageState(phases=["phase1/a"]), last)
    assert (second.stage, second.start, list(second.terms)) == ("phase2", ("phase1", "a"), ["kd"])
    actual = in_phase(config, StageState(phases=["phase1/a", "phase2/b"]), last)
    assert actual == dataclasses.replace(last, start=("phase2", "b"))
    assert phases_of(method_of("method=dml")) == [] == phases_of(method_of("method=kd"))


@pytest.mark.parametrize("overrides", [
    ["method.schedule.phases.0.epochs=0"], ["method.schedule.phases=[{epochs: 1, terms: {}}]"],
    ["+method.schedule.phases.0.terms.hnit.weight=1"], ["method.schedule.phases.0.terms.hint.weight=-1"],
    ["method.schedule.phases=3"], ["method.schedule.kind=snapshot", "method.teachers=[]"],
    ["+method.schedule.phases.0.terms.hint.taps=[[block9,block1]]"],
    ["training.distill.batch_size=1", "method.schedule.phases=[{epochs: 1, terms: {rkd: {weight: 1}}}]"],
])  # fmt: skip
def test_phases_that_do_not_fit_are_refused(overrides, tmp_path):
    with refuses():
        run(tmp_path, *replaced(TWO_STAGE, *overrides))
    assert not list(tmp_path.glob("artifacts/local/*"))


def test_weights_and_first_ratios_by_hand(place):
    teacher = small.put_teacher(place, WIDE, 1)
    terms = {"ce": {"weight": 0.5}, "kd": {"weight": "auto", "temperature": 2.0}}
    request = small.students(place, terms, [teacher], auto_ratio=3.0)
    _, facts = small.trained(request, place, "a")
    x, y = small.pixels(place, "train")
    batches = torch.randperm(40, generator=generator(5, "first batches", "student")).split(16)
    student, model = small.started("student"), small.frozen_model(place, teacher)
    with torch.no_grad():
        ce = sum(float(F.cross_entropy(student(x[rows]), y[rows])) for rows in batches) / 3
        kd = sum(float(small.softened(student(x[rows]), model(x[rows]), 2.0)) for rows in batches) / 3
    assert facts["terms"]["ce"] == {"weight": 0.5, "ratio": pytest.approx(0.5, rel=1e-5)}
    assert facts["terms"]["kd"] == {"weight": pytest.approx(3 * ce / kd, rel=1e-4), "ratio": pytest.approx(3.0)}
    typed = small.students(
        place, {**terms, "kd": {"weight": facts["terms"]["kd"]["weight"], "temperature": 2.0}}, [teacher]
    )
    small.assert_same_bits(small.trained(typed, place, "b")[0], small.trained(request, place, "c")[0])


def test_weighing_leaves_memories_and_running_statistics_as_they_are(place):
    """A memory that moved before the first step would make a term depend on whether its ratio was measured."""
    teacher = small.put_teacher(place, WIDE, 1)
    request = small.students(place, {"ce": CE, "crd": {"weight": 1.0, "dim": 4}}, [teacher], NORMED)
    made = Students(request, place, small.silent)
    small.assert_same_bits(made.students[0].state_dict(), small.started("student", NORMED).state_dict())
    after = made.terms[0].state_dict()
    torch.manual_seed(keyed(5, "adapters", "student"))
    again = made._make_terms(made.request, made.terms[0].specs)
    assert after and all(torch.equal(after[name], tensor) for name, tensor in again[0].state_dict().items())


@pytest.mark.parametrize(("terms", "schedule"), [
    ({"kd": {"weight": "auto"}}, {"kind": "average"}), ({"kd": {"weight": 1.0}}, {"kind": "offline"}),
    ({"at": {"weight": 1.0}}, {"kind": "snapshot"}),
    ({"hint": {"weight": 1.0, "taps": [["layer9", "layer1"]]}}, {"kind": "snapshot"}),
    ({"hint": {"weight": 1.0, "taps": [["layer1", "nix"]]}}, {"kind": "snapshot"}),
])  # fmt: skip
def test_terms_that_do_not_fit_are_refused(place, terms, schedule):
    with refuses():
        small.trained(small.students(place, terms, schedule=schedule), place, "a")


def test_term_draws_depend_on_seed_and_epoch(place, monkeypatch):
    seen = []

    def make(options, inputs):
        def loss(student, teachers, batch):
            seen.append((batch.epoch, batch.draws.initial_seed(), tuple(batch.positions.tolist())))
            return student.logits.sum() * 0

        return loss

    monkeypatch.setitem(TERMS, "noted", Term(PktTermSettings, make, needs_teacher=False))
    small.trained(small.students(place, {"ce": CE, "noted": {"weight": 1.0}}, seed=6), place, "a")
    first, steps = seen[:3], seen[3:]  # three batches are weighed, and three are of each epoch
    assert {draws for _, draws, _ in first} == {keyed(6, "first batches", "student", "terms")}
    assert [(epoch, draws) for epoch, draws, _ in steps] == [
        (epoch, keyed(6, "terms", "distill", "student", epoch)) for epoch in (1, 2, 3) for _ in range(3)
    ]
    for epoch in range(3):
        rows = [position for _, _, own in steps[3 * epoch : 3 * epoch + 3] for position in own]
        assert sorted(rows) == list(range(40))  # places among all that it trains on
