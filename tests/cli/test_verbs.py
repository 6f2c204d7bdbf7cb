"""Each verb's own help, what ``ls`` shows, and tables on a pipe."""

import shutil

import pytest

from knot_runner.cli import main as cli
from knot_runner.cli.parsers import VERBS, parser_of
from knot_runner.composing.overrides import GROUPS
from tests.tiny import TINY_IMAGES


@pytest.mark.parametrize("verb", ["", *VERBS])
@pytest.mark.parametrize("width", [60, 80])
def test_help_fits_a_narrow_terminal(verb, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert cli.main([verb, "--help", "x=1"][not verb :]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: knot-runner {verb}") and "examples:" in text
    assert max(map(len, text.splitlines())) <= max(width, 80)


def test_plot_help_partition_example_runs(tmp_path, capsys):
    (line,) = [line for line in parser_of("plot").epilog.splitlines() if "plot partition" in line]
    words = [word for word in line.split() if "=" in word]
    assert cli.main(["plot", "partition", *words, f"paths.output_dir={tmp_path}"]) == 0
    (picture,) = tmp_path.glob("figures/partition_*.png")
    assert picture.read_bytes()[:4] == b"\x89PNG" and str(picture) in capsys.readouterr().out.replace("\n", "")


def test_ls_shows_files_of_config_dir(tmp_path, capsys):
    for name in ("fedmine", "fedavg"):
        (tmp_path / "method").mkdir(exist_ok=True)
        (tmp_path / "method" / f"{name}.yaml").write_text("# knot-runner method=x\n# a method of mine\nname: x\n")
    assert cli.main(["ls", "method", f"--config-dir={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert f"a method of mine ({tmp_path}/method/fedmine.yaml)" in printed
    assert f"{tmp_path}/method/fedavg.yaml: ignored" in printed


def test_ls_shows_a_line_per_group_and_the_choices_of_given_groups(capsys):
    assert cli.main(["ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*GROUPS, "Run"]
    assert cli.main(["ls", "tracker", "privacy"]) == 0
    printed = capsys.readouterr().out
    titles = [line.strip() for line in printed.splitlines() if len(line.split()) == 1]
    assert titles == ["privacy", "tracker"] and "user_level" in printed and "task x method" not in printed
    assert cli.main(["ls", "method"]) == 0
    printed = capsys.readouterr().out
    assert "task x method" in printed and "a method may require more" in printed


def test_verbs_read_quoted_values_as_hydra(fedavg_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "it's, here"
    shutil.copytree(fedavg_run.folder.parents[2], out)
    quoted = r"'~/it\'s, here'"
    assert cli.main(["compare", "task='femnist'", f"paths.output_dir={quoted}"]) == 0
    assert cli.main(["bundle", fedavg_run.folder.name, f"paths.output_dir={quoted}"]) == 0
    (bundle,) = (out / "bundles").iterdir()
    assert cli.main(["verify", str(bundle), f"paths.output_dir={quoted}"]) == 2
    assert f"{out}: not an empty folder" in capsys.readouterr().err
    assert (
        cli.main([*TINY_IMAGES, "method=fedavg", "training.lr=0.1", f"paths.output_dir={quoted}"]) == 0
    )  # done already
    assert cli.main(["plot", "experiment='federated/fedprox'", f"paths.output_dir={quoted}"]) == 2
    assert "none of the 15 runs" in capsys.readouterr().err and not (tmp_path / "~").exists()
