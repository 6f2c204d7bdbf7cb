"""YAML of one's own: a mistake has a file and a line, nothing in it runs code, and it is loaded as Hydra loads it."""

from pathlib import Path

import pytest
import yaml

from knot_runner.composing import own_yaml
from knot_runner.composing.commands import compose_all
from knot_runner.util.config_yaml import config_folder
from tests.test_command_line import refusal

TARGET = "_target_: os.system"
BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{one}: &{one} [{','.join([f'*{last}'] * 10)}]\n" for last, one in zip("abcdefg", "bcdefgh", strict=True)
)
#: Name of the file -> its content, the line that is named, what is said of it.
MISTAKES = {
    "task/syntax": ("a: [1\nb: 2\n", 2, "','"),
    "task/tab": ("a: 1\n\tb: 2\n", 2, "tab"),
    "task/colon": ("a: 1\nmax 16\nb: 2\n", 2, "a key without a colon"),
    "task/quote": ("a: 1\nb: 'x\nc: 2\n", 2, "a quote that begins here is not closed"),
    "task/colons": ("a: 1\nb: x: y\n", 2, "a colon too many"),
    "task/deeper": ("a:\n  b: 1\n   c: 2\n", 3, "indented otherwise than those above"),
    "task/shallower": ("a:\n    b: 1\n  c: 2\n", 3, "is no key beside those above; its indentation"),
    "experiment/header": ("# a preset\nseed: 3\n", 2, "a preset needs the line '# @package _global_'"),
    "experiment/other": ("# @package task\nseed: 3\n", 2, "a preset needs the line '# @package _global_'"),
    "task/twice": ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' stands in line 1 already"),
    "task/deep_twice": ("x:\n  a: 1\n  a: 3\n", 3, "the key 'a' stands in line 2 already"),
    "task/latin": (b"name: a\nx: \xfc\n", 2, "is not text in UTF-8"),
    "task/python": ("x: 1\ny: !!python/object/apply:os.getcwd []\n", 2, "the tag !!python/object/apply:os.getcwd"),
    "task/tagged": ("x: !mine 1\n", 1, "the tag !mine"),
    "task/list": ("- a\n- b\n", 1, "is not a mapping"),
    "task/bomb": (BOMB, 1, "its aliases (*name) come to more than 100,000 values"),
    "task/endless": ("a: &a\n  b: *a\n", 1, "an anchor (&name) with its own alias in it"),
    "task/defaults": ("name: a\ndefaults: sa\n", 2, "defaults: is not a list"),
    "task/loop": ("name: a\ndefaults:\n  - loop\n", 3, "its defaults lead back to it"),
    "task/missing": ("name: a\ndefaults:\n  - /base/nope@_here_\n", 3, "its defaults name 'base/nope'"),
    "task/target": (f"name: a\nx:\n  {TARGET}\n", 3, "nothing but plugins=[FILE.py] runs code of your own"),
    "method/target": (f"defaults: [fedavg]\noptions: [{{{TARGET}}}]\n", 2, "nothing but plugins=[FILE.py]"),
    "experiment/list": ("# @package _global_\nsweep: [1, 2]\n", 2, "sweep: is not a mapping"),
    "experiment/values": ("# @package _global_\nsweep:\n  seed: [0, 1]\n", 3, "sweep.seed: is not one text"),
    "experiment/braces": (
        "# @package _global_\nsweep: {seed: 0,1}\n",
        2,
        "sweep.1: has no values; in braces they need",
    ),
    "experiment/hydra": ("# @package _global_\nhydra:\n  callbacks:\n    x: {a: 1}\n", 4, "hydra.callbacks.x: is not"),
    "experiment/verbose": ("# @package _global_\nhydra:\n  verbose: true\n", 3, "hydra.verbose: is not honoured"),
    "experiment/group": (
        "# @package _global_\ndefaults:\n  - override /hydra/callbacks: x\n",
        3,
        "hydra/callbacks: is",
    ),
    "experiment/placed": ("defaults:\n  - /method/fedavg@hydra.callbacks.x\n", 2, "hydra.callbacks.x: is not honoured"),
    "method/packaged": ("# @package hydra.callbacks\nx: {a: 1}\n", 2, "hydra.callbacks: is not honoured"),
    "hydra/launcher/mine": (f"{TARGET}\n", 1, "'os.system' is not one of the launchers basic, fused"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_file_and_line(name, tmp_path):
    content, line, said = MISTAKES[name]
    path = tmp_path / f"{name}.yaml"
    path.parent.mkdir(parents=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    group, _, choice = name.rpartition("/")
    found = refusal(f"--config-dir={tmp_path}", f"{group}={choice}")
    assert found.startswith(f"{path}:{line}: ") and said in found


@pytest.mark.parametrize("name", ["task/colon", "task/quote", "task/colons", "task/deeper", "task/shallower"])
def test_the_parser_in_python_is_told_likewise(name, tmp_path, monkeypatch):
    monkeypatch.setattr(own_yaml, "YAML_LOADER", yaml.SafeLoader)
    test_a_mistake_is_one_line_with_file_and_line(name, tmp_path)


def test_a_file_of_another_kind_and_size_is_not_parsed(tmp_path):
    (tmp_path / "task").mkdir()
    path = tmp_path / "task" / "huge.yaml"
    path.write_text("# " + "x" * own_yaml.MAX_YAML_BYTES)
    assert refusal(f"--config-dir={tmp_path}", "task=huge").startswith(f"{path}: has ")


def test_what_a_file_slips_by_is_refused_in_the_composed_config(tmp_path, monkeypatch):
    """The second of two checks."""
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text("# @package hydra.callbacks\nx: {a: 1}\n")
    monkeypatch.setattr(own_yaml, "read_checked", lambda path, name: path.read_text())
    assert refusal(f"--config-dir={tmp_path}", "method=mine").startswith("hydra.callbacks: is not honoured")


def test_a_byte_order_mark_and_an_empty_sweep_are_no_mistakes(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nseed: 3\nsweep:\n"
    (tmp_path / "experiment" / "mine.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (job,), _ = compose_all([f"--config-dir={tmp_path}", "experiment=mine"])
    assert job.settings.seed == 3


def test_defaults_that_lead_back_over_another_file_are_named(tmp_path):
    (tmp_path / "task").mkdir()
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / "task" / f"{name}.yaml").write_text(f"defaults:\n  - {other}\n")
    said = refusal(f"--config-dir={tmp_path}", "task=a")
    assert said.startswith(f"{tmp_path}/task/a.yaml:2: its defaults lead back to it")


def test_a_mistake_in_a_file_that_is_not_asked_for_is_none(tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "broken.yaml").write_text("a: [\n")
    assert len(compose_all([f"--config-dir={tmp_path}"])[0]) == 1


def test_interpolations_of_a_file_that_double_are_refused(tmp_path):
    (tmp_path / "task").mkdir()
    links = "".join(f"a{at + 1}: ${{.a{at}}}${{.a{at}}}\n" for at in range(40))
    (tmp_path / "task" / "mine.yaml").write_text(f"name: x\na0: abcdefgh\n{links}")
    assert "come to too much text" in refusal(f"--config-dir={tmp_path}", "task=mine")


@pytest.mark.parametrize("task", ["sa", "erc", "nli"])
def test_a_copy_of_one_of_our_files_is_the_same_run(task, tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "copy.yaml").write_text((config_folder() / "task" / f"{task}.yaml").read_text())
    (own,), _ = compose_all([f"--config-dir={tmp_path}", "task=copy"])
    (ours,), _ = compose_all([f"task={task}"])
    assert own.run_id == ours.run_id


@pytest.mark.parametrize("folder", ["ü ö", "it's, [1] {a}", "a=b"])
def test_a_folder_of_any_name_is_found(folder, tmp_path):
    (tmp_path / folder / "method").mkdir(parents=True)
    (tmp_path / folder / "method" / "mine.yaml").write_text("defaults:\n  - entropy_a\n  - _self_\nname: mine\n")
    (job,), _ = compose_all([f"--config-dir={tmp_path / folder}", "method=mine"])
    assert job.settings.method["name"] == "mine"


def test_a_preset_and_a_launcher_of_ones_own_are_honoured(tmp_path):
    for name in ("experiment", "hydra/launcher"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "hydra" / "launcher" / "mine.yaml").write_text("defaults: [fused, _self_]\ntogether: 3\n")
    preset = "# @package _global_\ndefaults:\n  - override /hydra/launcher: mine\nsweep: {seed: '0,1'}\n"
    (tmp_path / "experiment" / "own.yaml").write_text(preset + "hydra: {sweeper: {max_batch_size: 5}}\n")
    jobs, (command,) = compose_all([f"--config-dir={tmp_path}", "experiment=own"])
    assert len(jobs) == 2 and command.hydra.launcher.together == 3 and command.hydra.sweeper.max_batch_size == 5


def test_nothing_that_a_file_names_is_called(tmp_path):
    """As files that ran code once: Hydra's callbacks in a preset, and logging of Hydra's."""
    ran = tmp_path / "ran"
    (tmp_path / "experiment").mkdir()
    call = f"{{{TARGET}, command: 'touch {ran}'}}"
    (tmp_path / "experiment" / "bad.yaml").write_text(f"# @package _global_\nhydra: {{callbacks: {{x: {call}}}}}\n")
    from knot_runner.cli.main import main

    for words in ([], ["-m", "seed=0,1"], ["--cfg", "job"]):
        assert main([*words, f"--config-dir={tmp_path}", "experiment=bad"]) == 2
    assert not Path(ran).exists()
