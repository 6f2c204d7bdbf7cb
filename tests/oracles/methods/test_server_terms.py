"""The server's distillation by loss terms, against loops typed out by hand."""

import pytest
import torch

from knot_runner.config.settings.networks import MlpSettings
from knot_runner.methods.around.server_terms import check_server_terms
from knot_runner.models.network import Network
from knot_runner.testing import check_engines_agree
from knot_runner.util.errors import UserError
from tests.feddf_runs import TRANSFER, close, distill
from tests.oracles.methods.feddf_rounds import OneRound, by_hand
from tests.tiny import FEDDF_RKD
from tests.unit.methods.federated.plain import hidden_outputs
from tests.unit.methods.federated.worlds import CLASSES, settings

NETWORK = Network(MlpSettings("mlp", "t", [5], "logits"), (1, 2, 2), CLASSES)
SGD = {"optimizer": "sgd", "lr": 0.2}
KD = {"kd": {"weight": 0.7, "temperature": 2.0}}
#: Of features, by the distances between examples alone.
RKD = {"rkd": {"weight": 1.5, "distance": 1.0, "angle": 0.0}}


class Distilled(OneRound):
    """The same of an MLP with one hidden layer, by the server's terms."""

    def __init__(self, **spec):
        super().__init__(distill(**{"ensemble": "logits", **SGD, **spec}), hidden=[5])

    def logits(self, weights, rows):
        """(features, logits) of the MLP, typed out."""
        return hidden_outputs(weights, self.world.engine.data.pixels[rows].flatten(1))

    def answers(self):
        """(features [K, n, H], logits [K, n, C]) of the clients on the transfer set."""
        actual = [self.logits(result.weights, TRANSFER) for result in self.trained]
        return tuple(torch.stack(part) for part in zip(*actual, strict=True))


def softened(z, targets, tau):
    """tau^2 KL(q || softmax(z / tau)), mean over the batch."""
    return tau**2 * (targets * (targets.log() - torch.log_softmax(z / tau, -1))).sum(-1).mean()


def distances(features):
    """All distances between examples over their mean, as RKD has them."""
    gaps = features[:, None] - features[None]
    actual = (gaps.square().sum(-1) + torch.eye(len(features))).sqrt() * (1 - torch.eye(len(features)))
    return actual / actual[actual > 0].mean()


def huber(x):
    return torch.where(x.abs() < 1, x.square() / 2, x.abs() - 0.5)


def confidences(logits):
    """U: distance of each client's output from uniform, [K, n, 1], over their sum."""
    actual = (torch.softmax(logits, -1) - 1 / CLASSES).norm(dim=-1, keepdim=True)
    return actual / actual.sum(0)


@pytest.mark.parametrize("weighting", ["A", "U"])
def test_server_terms_weigh_features_like_logits(weighting):
    one = Distilled(terms={**KD, **RKD}, weighting=weighting)
    features, logits = one.answers()
    share = 1 / len(features) if weighting == "A" else confidences(logits)
    features, q = (share * features).sum(0), torch.softmax((share * logits).sum(0) / 2.0, -1)

    def loss(outputs, at):
        own, z = outputs
        relation = huber(distances(own) - distances(features[at])).mean()
        return 0.7 * softened(z, q[at], 2.0) + 1.5 * relation

    close(one.state["weights"], by_hand(one, loss), 1e-10)
    assert (one.state["weights"] - Distilled(terms=KD, weighting=weighting).state["weights"]).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["sinkhorn", "hint", "sp", "rkd", "pkt", "crd", "triplet"])
def test_server_terms_without_labels_teach_the_server(name):
    one = Distilled(terms={name: {"weight": 1.0}})
    assert (one.state["weights"] - one.averaged["weights"]).abs().max() > 1e-6
    assert one.row["distill_loss"] > 0


def test_server_terms_follow_the_cosine_schedule():
    steady, falling = Distilled(terms=KD, steps=6), Distilled(terms=KD, steps=6, schedule="cosine")
    assert steady.row["distill_steps"] == falling.row["distill_steps"] == 6
    moved = [(one.state["weights"] - one.averaged["weights"]).norm() for one in (steady, falling)]
    assert 0.3 * moved[0] < moved[1] < 0.9 * moved[0]


WRONG = [
    ({"ce": {"weight": 1}}, {}, r"method\.server_distillation\.terms\.ce: the term needs labels, but the transfer set"),
    ({"dkd": {"weight": 1}}, {}, r"method\.server_distillation\.terms\.dkd: the term needs labels"),
    ({"at": {"weight": 1}}, {}, r"method\.server_distillation\.terms\.at\.taps: this term needs feature maps"),
    ({"rkd": {"weight": 1}}, {"algorithm": "fedmd"}, r"method\.server_distillation\.terms\.rkd: the term needs inner"),
    ({"triplet": {"weight": 1}}, {"examples": 2}, r"method\.server_distillation\.terms\.triplet. Use at least 3"),
]


@pytest.mark.parametrize(("terms", "changes", "said"), WRONG)
def test_terms_that_cannot_be(terms, changes, said):
    changes = {"algorithm": "fedavg", "examples": 9} | changes
    config = settings(changes["algorithm"], server_distillation=distill(terms=terms, ensemble="logits"))
    with pytest.raises(UserError, match=said):
        check_server_terms(config.algorithm, config.server_distillation, [NETWORK], changes["examples"])


@pytest.mark.parametrize(("changes", "key"), [
    ({"student_temperature": 2.0}, "student_temperature"), ({"teacher_temperature": 0.5}, "teacher_temperature"),
    ({"ensemble": "each"}, "ensemble"), ({"valid": 0.2}, "valid"),
    ({"terms": {"kd": {"weight": "auto"}}}, "terms.kd.weight"),
])  # fmt: skip
def test_server_terms_refuse_loss_only_settings(changes, key):
    with pytest.raises(Exception, match="not supported (with|here)") as problem:
        distill(**{"terms": KD, "ensemble": "logits", **changes})
    assert problem.value.key == key
    if "terms" not in changes:
        distill(**changes)


#: Terms of inner layers.
RUN = [
    *FEDDF_RKD, "+method.server_distillation.terms.hint.weight=1", "training.rounds=1",
    "method.server_distillation.batch_size=16", "method.server_distillation.optimizer=sgd",
    "method.server_distillation.lr=0.05",
]  # fmt: skip


def test_engines_agree_on_terms(tmp_path):
    check_engines_agree(RUN, tmp_path)
