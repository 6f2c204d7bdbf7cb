"""Mutual learning between KNOT's parties: the scores of each party, and refusals."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from tests.golden.messages import refuses
from tests.runs import run
from tests.tiny import TINY, TINY_PARTIES, replaced

#: Texts of four local parties and a global one.
BIASED = replaced(TINY, "task=erc")
TEXTS = [word for word in BIASED if not word.startswith("method.bias")]
IMAGES = [word for word in replaced(TINY_PARTIES, "method=dml_parties") if not word.startswith("method.bias")]
#: One party, without the global model.
ALONE = [
    *(word for word in IMAGES if not word.startswith("partition")), "partition=iid", "partition.num_clients=1",
    "method.global_model=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return run(tmp_path_factory.mktemp("parties"), *TEXTS, "method=dml_parties")


def test_dml_parties_measures_each_party_on_own_test(texts):
    result, made = texts.result, texts.tensors("predictions")
    parties = result["parties"]
    assert parties == ["MELD", "IEMOCAP", "DyDa0", "DyDa1", "DyDa2"] and result["evaluated"] == "personalized"
    points = np.array(result["labels"]["coordinates"])
    for when, prefix in (("metrics", ""), ("before", "before/")):
        for party in parties:
            found, labels = (made[f"{prefix}{party}.{what}"].numpy() for what in ("probabilities", "labels"))
            score = f1_score(labels, found.argmax(1), average="macro")
            assert result[when]["f1"][party] == pytest.approx(score)
            far = np.linalg.norm(found @ points - points[labels], axis=1)
            mean = np.mean([far[labels == label].mean() for label in np.unique(labels)])
            assert result[when]["sd"][party] == pytest.approx(mean)
            assert when == "metrics" or result["teachers"][party]["f1"] == result["before"]["f1"][party]
    assert any((made[f"{party}.probabilities"] != made[f"before/{party}.probabilities"]).any() for party in parties)


def test_global_model_may_stand_apart(texts):
    apart = run(texts.folder.parents[2], *TEXTS, "method=dml_parties", "method.global_model=false").result
    whole = texts.result
    assert apart["parties"] == whole["parties"] and apart["before"] == whole["before"]
    for metric in ("f1", "accuracy", "sd"):
        assert apart["metrics"][metric]["DyDa2"] == apart["before"][metric]["DyDa2"]
    assert apart["metrics"]["sd"]["MELD"] not in (whole["metrics"]["sd"]["MELD"], apart["before"]["sd"]["MELD"])
    assert whole["metrics"]["sd"]["DyDa2"] != whole["before"]["sd"]["DyDa2"]


@pytest.mark.parametrize("words", [
    [*IMAGES, "method.weight=-1"], [*IMAGES, "~method.loss.name"], [*IMAGES, "method.loss.form=jsd"],
    [*IMAGES, "+method.bias.texts=3"], [*IMAGES, "method.global_model=some"], ALONE,
])  # fmt: skip
def test_dml_parties_rejects_invalid_settings(words, tmp_path):
    with refuses():
        run(tmp_path, *words)
    assert not list(tmp_path.glob("artifacts/local/*"))
