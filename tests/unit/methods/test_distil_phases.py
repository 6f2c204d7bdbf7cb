"""Phases of a student: FitNets' two stages against loops typed here, kills within and between them, and what counts."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from knot_runner.composing.commands import compose_jobs
from knot_runner.engine.seeds import keyed
from knot_runner.methods.distil.distil import in_phase, phases_of
from knot_runner.models.network import build_network
from tests.golden.messages import refuses
from tests.oracles.methods.distil_loops import KD, assert_same, frozen_model, plain, softened, started, trained
from tests.runs import run
from tests.tiny import TINY_TAUGHT, replaced
from tests.unit.methods.distil_requests import (
    CE,
    CNN,
    WIDE,
    assert_same_bits,
    killed_and_resumed,
    make_place,
    put_teacher,
    students,
)

HINT = {"hint": {"weight": 0.5}}
TWO_STAGE = replaced(TINY_TAUGHT, "+method.schedule.phases=[{epochs: 3, terms: {hint: {weight: 1.0}}}]")


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path)


def a_phase(place, teacher, **changes):
    """FitNets' first stage, as it is asked for."""
    return students(place, HINT, [teacher], CNN, stage="phase1", **changes)


def block1(model, x):
    """The first map of a cnn."""
    return F.max_pool2d(F.relu(model.convs[0](x)), 2)


def test_phases_equal_plain_loops(place):
    teacher = put_teacher(place, WIDE, 1)
    request, model = a_phase(place, teacher), frozen_model(place, teacher)
    guided, facts = trained(request, place, "a")
    student = started("student", CNN)
    untrained = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    torch.manual_seed(keyed(5, "adapters", "student"))
    both = torch.nn.ModuleDict({"student": student, "regressor": torch.nn.Conv2d(4, 6, 1)})

    def hint(_, made, x, y, epoch):
        return 0.5 * (made["regressor"](block1(made["student"], x)) - block1(model, x)).square().mean()

    plain(place, request, hint, [both])
    assert_same(guided, student)
    for name, tensor in guided.items():
        assert torch.equal(tensor, untrained[name]) != name.startswith("convs.0"), name
    assert set(facts["terms"]) == {"hint"} and facts["best_epoch"] == 3

    place.store.put("phase1", "guided", guided, facts)
    second = students(place, {"ce": CE, "kd": KD}, [teacher], CNN, start=("phase1", "guided"))
    found, _ = trained(second, place, "b")
    student = build_network(CNN)
    student.load_state_dict(guided)

    def kd(_, made, x, y, epoch):
        return F.cross_entropy(made(x), y) + 0.7 * softened(made(x), model(x), 2.0)

    plain(place, second, kd, [student])
    assert_same(found, student)


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("phase", ["first", "last"])
def test_phase_killed_in_any_epoch_ends_as_if_left_alone(place, phase, epoch):
    teacher = put_teacher(place, WIDE, 1)
    request = a_phase(place, teacher)
    if phase == "last":
        place.store.put("phase1", "guided", *trained(request, place, "first"))
        request = students(place, {"ce": CE, **HINT}, [teacher], CNN, start=("phase1", "guided"))
    undisturbed, _ = trained(request, place, "a")
    resumed, _ = killed_and_resumed(request, place, epoch)
    assert_same_bits(resumed, undisturbed)


@pytest.mark.thorough
def test_run_with_a_phase_records_it_and_shares_it(tmp_path):
    result = run(tmp_path, *TWO_STAGE).result
    (phase,) = result["phases"]
    assert phase["epochs"] == 3 and set(phase["terms"]) == {"hint"} and set(result["terms"]) == {"ce", "kd"}
    assert set(result["baselines"]) == {"teacher"} and set(result["kept_epochs"]) == {"local teacher", "distil student"}
    run(tmp_path, *TWO_STAGE, "training.distil.lr=0.001")
    assert len(list(tmp_path.glob("artefacts/phase1/*"))) == 2  # the rate is the phase's too
    run(tmp_path, *TWO_STAGE, "method.terms.kd.tau=2")
    assert len(list(tmp_path.glob("artefacts/phase1/*"))) == 2  # what comes after it is not


def method_of(*overrides):
    (job,) = compose_jobs([*replaced(TINY_TAUGHT, *overrides)], None)
    return job.method


def test_phase_begins_with_the_one_before(place):
    hp = method_of(
        "method=kd",
        "+method.schedule.phases=[{epochs: 3, terms: {hint: {weight: 1}}}, {epochs: 4, terms: {kd: {weight: 1}}}]",
    )
    last = students(place, {"ce": CE}, [put_teacher(place, WIDE, 1)], CNN)
    last = dataclasses.replace(last, training=dataclasses.replace(last.training, select="best", milestones=[1]))
    first = in_phase(hp, {}, last)
    assert (first.stage, first.start, list(first.terms), first.training.epochs) == ("phase1", None, ["hint"], 3)
    assert first.training.select == "last" and first.training.milestones == []
    second = in_phase(hp, {"phases": [{}], "phase/1": "phase1/a"}, last)
    assert (second.stage, second.start, list(second.terms)) == ("phase2", ("phase1", "a"), ["kd"])
    found = in_phase(hp, {"phases": [{}, {}], "phase/1": "phase1/a", "phase/2": "phase2/b"}, last)
    assert found == dataclasses.replace(last, start=("phase2", "b"))
    assert phases_of(method_of("method=dml")) == [] == phases_of(method_of("method=kd"))


def test_phases_are_in_the_run_id():
    automatic = "+method.schedule.phases=[{epochs: 3, terms: {hint: {weight: auto}}}]"
    words = ([], [automatic.replace("auto", "1")], [automatic], [automatic, "method.auto_ratio=2"])
    found = {compose_jobs(replaced(TINY_TAUGHT, *one), None)[0].run_id for one in words}
    assert len(found) == 4


@pytest.mark.parametrize("overrides", [
    ["method.schedule.phases.0.epochs=0"], ["method.schedule.phases=[{epochs: 1, terms: {}}]"],
    ["+method.schedule.phases.0.terms.hnit.weight=1"], ["method.schedule.phases.0.terms.hint.weight=-1"],
    ["method.schedule.phases=3"], ["method.schedule.kind=snapshot", "method.teachers=[]"],
    ["+method.schedule.phases.0.terms.hint.taps=[[block9,block1]]"],
])  # fmt: skip
def test_phases_that_do_not_fit_are_refused(overrides, tmp_path):
    with refuses():
        run(tmp_path, *replaced(TWO_STAGE, *overrides))
    assert not list(tmp_path.glob("artefacts/local/*"))
