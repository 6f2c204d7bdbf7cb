"""Fixtures of the oracle tests, each beside the tests of its part."""

from tests.oracles.transport.otdd.labeled_sets import options, sets, with_fedwad  # noqa: F401
