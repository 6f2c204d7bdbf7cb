"""What goes on top of a federated method goes on every one, by configuration alone; exceptions are listed."""

from pathlib import Path

import pytest
import yaml

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings.methods.algorithms import FEDERATED_ALGORITHMS
from knot_runner.util.errors import UserError
from tests.accounted import accounted
from tests.tiny import TINY_IMAGES, replaced

CONF = Path(__file__).resolve().parents[2] / "conf" / "method"
#: What goes on top -> the words that put it there; the method's algorithm is replaced by each of those there are.
ON_TOP = {
    "chilled": ["method=fedavg_chill"],
    "clustered": ["method=clustered_fedavg"],
    "on a fleet": ["method=fedavg", "fleet=phones_partial"],
    "asynchronous": ["method=fedavg", "fleet=phones_async", "fleet.buffer=2"],
    "private": ["method=fedavg", "method.aggregation=uniform", "privacy=user_level"],
    "fine-tuned": ["method=finetune", "method.personalisation.epochs=1", "method.personalisation.saves=1"],
    "soup": ["method=soup", "method.personalisation.epochs=1", "method.personalisation.saves=1"],
    "distilled": ["method=feddf"],
}
#: (what goes on top, algorithm) -> why it does not.
NEVER = {
    ("private", "local"): "privacy: clients of algorithm=local send nothing that noise could cover",
    ("distilled", "feddistill"): "method.distil: feddistill has no global model that a server could distil",
    ("distilled", "local"): "method.distil: local has no global model that a server could distil",
}
PAIRS = [(top, algorithm) for top in ON_TOP for algorithm in FEDERATED_ALGORITHMS]


def words_of(top, algorithm):
    """The tiny run of ``algorithm`` with ``top``; what an algorithm needs is as its own YAML has it."""
    conf = yaml.safe_load((CONF / f"{algorithm}.yaml").read_text())
    own = []
    for key in FEDERATED_ALGORITHMS[algorithm].keys:
        own += _overrides(f"method.{key}", conf[key])
    words = [*ON_TOP[top], f"method.algorithm={algorithm}", *own]
    if algorithm == "fedrep":
        words.append("training.epochs=5")  # four are of the head
    if top == "distilled" or algorithm == "fedmd":
        words.append("partition.transfer=0.2")
    if algorithm == "fedmd" and top != "distilled":
        distil = yaml.safe_load((CONF.parent / "base" / "feddf.yaml").read_text())["distil"]
        distil["loss"] = {"name": "entropy", "form": "kl"}
        words += _overrides("method.distil", distil)
    return replaced(TINY_IMAGES, "training.rounds=2", *words)


def _overrides(key, value):
    """Of a setting, or of every setting below it."""
    if not isinstance(value, dict):
        return [f"++{key}={'null' if value is None else value}"]
    found = [f"++{key}={{}}"] if not value else []
    for name, below in value.items():
        found += _overrides(f"{key}.{name}", below)
    return found


def test_the_table_of_algorithms_is_all_there_is():
    assert len(FEDERATED_ALGORITHMS) == 13 and all((CONF / f"{name}.yaml").exists() for name in FEDERATED_ALGORITHMS)


@pytest.mark.parametrize("top", ON_TOP)
def test_everything_composes_with_every_method(top):
    for algorithm in FEDERATED_ALGORITHMS:
        why = NEVER.get((top, algorithm))
        if why is None:
            (job,) = compose_jobs(words_of(top, algorithm), None)
            assert job.method.algorithm == algorithm
        else:
            with pytest.raises(UserError) as caught:
                compose_jobs(words_of(top, algorithm), None)
            assert str(caught.value).startswith(why)


@pytest.mark.thorough
@accounted
@pytest.mark.parametrize(("top", "algorithm"), [pair for pair in PAIRS if pair not in NEVER])
def test_every_pair_runs(top, algorithm, tmp_path, capsys):
    assert main([*words_of(top, algorithm), f"paths.out={tmp_path}"]) == 0, capsys.readouterr().err
