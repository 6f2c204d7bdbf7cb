"""Messages of the logger are bare lines on a terminal; suggested commands can be typed as printed."""

import json
import logging
import re
import shlex
import shutil

import pytest

from knot_runner import FIGURES, TABLE_KINDS
from knot_runner.cli.main import main
from knot_runner.util.errors import LOGGER, messages_to
from tests.golden.messages import FILE as MESSAGES
from tests.tiny import TINY_IMAGES


def test_messages_to_prefixes_warnings_and_restores_logger(caplog):
    before, printed = (LOGGER.handlers, LOGGER.level, LOGGER.propagate), []
    with messages_to(printed.append):
        LOGGER.info("%d of %d", 1, 2)
        LOGGER.warning("seed: is given twice")
        LOGGER.debug("not for people")
    assert printed == ["1 of 2", "knot-runner: seed: is given twice"] and not caplog.messages
    assert (LOGGER.handlers, LOGGER.level, LOGGER.propagate) == before
    assert logging.getLogger("knot_runner") is LOGGER


def test_notes_are_shown_once_by_new_and_finished_runs(tmp_path, capsys):
    for _ in range(2):
        assert main([*TINY_IMAGES, "method=fedavg", f"paths.output_dir={tmp_path}"]) == 0
        assert " ".join("".join(capsys.readouterr()).split()).count("are held out") == 1


PRESET = "# @package _global_\ndefaults:\n  - override /task: femnist\nreport: {kind: plot}\n"


@pytest.fixture
def preset(fedavg_run, tmp_path):
    """The words of a preset whose run is finished, and the run's folder."""
    path = tmp_path / "conf" / "experiment" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(PRESET)
    out = tmp_path / "my runs"
    shutil.copytree(fedavg_run.folder.parents[2], out)
    small = [*TINY_IMAGES[1:], "method=fedavg", "training.lr=0.1", f"paths.output_dir={out}"]
    return ["mine", f"--config-dir={path.parents[1]}", *small], out.joinpath(*fedavg_run.folder.parts[-3:])


@pytest.mark.parametrize("file", ["", "rounds.jsonl"])
def test_hint_of_a_report_creates_what_it_shows(file, preset, capsys):
    words, folder = preset
    if file:
        (folder / file).write_text("{")
    else:
        shutil.rmtree(folder)
    assert main(["plot", *words]) == 2
    assert main(hinted(capsys)) == 0 and main(["plot", *words]) == 0


def test_hint_of_a_verb_that_does_not_fit_is_the_one_that_does(preset, capsys):
    words, _ = preset
    for wrong in (["table", *words], ["plot", *words, "report.kind=grid"]):
        assert main(wrong) == 2
        assert main(hinted(capsys)) == 0


def hinted(capsys):
    """The arguments of the command that the last message ends with."""
    return shlex.split(capsys.readouterr().err.rpartition("Run this command: knot-runner ")[2])


def test_reports_of_other_kinds_of_runs_hint_at_no_command(preset, capsys):
    words, _ = preset
    codes = set()
    for verb, kinds in (("plot", ["plot", *sorted(FIGURES)[::5]]), ("table", TABLE_KINDS)):
        for kind in kinds:
            codes.add(main([verb, *words, f"report.kind={kind}"]))
            assert "Run this command: " not in capsys.readouterr().err, kind
    assert codes == {0, 2}  # some kinds suit the runs, others are refused


def test_commands_in_recorded_messages_do_not_repeat_them(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messages = {line for lines in json.loads(MESSAGES.read_text()).values() for line in lines}
    commands = {command for line in messages for command in re.findall(r"'knot-runner ([^']+)'", line)}
    assert len(commands) > 8
    for command in commands:
        main(shlex.split(command))
        assert f"'knot-runner {command}'" not in capsys.readouterr().err, command
