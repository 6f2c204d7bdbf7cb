"""The table of personalizations with which soups are compared."""

from knot_runner.methods.personalization import PERSONALIZATIONS, Personalization, finetune
from knot_runner.papers.soup import landscape, transfer_matrix

PERSONALIZATIONS["transfer_matrix"] = transfer_matrix.TRANSFER_MATRIX
PERSONALIZATIONS["landscape"] = Personalization(
    landscape.LANDSCAPE, landscape.landscape_rounds, finetune.finetune_points, landscape.landscape_models,
    landscape.finish,
)  # fmt: skip
