"""Strict settings: what cannot be meant is refused in one line that names the key."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from knot_runner.config.strict import build, check_keys, digest, require
from tests.golden.messages import refuses


@dataclass
class Inner:
    rate: float

    def __post_init__(self):
        require(self.rate > 0, "rate", f"{self.rate} is not above 0")


@dataclass
class Outer:
    count: int
    kind: Literal["a", "b"]
    inner: Inner
    names: list[str] = field(default_factory=list)
    limit: int | None = None


GOOD = {"count": 3, "kind": "a", "inner": {"rate": 0.5}}


def test_build_reads_nested_settings_and_numeric_strings():
    made = build(Outer, {**GOOD, "inner": {"rate": "1e-3"}, "names": ["x"], "limit": 4}, "outer")
    assert (made.inner.rate, made.names, made.limit) == (0.001, ["x"], 4)


@pytest.mark.parametrize("change", [
    {"inner": {"rate": True}}, {"count": -(10**30)}, {"limit": "x"}, {"cuont": 1}, {"count": "three"}, {"count": True},
    {"count": 1.5}, {"kind": "c"}, {"inner": {"rate": float("nan")}}, {"inner": {"rate": -1}}, {"inner": 3},
    {"names": "x"}, {"names": [False]}, {"names": [3]}, {"names": [None]}, {"count": None},
])  # fmt: skip
def test_build_refuses(change):
    with refuses():
        build(Outer, {**GOOD, **change}, "outer")


def test_build_names_a_missing_key():
    with refuses():
        build(Outer, {"count": 1, "inner": {"rate": 1}}, "outer")


@pytest.mark.parametrize("keys", [{0: "low", "high": "high"}, {True: "a"}, {"a": [{None: 1}]}, {0: 1, True: 2}])
def test_check_keys_refuses_what_is_no_word(keys):
    check_keys({"a": {0: "low", 1: "high"}, "b": [{"c": 1}]})
    with refuses():
        check_keys({"labels": keys})


def test_digest_ignores_key_order_but_not_list_order():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1}) != digest({"a": 1, "b": [2, 1]})


def test_digest_refuses_what_is_not_finite():
    with pytest.raises(ValueError):
        digest({"rate": float("nan")})
