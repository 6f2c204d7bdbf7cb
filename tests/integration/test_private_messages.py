"""Private training with methods that send more than a model: FedGen, FedDF, FedMD and FD."""

import itertools
from dataclasses import replace

import pytest
import torch

from knot_runner.methods.around.privacy import clip, reduce
from knot_runner.methods.around.privacy.accountant import epsilon_after, noise_for
from knot_runner.methods.contract import METHODS as METHODS_TABLE
from knot_runner.methods.contract import Sent
from knot_runner.methods.federated.averaging import FEDAVG
from knot_runner.util.errors import UserError
from tests.accounted import accounted, mechanism, private_of
from tests.feddf_runs import run
from tests.golden.messages import refuses
from tests.integration.test_private_training import PRIVATE
from tests.tiny import CLIPPED, replaced
from tests.unit.methods.federated.worlds import Unaccounted

TRANSFER = ["partition.transfer=0.2", "method.server_distillation.batch_size=16"]


@accounted
@pytest.mark.parametrize("method", ["scaffold", "fedgen", "feddistill", "fedmd", "feddf"])
def test_epsilon_counts_a_rounds_messages(method, tmp_path, capsys):
    """Several messages per round count as one with the noise multiplier z / sqrt(messages)."""
    messages = 2 if method == "feddf" else 1
    transfer = TRANSFER if method in ("fedmd", "feddf") else []
    result, rows, _ = run(tmp_path, *PRIVATE, f"method={method}", *transfer)
    facts = result["privacy"]
    spent = epsilon_after(mechanism(0.5 / messages**0.5, 3, 6, rounds=3, delta=6**-1.1))
    assert [row["epsilon"] for row in rows] == pytest.approx([spent(done) for done in (1, 2, 3)], rel=1e-9)
    assert facts["epsilon"] == rows[-1]["epsilon"] and facts["clipped"] is not None
    of_logits = {} if method in ("scaffold", "fedgen") else {"clip_logits": 10.0}
    assert {key: facts[key] for key in ("messages", "clip_logits") if key in facts} == {
        "messages": messages
    } | of_logits
    released = "the clients' mean logits" if method in ("feddistill", "fedmd") else "the global models"
    assert f"Epsilon covers {released}, not" in capsys.readouterr().err


def test_noise_of_models_and_of_logits_differs():
    """Equal noise would cancel in the difference of two messages; here all have one size and bound."""
    spec, zeros = Unaccounted(1.0, 1.0, "poisson", 1, 2), torch.zeros(3, 3, dtype=torch.float64)

    def noise(phase, name):
        sent = [clip(spec, Sent(0, 1, {name: zeros}), phase)]
        return reduce(spec, 0, True, 0, phase, sent, lambda: {name: zeros})[0][name].flatten()

    found = [noise(1, "update"), noise(2, "logits"), noise(2, "labels")]
    for one, other in itertools.combinations(found, 2):
        assert abs(float(torch.nn.functional.cosine_similarity(one, other, 0))) < 0.99


@accounted
def test_noise_is_found_for_all_messages(tmp_path):
    asked = ["privacy.noise_multiplier=null", "privacy.epsilon=5", "privacy.delta=0.2", "training.clients_per_round=6"]
    words = replaced(PRIVATE, *asked)
    method, _, _ = private_of(tmp_path, [*words, "method=feddf", *TRANSFER])
    one = noise_for(mechanism(0.0, 6, 6, rounds=3, delta=0.2), 5.0)
    found = method.facts(3, [])["privacy"]["noise_multiplier"]
    assert found == pytest.approx(2**0.5 * one, abs=2e-4)


@pytest.mark.parametrize(
    ("word", "scale"), [("privacy.label_scale=0.5", 0.5 * 0.2), ("privacy.clip_norm=null", 0.3)]
)  # fmt: skip
def test_label_scale_is_relative_to_clip_norm(word, scale, tmp_path):
    method, _, _ = private_of(tmp_path, replaced(CLIPPED, "method=fedgen", word))  # clip_norm is 0.2
    parts = {"update": torch.zeros(2), "labels": torch.tensor([0.6, 0.8])}
    assert method.send(Sent(0, 1, parts), 1).facts["norm"] == pytest.approx(scale)


def test_clip_logits_bounds_root_mean_square_of_rows(tmp_path):
    """The centered rows (30, -30) and (40, -40) have the norm 50 sqrt(2), which is clipped to 3 sqrt(2)."""
    method, _, _ = private_of(tmp_path, replaced(CLIPPED, "method=feddf", "privacy.clip_logits=3", *TRANSFER))
    logits = torch.tensor([[30.0, -30.0], [40.0, -40.0]])
    sent = method.send(Sent(0, 1, {"logits": logits + torch.tensor([[7.0], [1.0]])}), 2)
    assert sent.facts["norm"] == pytest.approx(50 * 2**0.5)
    torch.testing.assert_close(sent.parts["logits"], logits * 3 / 50)


@pytest.mark.parametrize("each", [True, False], ids=["reads each message", "reads none"])
def test_privacy_refuses_methods_without_a_mean(each, tmp_path, monkeypatch):
    other = replace(FEDAVG, fold=None, fold_each=(lambda config, state, *_: (state, {})) if each else None)
    monkeypatch.setitem(METHODS_TABLE.data, "fedavg", other)
    with pytest.raises(UserError, match="the server of this method reads each message" if each else "send nothing, so"):
        private_of(tmp_path, [*CLIPPED, "method=fedavg"])


def test_privacy_refuses_delta_of_one_client(tmp_path):
    words = replaced(CLIPPED, "method=fedavg", "training.clients_per_round=1")
    private_of(tmp_path, replaced(words, "partition.num_clients=2"))
    private_of(tmp_path, replaced(words, "partition.num_clients=1", "privacy.delta=0.1"))
    with refuses():
        private_of(tmp_path, replaced(words, "partition.num_clients=1"))


@pytest.mark.parametrize(
    "words", [["weighting=E"], ["ensemble=each"]], ids=["weighted by certainty", "each a teacher"]
)  # fmt: skip
@pytest.mark.parametrize("method", ["feddf", "fedmd"])
def test_privacy_refuses_servers_that_read_each_clients_logits(words, method, tmp_path):
    own = [f"method.server_distillation.{word}" for word in words]
    with pytest.raises(UserError, match="reads each client's logits"):
        private_of(tmp_path, replaced(CLIPPED, f"method={method}", *TRANSFER, *own))
