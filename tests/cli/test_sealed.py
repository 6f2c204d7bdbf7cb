"""What must not get in or out: code in files, names that leave the folder, keys of the environment, the network."""

import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.config.settings.run import build_run
from knot_runner.models.network import Network, build_network
from knot_runner.models.pretrained import load_pretrained
from knot_runner.pipelines.federations.texts import weights_identity
from tests.golden.messages import refuses
from tests.of_papers import of_papers
from tests.tiny import CORESET, DIGITS, DISTANCE, SETS, TINY, TINY_IMAGES, replaced

RUN = replaced(TINY_IMAGES, "hardware.engine=loop", "training.rounds=1", "training.local_epochs=1")


class Gadget:
    """A pickle that leaves a file when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.npy", "model.safetensors"])
def test_load_pretrained_refuses_pickles_without_loading_them(name, tmp_path):
    mark, spec = tmp_path / "executed", compose_all([*TINY, f"model.weights={tmp_path}"])[0][0].settings.model
    if name.endswith(".npy"):
        np.save(tmp_path / name, np.array([Gadget(mark)], dtype=object), allow_pickle=True)
    else:
        (tmp_path / name).write_bytes(pickle.dumps(Gadget(mark)))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    if name != "model.safetensors":
        with refuses():
            weights_identity(spec, None)
    with refuses():
        load_pretrained(build_network(Network(spec, 100, 3)), spec, None)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Gadget(mark)))
    assert mark.exists()  # it would have been seen


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", "/abs", "a/b", ".hidden", "", "a\nb", "~", "a\0b"])
def test_build_run_rejects_unsafe_names(name):
    config = compose_all(RUN)[0][0].config
    for group in ("task", "method"):
        changed = {**config, group: {**config[group], "name": name}}
        with refuses():
            build_run(changed)


KEYS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_thisIsNoTokenOfAnybody",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}


@pytest.fixture
def sent(monkeypatch):
    """All that a tracker would send."""
    found = []
    run = SimpleNamespace(summary={}, log=found.append, define_metric=lambda *_, **__: None)
    run.finish = lambda exit_code: found.append(run.summary)
    monkeypatch.setattr("wandb.init", lambda **settings: found.append(settings) or run)
    return found


def test_environment_keys_are_neither_written_nor_sent(tmp_path, sent, capsys, monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    assert main([*RUN, "tracker=wandb", f"paths.output_dir={tmp_path}"]) == 0
    assert main([*RUN, "tracker=wandb", "training.lr=1e30", f"paths.output_dir={tmp_path}"]) == 1  # diverges
    assert main([*RUN, "training.batch_size=99999", f"paths.output_dir={tmp_path}"]) == 2
    assert main(["compare", f"paths.output_dir={tmp_path}", f"--export={tmp_path}/all.csv"]) == 0
    said = capsys.readouterr()
    assert len(list(tmp_path.glob("*/*/*/result.json"))) == 2 and len(sent) > 3
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for value in KEYS.values():
        assert value not in said.out + said.err + repr(sent) and value.encode() not in written


@pytest.mark.parametrize("name", KEYS)
def test_config_refuses_environment_keys_without_telling_them(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(name, KEYS[name])
    interpolated = f"${{oc.env:{name}}}"
    overrides = f"tracker.project={interpolated}", f"task.name='x {interpolated}'", f"paths.data_dir={KEYS[name]}"
    for override in overrides:
        assert main([*RUN, "tracker=wandb", override, f"paths.output_dir={tmp_path}"]) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("knot-runner: ")]
        key = override.partition("=")[0]
        assert line.startswith(f"knot-runner: {key}: ") and name in line and KEYS[name] not in line
    assert not list(tmp_path.rglob("*.yaml"))


def test_config_accepts_a_plain_environment_variable(monkeypatch):
    monkeypatch.setenv("MY_GROUP", "a group of runs")
    monkeypatch.setenv("SHORT_KEY", "task")  # too short to be one
    (job,), _ = compose_all([*RUN, "tracker=wandb", "tracker.project=${oc.env:MY_GROUP}"])
    assert job.settings.tracker.project == "a group of runs"


#: A run of each kind but texts (tests/cli/test_command_line.py).
PROBE = [*replaced(DIGITS, "method=temperature_probe", "method.warm_epochs=0", "model.hidden=[8]")]
KINDS = {"federated": RUN, "probe": PROBE, "distance": DISTANCE, "matrix": SETS,
         "coreset": replaced(CORESET, "method.epochs=1")}  # fmt: skip


@pytest.mark.parametrize("kind", of_papers(list(KINDS)))
def test_run_of_any_kind_asks_no_network(kind, offline, tmp_path, capsys):
    assert main([*KINDS[kind], f"paths.output_dir={tmp_path}"]) == 0, capsys.readouterr().err
    assert os.environ.get("HF_HUB_OFFLINE") is None
