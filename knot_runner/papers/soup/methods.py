"""Registration of the personalization methods that are compared with soups."""

from knot_runner.methods.personalization import PERSONALIZATIONS, Personalization, finetune
from knot_runner.papers.soup import landscape, transfer_matrix

PERSONALIZATIONS.update(
    transfer_matrix=transfer_matrix.TRANSFER_MATRIX,
    landscape=Personalization(
        landscape.LANDSCAPE, landscape.landscape_rounds, finetune.finetune_points, landscape.landscape_models,
        landscape.finish,
    ),
)  # fmt: skip
