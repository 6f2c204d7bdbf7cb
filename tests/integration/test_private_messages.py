"""Private training of methods that send more than a model, or something else, end to end: FedGen, FedDF, FedMD, FD."""

import itertools

import pytest
import torch

from knot_runner.methods.federated.accountant import epsilon_after, noise_for
from knot_runner.methods.federated.user_privacy import private_mean_logits, private_sum
from tests.accounted import accounted, mechanism
from tests.feddf_runs import run, setup_of
from tests.integration.test_private_training import PRIVATE
from tests.tiny import CLIPPED, replaced
from tests.unit.methods.federated.test_private_logits import private
from tests.unit.methods.federated.worlds import CLASSES

TRANSFER = ["partition.transfer=0.2", "method.server_distillation.batch_size=16"]
METHODS = {
    "fedgen": [],
    "feddf": TRANSFER,
    "feddf +base/term@method.server_distillation.terms.kd=kd": TRANSFER,
    "fedmd": TRANSFER,
    "feddistill": [],
}


@accounted
@pytest.mark.parametrize(("method", "messages"), [("fedgen", 1), ("feddistill", 1), ("fedmd", 1), ("feddf", 2)])
def test_epsilon_counts_a_rounds_messages(method, messages, tmp_path, capsys):
    """As one vector of so many bounded parts: noise multiplier z / sqrt(messages)."""
    result, rows, _ = run(tmp_path, *PRIVATE, *f"method={method}".split(), *METHODS[method])
    facts, delta = result["privacy"], 6**-1.1
    spent = epsilon_after(mechanism(0.5 / messages**0.5, 3, 6), delta)
    assert [row["epsilon"] for row in rows] == pytest.approx([spent(done) for done in (1, 2, 3)], rel=1e-9)
    assert facts["epsilon"] == rows[-1]["epsilon"] and facts["clipped"] is not None
    of_logits = {"messages": 1} if method == "fedgen" else {"messages": messages, "clip_logits": 10.0}
    assert {key: facts[key] for key in ("messages", "clip_logits") if key in facts} == of_logits
    released = "the clients' mean logits" if method in ("feddistill", "fedmd") else "the global models"
    assert f"it is of {released}, simulated" in capsys.readouterr().err


def test_noise_of_models_and_of_logits_differs():
    """Else the difference of the two would be free of it."""
    spec = mechanism(1.0, 1, 2)
    found = []
    for message in ("noise", "logits", "labels"):
        total, _ = private_sum(spec, 0, 0, torch.zeros(5, dtype=torch.float64), [], message)
        found.append(total)
    assert not any(torch.equal(*pair) for pair in itertools.combinations(found, 2))
    world, _ = private(noise_multiplier=1.0)
    plain, _ = private_sum(world.privacy, 3, 0, torch.zeros(9, CLASSES, dtype=torch.float64), [])
    assert torch.nn.functional.cosine_similarity(
        private_mean_logits(world.privacy, world, 0, 9, []).flatten(), plain.flatten(), 0
    ) < 0.99  # fmt: skip


@accounted
def test_noise_is_found_for_all_messages(tmp_path):
    asked = ["privacy.noise_multiplier=null", "privacy.epsilon=5", "privacy.delta=0.2", "training.clients_per_round=6"]
    words = replaced(PRIVATE, *asked)
    federation = setup_of(tmp_path, [*words, "method=feddf", *TRANSFER]).federation
    one = noise_for(mechanism(0.0, 6, 6), 3, 5.0, 0.2)
    assert federation.privacy.noise_multiplier == pytest.approx(2**0.5 * one, abs=2e-4)


@pytest.mark.parametrize(
    ("word", "attribute", "value"),
    [("privacy.label_scale=0.5", "label_scale", 0.1), ("privacy.clip_logits=3", "clip_logits", 3.0),
     ("privacy.clip_norm=null", "label_scale", 0.3)],
)  # fmt: skip
def test_label_scale_and_clip_logits_follow_their_keys(word, attribute, value, tmp_path):
    federation = setup_of(tmp_path, replaced(CLIPPED, "method=fedgen", word)).federation  # clip_norm is 0.2
    assert getattr(federation.privacy, attribute) == pytest.approx(value)
