"""The arithmetic of pieces of work: what is shared is counted once, and bounds hold whatever the jobs are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.composing.commands import compose_all
from knot_runner.estimate.lines import at_once, disk_space, in_turn, peak_memory, shared_lines, size, to_do
from knot_runner.estimate.pieces import PERSONAL_MODELS, SHARED_ROUNDS, Cost, Load, Piece
from knot_runner.estimate.whole import plain_loads, with_what_is_there
from knot_runner.report.render.text import duration
from tests.tiny import TINY_IMAGES

COSTS = {
    "teacher": Cost(0.0, 10.0, memory=300, disk=7),
    "student": Cost(0.0, 2.0, memory=200, disk=5),
    "rounds": Cost(4.0, 0.5, busy=(1.5, 1.5), memory=900, disk=20),
}


def teacher(key, there=False):
    return Piece("local models", f"teacher {key}", key, "teacher", 3, 1, there)


def job(name, *teachers, workers=2):
    return Load((*teachers, Piece("students", "student", name, "student", 5, 2)), workers)


def test_a_job_by_hand():
    """Three teachers of 30 s on two workers take 45 s; the student 10 s more."""
    load = job("a", teacher("x"), teacher("y"), teacher("z"))
    assert load.seconds(COSTS) == pytest.approx(55.0)
    assert job("a", teacher("x"), workers=8).seconds(COSTS) == pytest.approx(40.0)  # one is not split
    rounds = Load((Piece("runs", "fedavg", "r", "rounds", 300),))
    assert rounds.seconds(COSTS) == pytest.approx(154.0)
    assert at_once([rounds, Load((Piece("runs", "fedavg", "s", "rounds", 300),))], COSTS, 2) == pytest.approx(
        (231.0,) * 2
    )


def test_what_is_shared_or_there_is_done_once():
    loads = [job("a", teacher("x"), teacher("y", there=True)), job("b", teacher("x"), teacher("y", there=True))]
    assert [[piece.key for piece in load.pieces] for load in to_do(loads)] == [["x", "a"], ["b"]]
    assert in_turn(loads, COSTS) == pytest.approx(30 + 10 + 10)
    assert at_once(loads, COSTS, 2) == pytest.approx((40.0, 40.0))  # the first job's chain, not 50 / 2
    assert disk_space(loads, COSTS) == 7 + 5 + 5
    assert peak_memory(loads[0], COSTS) == 300
    assert shared_lines(loads) == ["2 local models in all, 4 if no job shared; 1 there already, 1 to do"]


def test_pieces_without_a_cost_are_known_to_be_missing():
    assert not Load((Piece("runs", "new", "n", "unheard of"),)).known(COSTS)
    assert Load((Piece("runs", "new", "n", "unheard of", there=True), Piece("data sets", "d", "d", None))).known(COSTS)


def test_variants_of_personalisation_share_their_rounds():
    """Two rates x three methods: two trainings of all clients for the four that go on, and one each for FedAvg."""
    jobs, _ = compose_all([*TINY_IMAGES, "method=finetune,soup,fedavg", "partition.valid=0.2", "training.lr=0.1,0.2"])
    loads = plain_loads(jobs)
    left = [[piece.stage for piece in load.pieces] for load in to_do(loads)]
    assert [load.pieces[-1].stage for load in loads].count(PERSONAL_MODELS) == 4
    assert sum(SHARED_ROUNDS in stages for stages in left) == 2 and sum("runs" in stages for stages in left) == 2
    assert "2 trainings of all clients in all, 4 if no job shared" in shared_lines(loads)
    costs = {piece.kind: Cost(0.0, 3.0) for load in loads for piece in load.pieces if piece.kind}
    rounds = jobs[0].settings.training.rounds
    assert in_turn(loads, costs) == pytest.approx(4 * 3.0 * rounds + 4 * 3.0)
    there = with_what_is_there(loads[1:], loads[:1])  # the other variant of a finished one's rate has its rounds
    assert sum(piece.there for load in there for piece in load.pieces) == 1


PIECES = st.builds(
    Piece, st.just("s"), st.just("n"), st.sampled_from("abcdefgh"), st.sampled_from([*COSTS, None]),
    st.floats(0, 50), st.integers(0, 3), st.booleans(),
)  # fmt: skip
LOADS = st.lists(
    st.builds(
        lambda pieces, workers: Load(tuple(sorted(pieces, key=lambda piece: piece.step)), workers),
        st.lists(PIECES, max_size=5, unique_by=lambda piece: piece.key),
        st.integers(1, 4),
    ),
    max_size=5,
)


@given(LOADS, st.integers(1, 8))
def test_bounds_that_always_hold(loads, cores):
    """Sharing never costs; workers help at most as often as there are; idle cores never help."""
    shared, apart = in_turn(loads, COSTS), sum(load.less(set()).seconds(COSTS) for load in loads)
    assert shared <= apart + 1e-9
    left = to_do(loads)
    keys = [piece.key for load in left for piece in load.pieces]
    assert len(keys) == len(set(keys)) and not any(piece.there for load in left for piece in load.pieces)
    low, high = at_once(loads, COSTS, cores)
    assert low == pytest.approx(high) and high >= max((load.seconds(COSTS) for load in left), default=0) - 1e-9
    assert at_once(loads, COSTS, cores + 1)[0] <= low + 1e-9


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (9.97, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (200, "3 min 20 s"), (3600, "1 h"),
     (3599.7, "1 h"), (7500, "2 h 5 min")],
)  # fmt: skip
def test_durations_for_people(seconds, text):
    assert duration(seconds) == text


def test_sizes_for_people():
    assert (size(5), size(300 * 2**20), size(3 * 2**29)) == ("1 MB", "300 MB", "1.5 GB")
