"""A result is believed only as it was written: one flipped bit anywhere makes it a run to be made again."""

import random

from knot_runner.records import NAME, read_result, write_result

RESULT = {
    "task": "sa",
    "seed": 0,
    "status": "done",
    "metrics": {"f1": {"Cell": 0.412345678901, "ALL": 1 / 3}},
    "né": [1],
}


def test_round_trip(tmp_path):
    assert {k: v for k, v in write_result(tmp_path, RESULT).items() if k != "digest"} == RESULT
    assert read_result(tmp_path) == write_result(tmp_path, RESULT)


def test_no_flipped_bit_and_no_cut_changes_a_number(tmp_path):
    write_result(tmp_path, RESULT)
    good, path = read_result(tmp_path), tmp_path / NAME
    content = path.read_bytes()
    draw = random.Random(0)
    for _ in range(500):
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        assert read_result(tmp_path) in (None, good)  # white space may change without harm
    for length in range(0, len(content) - 1, 7):
        path.write_bytes(content[:length])
        assert read_result(tmp_path) is None
