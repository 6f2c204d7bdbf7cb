"""Phases of a student: FitNets' two stages against loops typed here, kills within and between them, and what counts."""

import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from knot_runner.engine.seeds import keyed
from knot_runner.methods.distil.distil import in_phase, phases_of
from knot_runner.models.network import build_network
from tests.golden.messages import refuses
from tests.oracles.methods.distil_loops import KD, assert_same, frozen_model, plain, softened, started, trained
from tests.run_folders import run
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


def with_regressor(model, regressor):
    """One module of both, as the optimiser of a first stage has them."""
    return torch.nn.ModuleDict({"student": model, "regressor": regressor})


def test_the_hint_trains_the_lower_part_and_the_regressor_and_then_kd_the_whole(place):
    teacher = put_teacher(place, WIDE, 1)
    request, model = a_phase(place, teacher), frozen_model(place, teacher)
    guided, facts = trained(request, place, "a")
    student = started("student", CNN)
    untrained = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    torch.manual_seed(keyed(5, "adapters", "student"))
    both = with_regressor(student, torch.nn.Conv2d(4, 6, 1))

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
def test_killed_within_a_phase_it_ends_as_if_left_alone(place, phase, epoch):
    teacher = put_teacher(place, WIDE, 1)
    request = a_phase(place, teacher)
    if phase == "last":
        place.store.put("phase1", "guided", *trained(request, place, "first"))
        request = students(place, {"ce": CE, **HINT}, [teacher], CNN, start=("phase1", "guided"))
    undisturbed, _ = trained(request, place, "a")
    resumed, _ = killed_and_resumed(request, place, epoch)
    assert_same_bits(resumed, undisturbed)


def left(out):
    """Model and record of the one run, less its times."""
    (folder,) = (path.parent for path in out.glob("*/*/*/result.json"))
    result = json.loads((folder / "result.json").read_text())
    for key in ("seconds", "digest"):
        del result[key]
    return result, (folder / "model.safetensors").read_bytes(), (folder / "rounds.jsonl").read_bytes()


@pytest.mark.thorough
def test_a_run_and_its_record(tmp_path, capsys):
    folder = run(tmp_path, *TWO_STAGE)
    result = json.loads((folder / "result.json").read_text())
    (phase,) = result["phases"]
    assert phase["epochs"] == 3 and set(phase["terms"]) == {"hint"} and set(result["terms"]) == {"ce", "kd"}
    assert set(result["baselines"]) == {"teacher"} and set(result["kept_epochs"]) == {"local teacher", "distil student"}
    assert result["seconds"]["stages"]["phase1 student"] > 0
    assert "phase 1, 3 epochs: hint: weight 1, at first" in capsys.readouterr().out
    run(tmp_path, *TWO_STAGE, "training.distil.lr=0.001")
    assert len(list(tmp_path.glob("artefacts/phase1/*"))) == 2  # the rate is the phase's too
    run(tmp_path, *TWO_STAGE, "method.terms.kd.tau=2")
    assert len(list(tmp_path.glob("artefacts/phase1/*"))) == 2  # what comes after it is not


def method_of(*overrides):
    (job,) = compose_jobs([*replaced(TINY_TAUGHT, *overrides)], None)
    return job.method


def test_each_phase_begins_with_the_one_before(place):
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


def run_ids(*overrides):
    return [job.run_id for job in compose_jobs(replaced(TINY_TAUGHT, *overrides), None)]


def test_phases_are_in_the_run_id():
    phase = "+method.schedule.phases=[{epochs: 3, terms: {hint: {weight: %s}}}]"
    typed, automatic = phase % 1, phase % "auto"
    assert run_ids("method=kd", typed) != run_ids("method=kd")
    assert run_ids("method=kd", automatic, "method.auto_ratio=2") != run_ids("method=kd", automatic)


@pytest.mark.parametrize("overrides", [
    ["method.schedule.phases.0.epochs=0"], ["method.schedule.phases=[{epochs: 1, terms: {}}]"],
    ["+method.schedule.phases.0.terms.hnit.weight=1"], ["method.schedule.phases.0.terms.hint.weight=-1"],
    ["method.schedule.phases=3"], ["method.schedule.kind=snapshot", "method.teachers=[]"],
])  # fmt: skip
def test_what_does_not_fit_is_refused_when_composing(overrides):
    with refuses():
        compose_jobs(replaced(TWO_STAGE, *overrides), None)


def test_what_fits_no_network_is_refused_before_training(tmp_path, capsys):
    taps = "+method.schedule.phases.0.terms.hint.taps=[[block9,block1]]"
    assert main([*TWO_STAGE, taps, f"paths.out={tmp_path}"]) == 2
    assert "method.schedule.phases[0].terms.hint.taps: cnn_4 has no tap 'block9'" in capsys.readouterr().err
