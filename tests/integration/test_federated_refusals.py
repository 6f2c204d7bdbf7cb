"""Invalid input of federated runs is refused in one line that names the key."""

import pytest

from tests.golden.messages import refused
from tests.of_papers import of_papers
from tests.tiny import CLIPPED, CLUSTERED_IMAGES, FEDDF_RKD, TINY_IMAGES, TINY_TEXTS

KIND = "+base/personalization@method.personalization"
#: What is refused of a small run.
REFUSED = [
    *((TINY_IMAGES, words) for words in [
        ["method.temperature=0"], ["method.temperature=-1"], ["plugins=['']"], ["method.shared=[]"],
        ["training.clients_per_round=0"], ["training.batch_size=500"], ["training.lr=0"], ["training.lr=inf"],
        ["method=fedprox", "method.mu=null"], ["+method.mu=1"], ["method=federated_distance"], ["method=sinkhorn_e"],
        ["model=bert_tiny"], ["partition=null"], ["~partition"], ["partition=dirichlt"],
        ["partition.kind=dirichlt"], ["partition=iid", "partition.num_clients=400"],
        ["hardware.precision=bf16", "hardware.engine=loop"], ["hardware.engine=leen"], ["training.target=2"],
        ["training.stop_at_target=true"], ["method=fedrep", "method.head_epochs=2"],
        ["task.source=local", "paths.data_dir=null"], ["task.source=local", "paths.data_dir=/nowhere"],
        ["task.shape=[1,28]"], ["task.mean=[0,0]"], ["task.name=../up"], ["model.kind=[]"], ["method.algorithm={}"],
        ["task.cut_seed=-1"], ["hardware.threads=0"], ["+method.temprature=3"],
        ["model=cnn_mcmahan", "task.shape=[1,2,2]"], ["method=fedper", "model.hidden=[]"],
        ["method=fedsoup", "partition.valid=0"], ["partition.by=speaker"],
        # a fleet
        ["fleet=phone"], ["fleet=phones", "fleet.mode=both"], ["fleet=phones", "fleet.buffer=2"],
        ["fleet=phones", "fleet.late=partial"], ["fleet=phones", "fleet.deadline=0"],
        ["fleet=phones", "fleet.deadline=0.001"], ["fleet=phones", "fleet.dropout=1"],
        ["fleet=phones", "fleet.compute.median=0"],
        ["fleet=phones", "fleet.compute.sigma=-1"], ["fleet=phones", "fleet.availability.share=0"],
        ["fleet=phones", "fleet.availability.share=1.1"], ["fleet=phones", "+fleet.deadlin=3"],
        ["fleet=phones_async", "fleet.buffer=0"], ["fleet=phones_async", "fleet.buffer=4"],
        ["fleet=phones_async", "fleet.deadline=9"], ["fleet=phones_async", "fleet.late=partial"],
        ["fleet=phones_async", "fleet.staleness_exponent=-1"],
        ["fleet=phones_async", "method=clustered_fedper"],
        ["method.stragglers={share:0.3,temperature:0.25,epochs:2,by:speed}"],
        ["task=sa", "fleet=phones"], ["task=mnist", "method=kd", "fleet=phones"], ["task=gaussians", "fleet=phones"],
        ["task=mnist", "method=kd", "privacy=user_level"],
        # personal methods
        ["method=ditto", "method.lambda_=-1"],
        ["method=ditto", "method.personal_lr=0"], ["method=ditto", "+method.mu=1"],
        ["method=apfl", "method.alpha=1.5"], ["method=apfl", "method.alpha=-0.5"],
        ["method=fedala", "method.layers=3"], ["method=fedala", "method.layers=0"],
        ["method=fedala", "method.share=0"], ["method=fedala", "method.deployed=both"],
        ["method=fedsoup", "method.start=1"], ["method=fedavg", "+method.lambda_=1.0"],
        ["method=fedala", "method.algorithm=apfl"],
        # methods that exchange logits, and clients' own architectures
        ["method=feddistill", "method.labels=null"],
        ["method=feddistill", "method.server.optimizer=adam"], ["method=feddistill", "method.algorithm=fedavg"],
        ["method=feddf", "method.algorithm=feddistill"], ["method=feddf", "method.top_k=0.1"], ["method.top_k=0"],
        ["method=fedmd", "method.server_distillation=null"], ["method=fedmd", "method.server.optimizer=momentum"],
        ["method=fedavg", "+method.models=[cnn_4,cnn_8]"], ["method=fedrep", "+method.models=[cnn_4]"],
        ["method=fedmd", "method.models=[cnn_5]"], ["method=fedmd", "method.models=[cnn_4,bert_tiny]"],
        ["method=local", "method.models=[cnn_4,cnn_4]"], ["method=fedmd", "method.models=[3]"],
        ["method=fedmd", "method.models=[cnn_4,cnn_8]", "+base/personalization@method.personalization=cossim"],
        ["method=fedmd", "method.models=cnn_4"],
        ["method=fedmd", "method.models=[{kind:mlp,name:w,hidden:[0],output:logits}]"],
        # FedGen
        ["method=fedgen", "method.generator=null"], ["method=fedgen", "method.algorithm=fedavg"],
        ["method=fedgen", "method.generator.decay=0"], ["method=fedgen", "method.generator.batch_size=1"],
        ["method=fedgen", "method.generator.alpha=-1"],
        ["method=fedgen", "model.output=softmax"],
        # personalization
        [f"{KIND}=cossim", "method.personalization.cutoff=1"],
        [f"{KIND}=cossim", "method.personalization.form=mean"],
        [f"{KIND}=transfer_matrix", "method.personalization.checkpoints=7"],
        [f"{KIND}=transfer_matrix", "method.personalization.select=valid"],
        [f"{KIND}=landscape", "method.personalization.between=[4]"],
        [f"{KIND}=landscape", "method.personalization.between=[4,10]"],
        [f"{KIND}=landscape", "method.personalization.grid=2"],
        ["partition.alter=rotate"], ["method=temperature_probe", "partition.alter=noise"],
        ["partition=manual", "partition.num_clients=6", "partition.alter=shift"],
        ["method=finetune", "training.target=0.5", "training.stop_at_target=true"], ["task=sa", "evaluate.matrix=end"],
        ["method=clustered_fedavg", "method.clustering.clusters=2", "partition.unseen=0.3"],
    ]),
    *(([*TINY_IMAGES, "method=soup"], words) for words in [
        ["method.personalization.alphas=[0,1.5]"], ["method.personalization.alphas=[]"],
        ["method.personalization.checkpoints=3"], ["method.personalization.kind=soupe"],
        ["method.personalization.learning_rate=1"], ["partition=centralized"], ["partition.server=0.2"],
        ["partition.unseen=0.99"],
    ]),
    *(([*TINY_IMAGES, "method=feddf"], words) for words in [
        ["partition.transfer=0"], ["partition.transfer=1"], ["partition.transfer=0.999"],
        ["partition.transfer=0.97", "partition=iid", "partition.num_clients=20"], ["partition.server=0.2"],
        ["method.server_distillation.loss.name=entropi"], ["method.server_distillation.loss.form=kll"],
        ["~method.server_distillation.loss.name"], ["method.server_distillation.loss.name={a:1}"],
        ["method.server_distillation.loss.name=inf"], ["method.server_distillation.weighting=F"],
        ["method.server_distillation.ensemble=all"], ["method.server_distillation.momentum=0.5"],
        ["method.server_distillation.lr=0"], ["method.server_distillation.valid=1"],
        ["method.server_distillation.valid=0.001"], ["method.server_distillation.schedule=step"],
        ["method.server_distillation.epochs=0"], ["method.server_distillation.steps=0"],
        ["method.server_distillation.every=0"], ["method.algorithm=local"],
        ["task=erc", "training=small", "partition=natural", "partition.transfer=0.2"],
    ]),
    *((CLUSTERED_IMAGES, words) for words in [
        ["method.clustering.clusters=11"], ["method.clustering.graph=sparse10"], ["method.clustering.graph=nearest"],
        ["method.clustering.scale=0.001"],
        ["method.algorithm=scaffold", "training.momentum=0.5"], ["partition=centralized"],
    ]),
    *((CLIPPED, words) for words in [
        ["method=local"], ["method=feddistill", "privacy.sampling=fixed"],
        ["method=fedmd", "partition.transfer=0.2", "privacy.sampling=fixed"],
        ["method=fedgen", "privacy.label_scale=0"],
        ["method=fedmd", "partition.transfer=0.2", "privacy.clip_logits=-1"],
        ["method=fedmd", "partition.transfer=0.2", "method.server_distillation.ensemble=each"],
        ["method=scaffold", "privacy.sampling=fixed"], ["method=fedper", "privacy.sampling=fixed"],
        ["method=fedsoup", "privacy.sampling=fixed"],
        ["method=feddf", "partition.transfer=0.2", "method.server_distillation.weighting=E"],
        [*FEDDF_RKD, "partition.transfer=0.3", "model.hidden=[8]"], ["method=clustered_fedavg"],
        ["method.aggregation=weighted"], ["partition=centralized"], ["method=kd"],
        ["model=resnet8", "task.shape=[1,16,16]", "method.batchnorm=averaged"],
        ["privacy.epsilon=3"], ["privacy.noise_multiplier=null"],
        ["privacy.noise_multiplier=1", "privacy.clip_norm=null"], ["privacy.noise_multiplier=0.001"],
        ["privacy.clip_norm=0"], ["privacy.delta=1"], ["privacy.sampling=shuffle"],
    ]),
    *((TINY_TEXTS, words) for words in [
        ["method=fedavg", "hardware.engine=stacked"],
        ["method=clustered_fedavg", "method.clustering.otdd.features=null"],
        ["method=scaffold", "training.optimizer=adamw"],
        ["method=sinkhorn_e"],
        ["method=fedavg", "training.momentum=0.9"], ["method=fedavg", "partition.by=file"],
        ["method=fedavg", "partition.by=dialogue"],
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("small", "arguments"), of_papers(REFUSED), ids=[" ".join(words) for _, words in REFUSED])
def test_federated_run_rejects_invalid_input(small, arguments, tmp_path, capsys):
    given = {word.split("=", 1)[0].lstrip("~+") for word in arguments}
    groups = tuple(f"{group}." for group in given & {"partition", "model", "training"})
    words = [word for word in small if word.split("=", 1)[0] not in given and not word.startswith(groups)]
    if "task" in given:
        words = [word for word in words if word.startswith(("hardware.", "method=", "privacy="))]
    refused(capsys, *words, *arguments, f"paths.output_dir={tmp_path}")
    left = [path for path in tmp_path.rglob("*") if "artifacts" not in path.parts]
    assert not [p for p in left if p.suffix in (".json", ".jsonl", ".yaml", ".tmp", ".safetensors")]
