"""Each verb's own help, what ``ls`` shows, and tables on a pipe; a sample of the fuzz of command lines."""

from pathlib import Path

import pytest

from knot_runner.cli import main as cli
from knot_runner.cli.verbs import check, compare
from knot_runner.methods.weighting import WEIGHTINGS
from tests import fuzz_commands


@pytest.mark.parametrize("verb", cli.VERBS)
@pytest.mark.parametrize("words", [["{}", "--help"], ["help", "{}"], ["{}", "-h", "x=1"]], ids=["--help", "help", "-h"])
def test_each_verb_has_help_of_its_own(verb, words, capsys):
    assert cli.main([word.format(verb) for word in words]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"knot-runner {verb} ") and said.count(f"knot-runner {verb}") > 1
    assert max(map(len, said.splitlines())) <= 120


def test_help_of_compare_and_check_has_every_flag(capsys):
    assert all(f"  {flag}" in compare.COMPARE_HELP for flag in compare.COMPARE_FLAGS)
    assert all(f"  {flag}" in check.CHECK_HELP for flag in check.CHECK_FLAGS)


def test_ls_shows_what_config_dir_and_plugins_bring(tmp_path, capsys, request):
    for name in ("fedmine", "fedavg"):
        (tmp_path / "method").mkdir(exist_ok=True)
        (tmp_path / "method" / f"{name}.yaml").write_text("# knot-runner method=x\n# a method of mine\nname: x\n")
    plugin = tmp_path / "a_plugin_for_ls.py"
    plugin.write_text("from knot_runner.methods.weighting import WEIGHTINGS\nWEIGHTINGS['Mine'] = WEIGHTINGS['A']\n")
    request.addfinalizer(lambda: WEIGHTINGS.pop("Mine", None))
    assert cli.main(["ls", f"--config-dir={tmp_path}", f"plugins=[{plugin}]"]) == 0
    said = capsys.readouterr().out
    assert f"a method of mine ({tmp_path}/method/fedmine.yaml)" in said and "method.weighting=Mine" in said
    assert f"{tmp_path}/method/fedavg.yaml: is not used" in said
    assert cli.main(["ls", "seed=1"]) == 2
    assert "seed: ls takes names of groups, --config-dir=DIR and plugins" in capsys.readouterr().err


def test_ls_of_groups_shows_these_alone(capsys):
    assert cli.main(["ls", "tracker", "privacy"]) == 0
    said = capsys.readouterr().out
    titles = [line.strip() for line in said.splitlines() if len(line.split()) == 1]
    assert titles == ["privacy", "tracker"] and "user_level" in said and "task x method" not in said
    assert cli.main(["ls", "method"]) == 0
    assert "task x method" in capsys.readouterr().out


def test_a_figure_is_no_table(tmp_path, capsys):
    assert cli.main(["table", "fedwad/toy", "seed=0", f"paths.out={tmp_path}"]) == 2
    assert "table fedwad/toy: is a figure ('knot-runner plot fedwad/toy' shows it)" in capsys.readouterr().err


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.thorough) for part in (2, 3))])
def test_a_sample_of_the_fuzz(part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = []
    for arguments in fuzz_commands.cases(120, 17)[part::4]:
        found = fuzz_commands.outcome(fuzz_commands.within(Path(tmp_path), arguments))
        assert not found.wrong, (arguments, found.wrong, found.said)
        codes.append(found.code)
    assert codes.count(2) > 15
