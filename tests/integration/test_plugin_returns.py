"""Invalid entries and return values of plug-ins are reported in one line that names the entry."""

import pytest

from tests.forked import Forked
from tests.golden.messages import refused
from tests.tiny import EXAMPLES, TINY_IMAGES, TINY_PARTIES, TINY_TAUGHT, TINY_TEXTS, replaced

CONF = EXAMPLES / "conf"


METHOD = """
import torch
import knot_runner as kr
from knot_runner.methods.federated import averaging
def plan(config, state, federation, round): return {plan}
def message(config, state, federation, work): return {message}
def fold(config, state, federation, round, mean, share): return {fold}
def init(config, federation): return {init}
kr.METHODS["fedsam"] = kr.Method(init, plan, message, fold, averaging.deployed)
"""
GOOD = {
    "init": "averaging.init(config, federation)",
    "plan": "averaging.plan(config, state, federation, round)",
    "message": "averaging.message(config, state, federation, work)",
    "fold": "averaging.fold(config, state, federation, round, mean, share)",
}
METHOD_OF = "import dataclasses\nimport knot_runner as kr\nkr.METHODS['fedsam'] = dataclasses.replace("
OBJECTIVE = """
import dataclasses
import knot_runner as kr
from knot_runner.methods.federated import averaging
def mine(settings, inputs): return {objective}
def program(settings, work): return None
def plan(config, state, federation, round):
    requests = averaging.plan(config, state, federation, round)
    return [dataclasses.replace(request, {changed}) for request in requests]
kr.METHODS["fedsam"] = dataclasses.replace(kr.METHODS["fedavg"], plan=plan)
"""
#: After the examples of their kinds.
READER = """
from knot_runner.data.tasks import ImageParts
pixels, labels = np.zeros((60, 1, 8, 8), np.uint8), np.arange(60) % 4
def read(folder, settings): return {parts}
IMAGE_READERS["npz"] = read
"""
PARTITION = """
from knot_runner.data.tasks import Partition
rows, none = [np.arange(30), np.arange(30, 60)], [np.arange(0), np.arange(0)]
def blocks(settings, task, rng): return {partition}
PARTITIONS["blocks"] = blocks
"""
LOSS = "\nkr.LOSSES['mine'] = kr.Loss(Distance, lambda options, log_p, q, points: {values})\n"
TEXTS = "\ndef read(path): return {records}\nTEXT_READERS['fasttext'] = read\n"
FAMILY = """
import dataclasses
from knot_runner.config.settings import families as f
f.register(dataclasses.replace(f.FAMILIES['federated'], name='mine'))
"""
WEIGHTING = "import torch\nimport knot_runner as kr\nkr.WEIGHTINGS['M'] = lambda q, shares, biases: {weights}\n"
TERM = "\ndef make(options, inputs): return {loss}\nkr.TERMS['logits'] = kr.Term(LogitTermSettings, make)\n"
METRIC = "import knot_runner as kr\nkr.METRICS['mine'] = kr.Metric('mine', 'higher', lambda test: {value})\n"
SUMS = "import knot_runner as kr\nkr.METRICS['mine'] = kr.Metric('mine', 'higher', of_sums=lambda sums: {sums})\n"
FEDSAM = [*TINY_IMAGES, "method=fedsam", "~method.rho"]
NPZ = [
    *(word for word in TINY_IMAGES if not word.startswith("partition.")), "partition=iid", "partition.num_clients=5",
    "task.source=local", "task.local.format=npz", "task.local.train=[a.npz]", "task.local.test=[]",
]  # fmt: skip
BLOCKS = [
    *(word for word in TINY_IMAGES if not word.startswith("partition.")), "partition=blocks", "partition.num_clients=2",
]  # fmt: skip
MOOD = [word for word in replaced(TINY_TEXTS, "task=mood", "method=fedavg") if not word.startswith("task.max_examples")]
MINE = replaced(TINY_PARTIES, "method=entropy_a", "method.loss.name=mine", "~method.loss.form", "+method.loss.scale=1")
MARGIN = replaced(TINY_PARTIES, "method=sinkhorn_margin")
LOGITS = replaced(TINY_TAUGHT, "method=logit_matching")


def method(**changes):
    return METHOD.format(**{**GOOD, **changes})


def objective(made, changed="objective=kr.Objective(mine)"):
    return OBJECTIVE.format(objective=made, changed=changed)


def after(example, line, **values):
    """Return the code of an example plug-in with a line that replaces its entry."""
    return (EXAMPLES / f"own_{example}.py").read_text() + line.format(**values)


def reader(pixels="pixels", labels="labels"):
    return after("reader", READER, parts=f"ImageParts(Images({pixels}, {labels}), None)")


def partition(made):
    return after("partition", PARTITION, partition=made), BLOCKS


def term(made):
    return after("term", TERM, loss=made), LOGITS


CASES = {  # plug-in, overrides
    "plan gives None": (method(plan="None"), FEDSAM),
    "plan ends in round 1": (method(plan="[]"), FEDSAM),
    "plan ends before an evaluation": (
        method(plan="averaging.plan(config, state, federation, round)[: 3 - round * 3]"),
        [*FEDSAM, "training.evaluate_every=3"],
    ),
    "requests of another type": (method(plan="['a']"), FEDSAM),
    "message gives None": (method(message="None"), FEDSAM),
    "request for an unknown client": (objective("None", "client=9"), FEDSAM),
    "messages of two shapes": (method(message="{'update': torch.ones(work.client + 1)}"), FEDSAM),
    "private messages of two shapes": (
        method(message="averaging.message(config, state, federation, work) | {'a': torch.ones(work.client + 1)}"),
        [*FEDSAM, "privacy=user_level", "privacy.noise_multiplier=0"],
    ),
    "message of a number": (method(message="{'update': 1.0}"), FEDSAM),
    "fold gives None": (method(fold="None"), FEDSAM),
    "fold gives the update": (method(fold="({**state, 'weights': mean['update'][:3]}, {})"), FEDSAM),
    "keep gives a number": (f"{METHOD_OF}kr.METHODS['fedavg'], keep=lambda *known: {{'a': 1}})\n", FEDSAM),
    "observe gives None": (f"{METHOD_OF}kr.METHODS['fedavg'], observe=lambda works: None)\n", FEDSAM),
    "fold gives a state alone": (method(fold="(state, None)"), FEDSAM),
    "fold logs the round": (method(fold="(state, {'round': 1})"), FEDSAM),
    "fold logs a metric": (method(fold="(state, {'accuracy': 1.0})"), FEDSAM),
    "fold logs a NaN": (method(fold="(state, {'norm': float('nan')})"), FEDSAM),
    "init gives None": (method(init="None"), FEDSAM),
    "a method without a model": (f"{METHOD_OF}kr.METHODS['fedavg'], deployed=None)\n", FEDSAM),
    "a message without a fold": (f"{METHOD_OF}kr.METHODS['fedavg'], fold=None)\n", FEDSAM),
    "no model": (method().replace("averaging.deployed", "lambda *known: None"), FEDSAM),
    "a function for a method": ("import knot_runner as kr\nkr.METHODS['fedsam'] = print\n", FEDSAM),
    "replaces a method": ("import knot_runner as kr\nkr.METHODS['fedavg'] = kr.METHODS['scaffold']\n", TINY_IMAGES),
    "replaces a family": (FAMILY, TINY_IMAGES),
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
    "weights of classes": (WEIGHTING.format(weights="q"), MARGIN),
    "a loss of the batch": (after("loss", LOSS, values="q.sum()"), MINE),
    "a partition gives None": partition("None"),
    "rows of no image": partition("Partition(['a', 'b'], [rows[0], rows[1] + 900], none, [])"),
    "masks for rows": partition("Partition(['a', 'b'], [row > 5 for row in rows], none, [])"),
    "records of one value": (after("text_reader", TEXTS, records="iter([{'text': 'a', 'label': 'low'}])"), MOOD),
    "a term gives None": term("None"),
    "a term's loss of classes": term("lambda student, teachers, batch: student.logits"),
    "a metric named like a log value": (METRIC.format(value="1.0").replace("['mine']", "['steps']"), TINY_IMAGES),
    "a metric is NaN": (METRIC.format(value="float('nan')"), TINY_IMAGES),
    "sums of another shape": (SUMS.format(sums="sums.truth"), TINY_IMAGES),
    "a value for each example": (SUMS.format(sums="1, of_examples=lambda test: test.labels[:1]"), TINY_IMAGES),
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
    places = f"plugins=['{plugin}']", f"paths.data_dir={tmp_path}", f"paths.output_dir={tmp_path / 'out'}"
    refused(capsys, f"--config-dir={CONF}", *overrides, *places)


@pytest.mark.parametrize("code", ["os._exit(0)", "sys.exit()"])
def test_plugin_calling_exit_is_rejected(code, tmp_path):
    fold = f"__import__('{code.partition('.')[0]}').{code.partition('.')[2]}"
    (tmp_path / "bad.py").write_text(METHOD.format(**{**GOOD, "fold": fold}))
    places = f"plugins=['{tmp_path / 'bad.py'}']", f"paths.output_dir={tmp_path / 'out'}"
    ended = Forked(f"--config-dir={CONF}", *FEDSAM, *places)
    assert ended.wait() == 2 and "bad.py: the code called exit(" in ended.said
