"""What a run imports: its own process says so, since this one has imported everything."""

import multiprocessing

import joblib  # noqa: F401  registers the start method loky

from knot_runner.util.processes import prepared


def test_processes_under_joblib_need_not_know_joblib():
    """They were told their parent's start method, loky, which only scikit-learn's import of joblib made known."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("loky", force=True)
    try:
        prepared([])
        assert multiprocessing.get_start_method() in multiprocessing.get_all_start_methods()
    finally:
        multiprocessing.set_start_method(before, force=True)
