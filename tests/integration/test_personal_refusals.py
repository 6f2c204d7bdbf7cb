"""What personalisation and the K x K record refuse, each in one line."""

import pytest

from knot_runner.cli.main import main
from tests.tiny import TINY_IMAGES, replaced

REFUSED = {
    "method.personalisation.alphas=[0,1.5]": r"alphas: [1.5] is not within [0, 1]; extrapolate=true allows it",
    "method.personalisation.alphas=[]": "alphas: is empty",
    "method.personalisation.saves=3": "saves: 3 do not divide the 5 epochs",
    "method.personalisation.kind=soupe": "no personalisation 'soupe' (did you mean 'soup'?)",
    "method.personalisation.learning_rate=1": "there is no such setting",
    "partition=centralised": "one client has no others to be measured on",
    "partition.server=0.2": "partition.server: method=soup leaves the clients all training images",
    "partition.unseen=0.99": "leaves none to train",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_cannot_be_is_one_line(tmp_path, capsys, override):
    small = [one for one in TINY_IMAGES if not (override.startswith("partition=") and one.startswith("partition."))]
    assert main([*replaced(small, "method=soup", override), f"paths.out={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert REFUSED[override] in said and "Traceback" not in said
    assert said.strip().splitlines()[-1].startswith("knot-runner:") and said.count("knot-runner:") == 1


def test_stopping_at_a_target_and_methods_without_clients_are_refused(tmp_path, capsys):
    stop = ["method=finetune", "training.target=0.5", "training.stop_at_target=true"]
    assert main([*TINY_IMAGES, *stop, f"paths.out={tmp_path}"]) == 2
    assert "training.stop_at_target: personalisation begins with the model of the last round" in capsys.readouterr().err
    assert main(["task=sa", "evaluate.matrix=end", f"paths.out={tmp_path}"]) == 2
    assert "evaluate.matrix: method=sinkhorn_e has no clients that train in rounds" in capsys.readouterr().err
    clustered = ["method=clustered_fedavg", "method.clustering.clusters=2"]
    assert main([*TINY_IMAGES, *clustered, "partition.unseen=0.3", f"paths.out={tmp_path}"]) == 2
    assert "partition.unseen: clusters are of all clients" in capsys.readouterr().err
