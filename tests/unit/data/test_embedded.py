"""Generated text: the same everywhere, with something to learn, of the right distribution."""

import functools

import numpy as np
import pytest

from knot_runner.config.settings.text_tasks import SplitFile
from knot_runner.data.embedded import label_counts, split_sizes
from knot_runner.data.load import load_task
from tests.golden.messages import refuses
from tests.unit.data.text_tasks import preset

KINDS = ("sa", "erc", "nli")


@functools.cache
def task(name):
    """The preset's generated task, made once."""
    return load_task(preset(name), None)


@pytest.mark.parametrize("name", KINDS)
def test_generated_texts_have_configured_sizes_and_shares(name):
    settings = preset(name)
    made = task(name)
    assert any("generated" in note for note in made.notes)
    for party, data in made.datasets.items():
        source = settings.datasets[party].embedded
        sizes = split_sizes(source.rows, settings.split)
        wanted = ["train", "valid"] if data.role == "transfer" else ["train", "valid", "test"]
        assert {key: len(part) for key, part in data.splits.items()} == {key: sizes[key] for key in wanted}
        for part in data.splits.values():
            counts = np.bincount(part.labels + 1, minlength=len(source.shares) + 1)
            shown = [0, *label_counts(len(part), source.shares)]
            assert counts.tolist() == ([len(part)] + [0] * len(source.shares) if data.role == "transfer" else shown)


@pytest.mark.parametrize(("name", "digest"), [
    ("sa", "aab2197e741674e42967322ed390667fff17b466751adfc7022b59e9e4c506ca"),
    ("erc", "614244ce8f71772f70b40eecab969ba79d79a57f3c84369f47b7e30dce60ef79"),
    ("nli", "99d9423217bbcb9061e1da0d4827d5d2e75acf20077e8554617bf5bdd31509ca"),
])  # fmt: skip
def test_generated_texts_match_recorded_digests_and_differ(name, digest):
    """Runs on generated text are compared with those of earlier versions."""
    digests = [part.digest for data in task(name).datasets.values() for part in data.splits.values()]
    assert task(name).digest == digest and len(set(digests)) == len(digests)


def test_embedded_seed_changes_only_its_party():
    settings = preset("sa")
    settings.datasets["Cell"].embedded.seed = 5
    changed, before = load_task(settings, None), task("sa")
    for name, data in changed.datasets.items():
        same = data.splits["train"].digest == before.datasets[name].splits["train"].digest
        assert same == (name != "Cell")


def test_generated_dialogues_give_context():
    texts = task("erc").datasets["MELD"].splits["train"].texts
    lengths = {text.count("[SEP]") for text in texts}
    assert lengths == set(range(8))
    assert all(
        b.split(" [SEP] ")[1:] == a.split(" [SEP] ")[:7] for a, b in zip(texts, texts[1:], strict=False) if "[SEP]" in b
    )
    settings = preset("erc", context=0)
    assert not any("[SEP]" in text for text in load_task(settings, None).datasets["MELD"].splits["train"].texts)


@pytest.mark.parametrize(("key", "value"), [("domain", "toy"), ("shares", [0.5, 0.5]), ("", None), ("split", 1e-5)])
def test_generate_refuses(key, value):
    settings = preset("sa", **({"split": {"valid": value, "test": 0.2, "seed": 1}} if key == "split" else {}))
    toys = settings.datasets["Toys"]
    if key in ("domain", "shares"):
        setattr(toys.embedded, key, value)
    elif not key:
        toys.embedded = None
    with refuses():
        load_task(settings, None)


def test_label_counts_and_split_sizes_add_up():
    assert label_counts(10, [0.34, 0.33, 0.33]) == [4, 3, 3]
    assert split_sizes(1500, SplitFile(0.102, 0.198, 2021)) == {"train": 1050, "valid": 153, "test": 297}
