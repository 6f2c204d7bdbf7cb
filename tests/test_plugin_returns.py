"""Entries and return values of plug-ins are checked where they enter: one line that names the entry, exit code 2."""

import pytest

from knot_runner.cli.main import main
from tests.plugin_tables import EXAMPLES, tables_restored  # noqa: F401
from tests.tiny import TINY_IMAGES, TINY_PARTIES, TINY_TAUGHT, TINY_TEXTS, replaced

CONF = EXAMPLES / "conf"
pytestmark = pytest.mark.usefixtures("tables_restored")


METHOD = """
import knot_runner as kr
from knot_runner.methods.federated import averaging
def plan(hp, state, federation, round): return {plan}
def fold(hp, state, federation, round, requests, trained): return {fold}
def init(hp, federation): return {init}
kr.METHODS["fedsam"] = kr.Method(init, plan, fold, averaging.deployed)
"""
GOOD = {
    "init": "averaging.init(hp, federation)",
    "plan": "averaging.plan(hp, state, federation, round)",
    "fold": "averaging.fold(hp, state, federation, round, requests, trained)",
}
OBJECTIVE = """
import dataclasses
import knot_runner as kr
from knot_runner.methods.federated import averaging
def mine(settings, inputs): return {objective}
def program(settings, work): return None
def plan(hp, state, federation, round):
    requests = averaging.plan(hp, state, federation, round)
    return [dataclasses.replace(request, {changed}) for request in requests]
kr.METHODS["fedsam"] = kr.Method(averaging.init, plan, averaging.fold, averaging.deployed)
"""
READER = """
import numpy as np
from knot_runner.data.images.load import IMAGE_READERS
from knot_runner.data.tasks import ImageParts, Images
def read(folder, settings):
    pixels, labels = np.zeros((60, 1, 8, 8), np.uint8), np.arange(60) % 4
    return {parts}
IMAGE_READERS["npz"] = read
"""
PARTITION = """
import numpy as np
from dataclasses import dataclass
from typing import Literal
from knot_runner.config.settings.partition import PARTITION_SETTINGS
from knot_runner.data.images.partition import PARTITIONS
from knot_runner.data.tasks import Partition
@dataclass
class Blocks:
    kind: Literal["blocks"]
    clients: int
    extra: float
def blocks(settings, task, rng):
    rows, none = [np.arange(30), np.arange(30, 60)], [np.arange(0), np.arange(0)]
    return {partition}
PARTITION_SETTINGS["blocks"], PARTITIONS["blocks"] = Blocks, blocks
"""
LOSS = """
from dataclasses import dataclass
import knot_runner as kr
@dataclass
class Mine:
    name: str
kr.LOSSES["mine"] = kr.Loss(Mine, lambda options, log_p, q, points: {values})
"""
TEXTS = """
from knot_runner.data.readers import TEXT_READERS
def read(path): return {records}
TEXT_READERS["fasttext"] = read
"""
WEIGHTING = "import torch\nimport knot_runner as kr\nkr.WEIGHTINGS['M'] = lambda q, shares, biases: {weights}\n"
TERM = """
from dataclasses import dataclass
import knot_runner as kr
@dataclass
class Settings:
    weight: float
    centred: bool = True
def make(options, inputs): return {loss}
kr.TERMS["logits"] = kr.Term(Settings, make)
"""
METRIC = "import knot_runner as kr\nkr.METRICS['mine'] = kr.Metric('mine', 'higher', lambda test: {value})\n"
FEDSAM = [*TINY_IMAGES, "method=fedsam"]
NPZ = [
    *(word for word in TINY_IMAGES if not word.startswith("partition.")), "partition=iid", "partition.clients=5",
    "task.source=local", "task.local.format=npz", "task.local.train=[a.npz]", "task.local.test=[]",
]  # fmt: skip
BLOCKS = [
    *(word for word in TINY_IMAGES if not word.startswith("partition.")),
    "partition=blocks",
    "partition.clients=2",
]
MOOD = [word for word in replaced(TINY_TEXTS, "task=mood", "method=fedavg") if not word.startswith("task.limit")]
MARGIN = [*replaced(TINY_PARTIES, "method=sinkhorn_margin")]
LOGITS = [*replaced(TINY_TAUGHT, "method=logit_matching")]

#: (plug-in, overrides, part of the message)
CASES = {
    "a function for a method": (
        "import knot_runner as kr\nkr.METHODS['fedsam'] = print\n",
        FEDSAM,
        "METHODS['fedsam'] is builtin_function_or_method <built-in function print>. Register a Method",
    ),
    "replaces a method": (
        "import knot_runner as kr\nkr.METHODS['fedavg'] = kr.METHODS['scaffold']\n",
        TINY_IMAGES,
        "plugins: {plugin}: METHODS['fedavg'] already exists. Register the new entry under another name",
    ),
    "replaces a metric": (
        "import knot_runner as kr\nkr.METRICS.update(f1=kr.METRICS['accuracy'])\n",
        TINY_IMAGES,
        "METRICS['f1'] already exists",
    ),
    "replaces a family": (
        "import dataclasses\nfrom knot_runner.config.settings import families as f\n"
        "f.register(dataclasses.replace(f.FAMILIES['federated'], name='mine'))\n",
        TINY_IMAGES,
        "METHOD_SETTINGS['fedavg'] already exists",
    ),
    "a loss of classes": (
        OBJECTIVE.format(objective="{}, lambda logits, rows: logits", changed="objective=kr.Objective(mine)"),
        FEDSAM,
        "objective mine: the loss is [8, 10] instead of [8], one per sample",
    ),
    "an objective gives None": (
        OBJECTIVE.format(objective="None", changed="objective=kr.Objective(mine)"),
        FEDSAM,
        "objective mine returned NoneType instead of (rows, loss function)",
    ),
    "a program gives None": (
        OBJECTIVE.format(objective="None", changed="program=kr.LocalProgram(program)"),
        FEDSAM,
        "program program returned NoneType instead of a LocalResult",
    ),
    "requests of another type": (METHOD.format(**{**GOOD, "plan": "['a']"}), FEDSAM, "plan returned a list with str"),
    "fewer labels": (
        READER.format(parts="ImageParts(Images(pixels, labels[:20]), None)"),
        NPZ,
        "read returned pixels uint8 [60, 1, 8, 8] instead of uint8 or float32 [20, 1, 8, 8] (train)",
    ),
    "another shape": (
        READER.format(parts="ImageParts(Images(pixels[..., :7], labels), None)"),
        NPZ,
        "read returned pixels uint8 [60, 1, 8, 7] instead of uint8 or float32 [60, 1, 8, 8] (train)",
    ),
    "uint16": (
        READER.format(parts="ImageParts(Images(pixels.astype('uint16'), labels), None)"),
        NPZ,
        "read returned pixels uint16 [60, 1, 8, 8] instead of uint8 or float32 [60, 1, 8, 8] (train)",
    ),
    "labels beyond the classes": (
        READER.format(parts="ImageParts(Images(pixels, labels + 60), None)"),
        NPZ,
        "read returned labels from 60 to 63, but task.classes has 62: 0 to 61 (train)",
    ),
    "bad test images": (
        READER.format(parts="ImageParts(Images(pixels, labels), Images(pixels, labels[:9]))"),
        NPZ,
        "read returned pixels uint8 [60, 1, 8, 8] instead of uint8 or float32 [9, 1, 8, 8] (test)",
    ),
    "negative weights": (
        WEIGHTING.format(weights="-torch.ones(q.shape[:2])"),
        MARGIN,
        "WEIGHTINGS['M']: <lambda> returned a weight that is negative or not finite",
    ),
    "a loss of the batch": (
        LOSS.format(values="q.sum()"),
        [*replaced(TINY_PARTIES, "method=entropy_a"), "~method.loss.form", "method.loss.name=mine"],
        "LOSSES['mine']: <lambda> returned losses [] instead of [8, 4] (batch, teachers)",
    ),
    "a partition gives None": (
        PARTITION.format(partition="None"),
        BLOCKS,
        "PARTITIONS['blocks']: blocks returned None instead of a Partition",
    ),
    "a client without a name": (
        PARTITION.format(partition="Partition(['a'], rows, none, [])"),
        BLOCKS,
        "blocks returned 1 names, training rows of 2 clients and test rows of 2",
    ),
    "a reader of texts gives None": (
        TEXTS.format(records="None"),
        MOOD,
        "TEXT_READERS['fasttext']: read returned None instead of records",
    ),
    "a term's loss of classes": (
        TERM.format(loss="lambda student, teachers, batch: student.logits"),
        LOGITS,
        "TERMS['logits']: the loss is [16, 10] instead of [] or [batch]",
    ),
    "a metric is NaN": (
        METRIC.format(value="float('nan')"),
        TINY_IMAGES,
        "METRICS['mine']: <lambda> returned nan instead of a finite number or None",
    ),
    "a metric is a text": (
        METRIC.format(value="'good'"),
        TINY_IMAGES,
        "METRICS['mine']: <lambda> returned 'good' instead of a finite number or None",
    ),
    "a number for a figure": (
        "import knot_runner as kr\nkr.FIGURES['mine'] = 3\n",
        TINY_IMAGES,
        "FIGURES['mine']: int 3 is not a function",
    ),
    "named like a library": ("named like a library", TINY_IMAGES, "another module is named json"),
}


@pytest.mark.parametrize("case", CASES)
def test_plugin_mistake_is_one_line(case, tmp_path, capsys):
    source, overrides, message = CASES[case]
    name = "json.py" if case == "named like a library" else "bad.py"
    plugin = tmp_path / name
    plugin.write_text(source)
    for data in ("a.npz", "shop.txt", "street.txt", "post.txt"):
        (tmp_path / data).write_text("a\n")
    command = [
        f"--config-dir={CONF}",
        *overrides,
        f"plugins=[{plugin}]",
        f"paths.data={tmp_path}",
        f"paths.out={tmp_path / 'out'}",
    ]
    assert main(command) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("knot-runner: ")]
    assert message.format(plugin=plugin) in line
    assert not list(tmp_path.glob("out/**/result.json"))
