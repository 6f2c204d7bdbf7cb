"""A federated method from outside the package: one Python file, one YAML, no change anywhere."""

import json

import numpy as np

from knot_runner.cli.main import main
from tests.tiny import TINY_IMAGES

METHOD = """
import torch

from knot_runner.methods.contract import METHODS, Method
from knot_runner.methods.federated import averaging


def fold(hp, state, federation, round, requests, trained):
    stacked = torch.stack([result.weights for result in trained])
    return {**state, "weights": stacked.quantile(hp.options["at"], dim=0)}, {"spread": float(stacked.std(0).mean())}


METHODS["median"] = Method(averaging.init, averaging.plan, fold, averaging.deployed)
"""

YAML = """
defaults:
  - /base/federated@_here_
  - _self_
name: median
algorithm: median
options: {at: 0.5}
"""


def arrange(folder):
    (folder / "median_method.py").write_text(METHOD)
    (folder / "conf" / "method").mkdir(parents=True)
    (folder / "conf" / "method" / "median.yaml").write_text(YAML)
    return [f"--config-dir={folder / 'conf'}", *TINY_IMAGES, f"plugins=['{folder / 'median_method.py'}']"]


def test_a_method_of_ones_own_runs_chilled_and_unlike_fedavg(tmp_path, capsys):
    own = arrange(tmp_path)
    for method in ("median", "fedavg"):
        run = [*own, f"method={method}", "method.temperature=0.5", f"paths.out={tmp_path / 'out'}"]
        assert main(run) == 0, capsys.readouterr().err
    losses = {}
    for method in ("median", "fedavg"):
        (log,) = (tmp_path / "out").glob(f"femnist/{method}/*/rounds.jsonl")
        losses[method] = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
    assert len(losses["median"]) == 3 and np.isfinite(losses["median"]).all()
    assert losses["median"] != losses["fedavg"]


def test_it_runs_in_clusters_of_clients_too(tmp_path, capsys):
    own = arrange(tmp_path)
    clustered = YAML.replace("/base/federated", "/base/clustered").replace("name: median", "name: clustered_median")
    (tmp_path / "conf" / "method" / "clustered_median.yaml").write_text(clustered)
    small = ["method.clustering.clusters=2", "method.clustering.otdd.fedwad.iterations=2", f"paths.out={tmp_path}"]
    assert main([*own, "method=clustered_median", *small]) == 0, capsys.readouterr().err
    (path,) = tmp_path.glob("femnist/clustered_median/*/result.json")
    assert json.loads(path.read_text())["clusters"]["count"] == 2
