"""Where a command is run: folders that cannot be written, output that cannot be printed, signals, the clock."""

import errno
import io
import os
import subprocess
import sys

import pytest

import knot_runner as kr
from knot_runner.cli.main import main
from tests.disk import ReadOnly
from tests.golden.messages import refused
from tests.tiny import TINY_IMAGES, replaced

RUN = replaced(TINY_IMAGES, "hardware.engine=loop", "training.rounds=1", "training.local_epochs=1")


def complaints(capsys):
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return [line for line in said.splitlines() if line.startswith("knot-runner: ")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished")
    assert main([*RUN, f"paths.output_dir={out}"]) == 0
    return out


def test_read_only_out_allows_only_finished_runs(finished, capsys):
    with ReadOnly(finished):
        assert main([*RUN, f"paths.output_dir={finished}"]) == 0
        shown = capsys.readouterr()
        assert "accuracy" in shown.out and not complaints(capsys)
        assert main([*RUN, f"paths.output_dir={finished}", "-m"]) == 0  # as a sweep of one
        assert main(["check", "--quick", *RUN, f"paths.output_dir={finished}"]) == 0
        assert main(["compare", f"paths.output_dir={finished}"]) == 0
        capsys.readouterr()
        for one in (["seed=1"], ["seed=1,2"]):
            assert main([*RUN, *one, f"paths.output_dir={finished}"]) == 2
            assert complaints(capsys) == [
                f"knot-runner: paths.output_dir: {finished}: cannot be written: Read-only file system"
            ]


#: One run of a preset's grid.
PRESET = [*RUN, "task.source=embedded", "seed=0", "fleet=phones", "arm=fedavg"]


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    out = tmp_path_factory.mktemp("preset")
    (job,) = kr.compose(["experiment=federated/fleet_femnist", *PRESET, f"paths.output_dir={out}"])
    kr.run(job)
    return out


@pytest.mark.parametrize("verb, files", [("table", 3), ("claims", 3), ("report", 1)])
def test_preset_verbs_use_temp_for_read_only_out(verb, files, preset, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ReadOnly(preset):
        assert main([verb, "federated/fleet_femnist", *PRESET, f"paths.output_dir={preset}"]) == 0
        said = capsys.readouterr().err
        assert f"{preset} is read-only, so files are written to {tmp_path}" in said
        assert len(list(tmp_path.glob("knot-runner-*/*/federated/*"))) == files
        assert main(["experiment=federated/fleet_femnist", *PRESET, f"paths.output_dir={preset}"]) == 0  # shown
    assert not list(preset.glob("tables/federated/*"))


def test_paths_out_refuses_what_is_no_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for out in (*(tmp_path / name for name in ("file", "file/x", "dangling", "dangling/x")), "/dev/null"):
        refused(capsys, *RUN, f"paths.output_dir={out}")
    for verb in ([], ["check"], ["-m"]):
        assert main([*verb, *RUN, f"paths.output_dir={tmp_path}/{'a' * 300}"]) == 2
        assert complaints(capsys) == ["knot-runner: paths.output_dir: a name has 300 bytes, more than the limit of 255"]


class Broken(io.StringIO):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def write(self, text):
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number, code", [(errno.ENOSPC, 1), (errno.EIO, 1), (errno.EPIPE, 141)])
def test_run_keeps_its_result_when_stdout_fails(number, code, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Broken(number))
    monkeypatch.setattr(sys, "stderr", error := io.StringIO())
    assert main([*RUN, f"paths.output_dir={tmp_path}"]) == code
    assert list(tmp_path.glob("*/*/*/result.json"))
    assert ("output could not be printed" in error.getvalue()) == (code == 1)
    assert isinstance(sys.stdout, Broken) and sys.stderr is error  # as they were


def test_run_succeeds_with_broken_or_closed_streams(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Broken(errno.ENOSPC))
    assert main([*RUN, f"paths.output_dir={tmp_path}"]) == 0
    monkeypatch.setattr(sys, "stdout", None)  # as Python has them after >&- 2>&-
    monkeypatch.setattr(sys, "stderr", None)
    assert main([*RUN, f"paths.output_dir={tmp_path}"]) == 0
    assert sys.stdout is None


def test_run_replaces_unencodable_characters_in_output(finished, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main([*RUN, f"paths.output_dir={finished}"]) == 0
    said = raw.getvalue().decode("ascii")
    assert "femnist ? fedavg ? seed 0" in said


def test_lasting_reserves_descriptors_of_closed_streams(tmp_path):
    """The next file that is opened would have number 1, and all that is printed in it."""
    code = (
        "from knot_runner.util.streams import lasting\n"
        "import os, sys\n"
        "with lasting(): handle = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "os._exit(handle > 2)"
    )
    done = subprocess.run(["bash", "-c", f"{sys.executable} -c '{code}' {tmp_path}/x >&- 2>&- <&-"])
    assert done.returncode == 1


SWALLOWS = """
import os, signal, sys, time
from knot_runner.util.processes import ended_by_signals, on_signal, temporary_folder
say = lambda text: os.write(1, text)
first, last = lambda: say(b"first "), lambda: say(b"last ")
signal.signal(signal.SIGINT, signal.SIG_IGN)
with ended_by_signals(), on_signal(first), on_signal(lambda: 1 / 0), on_signal(last), temporary_folder():
    with on_signal(lambda: say(b"never ")):
        pass
    try:
        os.kill(os.getpid(), signal.SIGINT)  # is ignored
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except BaseException as problem:  # as libraries do
        say(f"raised {problem!r}".encode())
"""


def test_on_sigterm_runs_handlers_newest_first_without_raising(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SWALLOWS], capture_output=True, timeout=30, env=environment)
    assert (done.returncode, done.stdout) == (143, b"last first ")
    assert not list(tmp_path.iterdir())
