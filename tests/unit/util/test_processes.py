"""Processes that end with another one and leave nothing."""

import multiprocessing
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import joblib  # noqa: F401  registers the start method loky
import pytest

from knot_runner.util.processes import memory_limit, prepared

#: A process that another program has begun, as launchers do.
GRANDCHILD = """
import os, subprocess, sys
code = f"import knot_runner.util.processes as all; all.begin_child({os.getpid()}); print(flush=True); input()"
subprocess.run(["sh", "-c", f'{sys.executable} -c "{code}"; true'])
"""
SERVER = "from knot_runner.util.processes import begin_server; begin_server(['endless']); input()"
ENDLESS = """
import contextlib, time
print(flush=True)
while True:
    time.sleep(0.05)
    with contextlib.suppress(ImportError):
        import no_such_module
"""


def test_memory_limit_ends_with_its_block():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limit(64), pytest.raises(MemoryError):
        bytearray(65 * 10**9)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize("code", [GRANDCHILD, SERVER], ids=["grandchild", "importing server"])
def test_processes_end_with_a_killed_one_and_leave_nothing(code, tmp_path, tmp_path_factory):
    (tmp_path / "endless.py").write_text(ENDLESS)
    own = tmp_path_factory.mktemp("o")  # the path of a socket has at most 107 characters
    environment = {**os.environ, "TMPDIR": str(own), "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, start_new_session=True)
    assert process.stdout.readline()  # of the process that is to end
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError):
        for _ in range(1000):
            os.killpg(process.pid, 0)
            time.sleep(0.02)
    assert not list(own.iterdir())


def test_processes_under_joblib_need_not_know_joblib():
    """They were told their parent's start method, loky, which only scikit-learn's import of joblib made known."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("loky", force=True)
    try:
        prepared([])
        assert multiprocessing.get_start_method() in multiprocessing.get_all_start_methods()
    finally:
        multiprocessing.set_start_method(before, force=True)
