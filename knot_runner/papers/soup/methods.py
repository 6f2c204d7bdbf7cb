"""Registration of the personalization methods that are compared with soups."""

from dataclasses import replace

from knot_runner.methods.personalization import PERSONALIZATIONS, finetune
from knot_runner.papers.soup import landscape, transfer_matrix

PERSONALIZATIONS.update(
    transfer_matrix=transfer_matrix.TRANSFER_MATRIX,
    landscape=replace(
        finetune.FINETUNE, plan=landscape.plan, fold=landscape.fold, rounds=landscape.landscape_rounds,
        measured=landscape.landscape_models, finish=landscape.finish,
    ),
)  # fmt: skip
