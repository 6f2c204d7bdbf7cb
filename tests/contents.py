"""Results as plain data, which tests write, change and compare."""

from unittest import mock

from knot_runner import UserError, records
from knot_runner.config.strict import content_of
from knot_runner.records import read_result, write_result
from knot_runner.results import DivergedResult, result_of

#: What a result of a kind cannot do without, unless a test says something else.
LEAST = {
    "federated": {
        "metrics": {"accuracy": {"ALL": 0.5}, "loss": {"ALL": 1.0}, "tempered_loss": {"ALL": 1.0}}, "rounds": 1,
        "datasets": {"train": 2, "test": 2}, "labels": {"names": ["a", "b"]}, "clients": 1, "target": None,
        "best": {"accuracy": 0.5, "round": 1}, "rounds_to_target": None,
    },
}  # fmt: skip
FACTS = {"status": "done", "kind": "federated", "task": "femnist", "method": "fedavg", "seed": 0}
FACTS |= {"versions": {"torch": "2.13.0"}}


def result_with(content):
    """Return the result with ``content`` and the fewest other values; a diverged one has fewer fields."""
    content = {**FACTS, **LEAST.get(content.get("kind", "federated"), {}), **content}
    if content["status"] == "diverged":
        content = {key: content[key] for key in DivergedResult.__dataclass_fields__ if key in content}
    return result_of(content)


def write_content(folder, content):
    """Write the result with ``content``; returns what was written, as plain data."""
    return content_of(write_result(folder, result_with(content)))


def seal_content(folder, content):
    """Write a result with ``content`` as it is, and its digests."""
    with mock.patch.object(records, "result_of", lambda content: content):
        records.write_result(folder, content)


def read_content(folder):
    """The content of the result in ``folder``, or None."""
    result = read_result(folder)
    return None if result is None else content_of(result)


def problem_of(content):
    """Return the reason why ``content`` is not a valid result, or "" if it is."""
    try:
        result_of(content)
    except UserError as problem:
        return str(problem)
    return ""
