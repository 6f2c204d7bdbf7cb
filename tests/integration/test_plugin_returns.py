"""Entries and return values of plug-ins are checked where they enter: one line that names the entry, exit code 2."""

import subprocess
import sys

import pytest

from tests.golden.messages import refused
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


def method(**changes):
    return METHOD.format(**{**GOOD, **changes})


def objective(made, changed="objective=kr.Objective(mine)"):
    return OBJECTIVE.format(objective=made, changed=changed)


def reader(pixels="pixels", labels="labels"):
    return READER.format(parts=f"ImageParts(Images({pixels}, {labels}), None)")


#: plug-in, overrides
CASES = {
    "plan gives None": (method(plan="None"), FEDSAM),
    "requests of another type": (method(plan="['a']"), FEDSAM),
    "fold gives None": (method(fold="None"), FEDSAM),
    "fold gives a state alone": (method(fold="(state, None)"), FEDSAM),
    "init gives None": (method(init="None"), FEDSAM),
    "no model": (method().replace("averaging.deployed", "lambda *known: None"), FEDSAM),
    "a function for a method": ("import knot_runner as kr\nkr.METHODS['fedsam'] = print\n", FEDSAM),
    "replaces a method": ("import knot_runner as kr\nkr.METHODS['fedavg'] = kr.METHODS['scaffold']\n", TINY_IMAGES),
    "replaces a family": (
        "import dataclasses\nfrom knot_runner.config.settings import families as f\n"
        "f.register(dataclasses.replace(f.FAMILIES['federated'], name='mine'))\n",
        TINY_IMAGES,
    ),
    "exits while it is imported": ("import sys\nsys.exit(0)\n", TINY_IMAGES),
    "a loss of classes": (objective("{}, lambda logits, rows: logits"), FEDSAM),
    "an objective gives None": (objective("None"), FEDSAM),
    "a program gives None": (objective("None", "program=kr.LocalProgram(program)"), FEDSAM),
    "fewer labels": (reader(labels="labels[:20]"), NPZ),
    "another shape": (reader(pixels="pixels[..., :7]"), NPZ),
    "uint16": (reader(pixels="pixels.astype('uint16')"), NPZ),
    "float 0 to 255": (reader(pixels="pixels.astype('float32') + 255"), NPZ),
    "NaN pixels": (reader(pixels="np.full((60, 1, 8, 8), np.nan, 'float32')"), NPZ),
    "labels beyond the classes": (reader(labels="labels + 60"), NPZ),
    "negative weights": (WEIGHTING.format(weights="-torch.ones(q.shape[:2])"), MARGIN),
    "a weighting gives None": (WEIGHTING.format(weights="None"), MARGIN),
    "a loss of the batch": (
        LOSS.format(values="q.sum()"),
        [*replaced(TINY_PARTIES, "method=entropy_a"), "~method.loss.form", "method.loss.name=mine"],
    ),
    "a partition gives None": (PARTITION.format(partition="None"), BLOCKS),
    "rows of no image": (
        PARTITION.format(partition="Partition(['a', 'b'], [rows[0], rows[1] + 900], none, [])"),
        BLOCKS,
    ),
    "masks for rows": (
        PARTITION.format(partition="Partition(['a', 'b'], [row > 5 for row in rows], none, [])"),
        BLOCKS,
    ),
    "records of one value": (TEXTS.format(records="iter([{'text': 'a', 'label': 'low'}])"), MOOD),
    "a term gives None": (TERM.format(loss="None"), LOGITS),
    "a term's loss of classes": (TERM.format(loss="lambda student, teachers, batch: student.logits"), LOGITS),
    "a metric is NaN": (METRIC.format(value="float('nan')"), TINY_IMAGES),
    "a number for a figure": ("import knot_runner as kr\nkr.FIGURES['mine'] = 3\n", TINY_IMAGES),
    "named like a library": ("named like a library", TINY_IMAGES),
}


@pytest.mark.parametrize("case", CASES)
def test_plugin_mistake_is_one_line(case, tmp_path, capsys):
    source, overrides = CASES[case]
    plugin = tmp_path / ("json.py" if case == "named like a library" else "bad.py")
    plugin.write_text(source)
    for data in ("a.npz", "shop.txt", "street.txt", "post.txt"):
        (tmp_path / data).write_text("a\n")
    places = f"plugins=['{plugin}']", f"paths.data={tmp_path}", f"paths.out={tmp_path / 'out'}"
    refused(capsys, f"--config-dir={CONF}", *overrides, *places)


@pytest.mark.parametrize("code", ["os._exit(0)", pytest.param("sys.exit()", marks=pytest.mark.thorough)])
def test_plugin_that_exits_the_process_is_an_error(code, tmp_path):
    fold = f"__import__('{code.partition('.')[0]}').{code.partition('.')[2]}"
    (tmp_path / "bad.py").write_text(METHOD.format(**{**GOOD, "fold": fold}))
    command = [f"--config-dir={CONF}", *FEDSAM, f"plugins=['{tmp_path / 'bad.py'}']", f"paths.out={tmp_path / 'out'}"]
    ended = subprocess.run([sys.executable, "-m", "knot_runner", *command], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "bad.py: the code called exit(" in ended.stderr
