"""Composition: presets and their grids, what names a run, and Hydra's own result for the same overrides."""

import dataclasses
import re
from pathlib import Path

import hydra
import pytest
import yaml
from omegaconf import OmegaConf

from knot_runner import compose
from knot_runner.cli.verbs.ls import describe_yaml
from knot_runner.composing.commands import compose_all
from knot_runner.composing.hydra_compose import composing
from knot_runner.composing.job import job_of
from knot_runner.composing.overrides import GROUPS
from knot_runner.util.config_yaml import config_folder
from tests.of_papers import of_papers


def test_command_line_replaces_a_presets_grid():
    preset = "experiment=federated/fleet_femnist"
    assert len(compose_all([preset, "seed=7"])[0]) == 16
    few = compose_all([preset, "seed=7", "arm=fedavg", "fleet=phones,phones_drop"])[0]
    assert [(job.settings.fleet.name, job.settings.seed) for job in few] == [("phones", 7), ("phones_drop", 7)]


def test_main_file_of_ones_own_has_a_grid(tmp_path):
    (tmp_path / "own.yaml").write_text("defaults: [config, _self_]\nsweep: {seed: '0,1'}\n")
    assert [job.settings.seed for job in compose_all([f"--config-dir={tmp_path}", "--config-name=own"])[0]] == [0, 1]


LR = "training.local.lr"
ONE_BY_ONE = [
    ["seed=1,2", f"{LR}=0.5,1e-3", "training.distill.lr=$\\{training.local.lr\\}", "task.max_examples=90"],
    ["task=nli", "method=glob([entr*_e,sinkh*_e])", "model.name='a b'", "task.max_examples=null",
     "task.labels.support=onehot"],
    ["task=femnist", "model.hidden=[16],[32,8]", "partition.embedded_clients=6,7", "paths.output_dir=x/$\\{seed\\}"],
    ["task=erc", "+tracker.options.mine={a:1,b:32}", "training.distill.lr=0.1,0.2"],
    ["task=erc", "method=entropy_a,sinkhorn_e", "~model.dropout", "+model.dropout=0.3"],
    ["task=erc", "task.datasets.MELD.embedded={rows:50},{rows:60}", "seed=1"],
    ["task=erc", "training.distill={epochs:1},{lr:0.5}", "seed=0"],
    ["task=femnist", "model.hidden.0=5,6"],
    ["experiment=knot/table2", "seed=5", "method=entropy_a", "task=erc", "training.distill.epochs=1,2"],
    ["experiment=chill/table1", "seed=0", "task=femnist", "report.seeds=3"],
]  # fmt: skip


@pytest.mark.parametrize("overrides", of_papers((overrides,) for overrides in ONE_BY_ONE))
def test_compose_equals_hydra(overrides):
    """Hydra composes once per choice of groups, and values are put into copies; here it composes a job by itself."""
    jobs = compose_all(overrides)[0]
    for job in {id(job): job for job in (jobs[0], jobs[-1])}.values():
        with composing(config_folder()):
            words = ["hardware=cpu", *(re.sub(r"^(?=[\w.]+\.\w+=)", "++", word) for word in job.overrides)]
            expected = OmegaConf.to_container(hydra.compose("config", words), resolve=True)
        assert job.config == job_of(expected).config
    assert len({id(job.config) for job in jobs}) == len(jobs)


def test_config_yaml_reads_back_equal():
    """With PyYAML, and with OmegaConf, which takes more strings for numbers."""
    texts = ["1e-3", "null", "yes", "y", "~", "0x1f", "1_000", "nan", ".inf", "2020-01-01", "a: b", "", " é\n"]
    config = {"texts": texts, "again": texts, "values": [1.5, None, True, 1e-3], **dict.fromkeys(texts, 1)}
    text = dataclasses.replace(compose(["task=sa"])[0], config=config).config_yaml
    assert yaml.safe_load(text) == config == OmegaConf.to_container(OmegaConf.create(text))


def test_compose_interpolates_in_lists(tmp_path):
    (tmp_path / "model").mkdir()
    own = (config_folder() / "model" / "femnist_dnn.yaml").read_text()
    (tmp_path / "model" / "odd.yaml").write_text(own.replace("[512, 256, 128]", "['${training.batch_size}', 3]"))
    found = compose(["task=femnist", "model=odd", "training.batch_size=5,6", f"--config-dir={tmp_path}"])
    assert [job.config["model"]["hidden"] for job in found] == [[5, 3], [6, 3]]


def test_job_label_omits_task_method_and_seed():
    jobs = compose(["task=erc,nli", "method=sinkhorn_e", "method.loss.epsilon=0.1,1", "seed=0,1"])
    assert {job.label for job in jobs} == {"method.loss.epsilon=0.1", "method.loss.epsilon=1"}


def test_config_yamls_start_with_command_and_description():
    paths = sorted(Path(config_folder()).glob("*/*.yaml"))
    assert {path.parent.name for path in paths} >= set(GROUPS) - {"experiment"}
    for path in paths:
        if path.parent.name in GROUPS:
            assert len(describe_yaml(path)) > 15, path
        if path.parent.name != "base":
            first = [line for line in path.read_text().splitlines() if not line.startswith("# @package")][0]
            assert first.startswith("# knot-runner "), path
