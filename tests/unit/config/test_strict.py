"""Strict settings: what cannot be meant is refused in one line that names the key."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from knot_runner import compose
from knot_runner.config.strict import ByName, ByTag, build, check_keys, digest, require
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
    made = build(Outer, {**GOOD, "inner": {"rate": "1e-3"}, "names": ["x", 3, 0.5], "limit": 4}, "outer")
    assert (made.inner.rate, made.names, made.limit) == (0.001, ["x", "3", "0.5"], 4)


@pytest.mark.parametrize("change", [
    {"inner": {"rate": True}}, {"count": -(10**30)}, {"limit": "x"}, {"cuont": 1}, {"count": "three"}, {"count": True},
    {"count": 1.5}, {"kind": "c"}, {"inner": {"rate": float("nan")}}, {"inner": {"rate": -1}}, {"inner": 3},
    {"names": "x"}, {"names": [False]}, {"names": [None]}, {"count": None},
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


def test_digest_ignores_key_order_only_and_refuses_nan():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1}) != digest({"a": 1, "b": [2, 1]})
    with pytest.raises(ValueError):
        digest({"rate": float("nan")})


@dataclass
class Kl:
    name: str
    weight: float


@dataclass
class Tagged:
    loss: Annotated[Any, ByTag({"kl": Kl}, "loss", "name")] | None
    terms: Annotated[dict[str, Any], ByName({"kl": Kl}, "term")]


KL = {"name": "kl", "weight": 1}


def test_class_is_that_of_the_tag():
    made = build(Tagged, {"loss": KL, "terms": {"kl": KL}}, "method")
    assert made == Tagged(Kl("kl", 1.0), {"kl": Kl("kl", 1.0)})
    assert build(Tagged, {"loss": None, "terms": {}}, "") == Tagged(None, {})


@pytest.mark.parametrize("values", [
    {"loss": {"name": "kll"}, "terms": {}}, {"loss": {}, "terms": {}}, {"loss": 3, "terms": {}},
    {"loss": KL | {"weight": "x"}, "terms": {}}, {"loss": KL | {"form": 1}, "terms": {}},
    {"loss": None, "terms": []}, {"loss": None, "terms": {"k": KL}}, {"loss": None, "terms": {"kl": {"name": "kl"}}},
    {"loss": None, "terms": {"kl": None}},
], ids=str)  # fmt: skip
def test_wrong_tag_or_settings_are_named(values):
    with refuses():
        build(Tagged, values, "method")


@dataclass
class Own:
    low: int
    made: list[int] = field(init=False, default_factory=list)

    def __post_init__(self):
        if self.low > 3:
            raise ValueError(f"expected low to be at most 3, got {self.low}")


@dataclass
class Pair:
    pair: tuple[int, ...]


@pytest.mark.parametrize(("cls", "values"), [(Own, {"low": 4}), (Own, {"low": 1, "made": [1]}), (Pair, {"pair": [1]})])
def test_class_of_a_plug_in_is_refused_in_one_line(cls, values):
    with refuses():
        build(cls, values, "method")


def test_every_default_stands_once(monkeypatch):
    """What YAML gives has no default in its class but None or nothing at all."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[3] / "scripts")
    from key_reference import tables
    from key_values import usual_values

    places = tables()
    given = usual_values(places)
    twice = []
    for cls in places:
        for spec in dataclasses.fields(cls):
            default = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
            is_absence = default is dataclasses.MISSING or default in (None, [], {})
            if not is_absence and any(value is not None for value in given.get((cls, spec.name), [])):
                twice.append((cls.__name__, spec.name))
    assert len(given) > 400 and twice == []


def test_part_of_a_term_takes_the_rest_from_its_file():
    words = ["task=mnist", "method=kd", "+method.terms.crd.weight=2",
             "+method.schedule.phases=[{epochs: 1, terms: {hint: {weight: 3}}}]"]  # fmt: skip
    (job,) = compose(words)
    assert (job.method.terms["crd"].weight, job.method.terms["crd"].negatives) == (2.0, 1024)
    assert (job.method.schedule.phases[0].terms["hint"].weight, job.method.terms["kd"].temperature) == (3.0, 4.0)
    words = ["task=femnist", "method=feddf", "+method.server_distillation.terms.rkd.weight=1",
             "method.personalization={kind: soup, epochs: 2, checkpoints: 2}"]  # fmt: skip
    (job,) = compose(words)
    assert job.method.server_distillation.terms["rkd"].angle == 50.0
    assert (job.method.personalization.epochs, job.method.personalization.select) == (2, "valid")
    (job,) = compose(["task=mnist", "method=kd", "method.teachers=[]", "method.schedule.kind=average"])
    assert job.method.schedule.decay == 0.99


@pytest.mark.parametrize(("words", "key", "cls"), [
    ("task=femnist method=scaffold method.personalization=cossim", "personalization", "CossimSettings"),
    ("task=mnist method=kd method.teachers=[] method.schedule=mutual", "schedule", "MutualSchedule"),
    ("task=mnist method=kd method.teachers=[] method.schedule=snapshot", "schedule", "SnapshotSchedule"),
    ("task=sa method=sinkhorn_e method.loss=entropy", "loss", "EntropySettings"),
    ("task=mnist method=data_free method.synthesis=records", "synthesis", "RecordsSynthesis"),
])  # fmt: skip
def test_word_chooses_a_part_of_the_method(words, key, cls):
    (job,) = compose(words.split())
    assert type(getattr(job.method, key)).__name__ == cls


def test_word_chooses_the_loss_of_a_server():
    (job,) = compose(["task=femnist", "method=feddf", "method.server_distillation.loss=sinkhorn"])
    assert job.method.server_distillation.loss.scaling == 0.5
    assert job.method.server_distillation.schedule == "constant"
