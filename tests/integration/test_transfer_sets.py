"""Another data set as the transfer set of KNOT and of federated distillation on images."""

import numpy as np
import pytest
import torch

from knot_runner import compose
from knot_runner.cli.main import main
from tests.feddf_runs import setup_of
from tests.golden.messages import refused
from tests.of_papers import of_papers
from tests.oracles.plain_knot import plain_knot
from tests.runs import run
from tests.tiny import FEDDF_SINKHORN_E, TINY_IMAGES, TINY_PARTIES, replaced
from tests.unit.data.test_parties import LEVELS, write_usps

#: Sixty of the digits that stand in for USPS.
OTHER = ["transfer=usps", "transfer.max_examples=60"]
LOCAL = ["transfer=usps", "transfer.source=local"]


def run_ids(small, *variants):
    return [compose(replaced(small, *words))[0].run_id for words in variants]


def test_knot_equals_a_plain_float64_loop(tmp_path):
    """Biases come from random images of the other data set; the loss is regularized, so its gradient has no jump."""
    words = ["method=sinkhorn_e", *OTHER, "method.bias.noise=shuffled", "method.loss.solver=newton"]
    words = replaced(TINY_PARTIES, *words, "method.loss.epsilon=0.5", "task.geometry=superclasses")
    record = run(tmp_path, *words)
    result, found = record.result, record.tensors("predictions")["server.probabilities"].numpy()
    np.testing.assert_allclose(found, plain_knot(words), atol=5e-6)
    sizes = result["datasets"]
    assert sizes["transfer"] == {"role": "transfer", "train": 54, "valid": 6}
    assert sum(own["train"] + own["valid"] for name, own in sizes.items() if name != "transfer") == 400
    assert any("transfer=usps: 60 images of another data set are the transfer set" in note for note in result["notes"])


def test_server_transfer_set_leaves_clients_all_images(tmp_path):
    words = [*TINY_IMAGES, *FEDDF_SINKHORN_E, "method.server_distillation.bias.images=30", *OTHER]
    made = setup_of(tmp_path, words)
    federation = made.federation
    assert torch.cat(federation.rows("train")).sort().values.tolist() == list(range(300)) and made.held_out == 0
    assert federation.server.transfer.tolist() == list(range(300, 360))
    assert federation.server.random.tolist() == list(range(360, 390))
    assert set(made.data.labels[300:].tolist()) == {-1} and -1 not in made.data.labels[:300]
    assert torch.equal(made.data.pixels[300:360], torch.from_numpy(made.task.transfer.pixels))
    alone = setup_of(tmp_path, [*TINY_IMAGES, "method=fedavg"])
    assert [a.tolist() for a in federation.rows("train")] == [b.tolist() for b in alone.federation.rows("train")]
    assert torch.equal(made.data.pixels[:300], alone.data.pixels)


def test_transfer_set_is_in_the_run_id():
    plain, none, other, few = run_ids(TINY_PARTIES, [], ["transfer=none"], ["transfer=usps"], OTHER)
    assert plain == none and len({plain, other, few}) == 3
    fedavg, beside = run_ids(TINY_IMAGES, ["method=fedavg"], ["method=fedavg", *OTHER])
    assert fedavg == beside  # which does not read it


def test_transfer_set_is_on_record(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    write_usps(tmp_path / "data", np.arange(30) % 10)
    words = replaced(TINY_IMAGES, "method=feddf", "training.rounds=1", *LOCAL, f"paths.data_dir={tmp_path / 'data'}")
    result = run(tmp_path / "out", *words).result
    assert [file["path"] for file in result["files"]] == ["usps/zip.test.gz"]
    before = result["data"]
    (tmp_path / "data" / "usps" / "zip.test.gz").unlink()
    assert main(["check", "--quick", *words, "seed=1", f"paths.output_dir={tmp_path / 'out'}"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "zip.test.gz: file not found (data set usps)" in said and "Run 'knot-runner data femnist usps'" in said
    write_usps(tmp_path / "data", np.arange(30) % 10, -LEVELS)
    assert main([*words, f"paths.output_dir={tmp_path / 'out'}"]) == 2
    assert "usps/zip.test.gz changed. Use --stale=rerun" in " ".join(capsys.readouterr().err.split())
    assert before != run(tmp_path / "new", *words).result["data"]


BAD = [
    ["transfer=uspss"], ["transfer.max_examples=20"], [*OTHER, "partition.transfer=0.2"], ["transfer=femnist"],
    ["transfer=usps", "transfer.max_examples=5000"], ["transfer=own", "paths.data_dir=."], [*LOCAL,
    "paths.data_dir=null"], [*OTHER, "transfer.local.format=xml"],
    [*OTHER, "transfer.shape=[2,16,16]", "transfer.mean=[0,0]", "transfer.std=[1,1]"], ["task.local.format=files"],
]  # fmt: skip
NOT_OF_IMAGES = [
    ["task=erc", "transfer=usps"], ["task=erc", "transfer=own"], ["task=gaussians", "transfer=usps"],
    ["task=mnist", "method=kd", "transfer=usps"],
]  # fmt: skip
REFUSED = [*(replaced(TINY_PARTIES, *words) for words in BAD), *NOT_OF_IMAGES]


@pytest.mark.parametrize(
    "words", of_papers((words,) for words in REFUSED), ids=[" ".join(words) for words in (*BAD, *NOT_OF_IMAGES)]
)
def test_transfer_set_refuses_unfit_settings(words, tmp_path, capsys):
    refused(capsys, *words, f"paths.output_dir={tmp_path}")
