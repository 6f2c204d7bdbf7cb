"""gld23k and MobileNetV2 from the command line: the preset on a fake of 12 images, and refusals."""

import json

import knot_runner as kr
from tests.gld23k import write_gld23k

#: the preset, for one round of two small images a batch
NARROW = ["model.width=0.1", "model.last=8", "model.groups=4"]
SHORT = ["training.rounds=1", "training.local_epochs=1", "training.clients_per_round=3", "training.batch_size=2",
         "training.evaluate_every=1", "hardware.num_workers=1"]  # fmt: skip
OWN = [f"method.personalization.{word}" for word in ("epochs=1", "checkpoints=1", "alphas=[0,0.5,1]")]


def test_gld23k_preset_runs_on_twelve_images(tmp_path):
    data, out = write_gld23k(tmp_path / "data"), tmp_path / "out"
    words = ["experiment=soup/gld23k", "arm=soup", "seed=0", f"paths.data_dir={data}", f"paths.output_dir={out}"]
    (job,) = kr.compose([*words, "task.shape=[3,16,16]", *NARROW, *SHORT, *OWN])
    folder = kr.run(job).folder
    result = json.loads((folder / "result.json").read_text())
    assert (result["task"], result["model"], result["method"]) == ("gld23k", "mobilenet_v2_gn", "soup")
    alphas = [point["alpha"] for point in result["personalization"]["points"]]
    assert result["clients"] == 3 and alphas[-3:] == [0, 0.5, 1]
    names = json.loads((folder / "partition.json").read_text())
    assert all(user in json.dumps(names) for user in ("77", "5", "1234"))
