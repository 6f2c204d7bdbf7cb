"""Personalization: each client adapts its model after the last round. One file per kind, in one table."""

from __future__ import annotations

from knot_runner.methods.personalization import cossim, finetune, landscape, soup, transfer_matrix
from knot_runner.methods.personalization.contract import PERSONALIZATIONS, Personalization

PERSONALIZATIONS.update(
    finetune=Personalization(
        finetune.FINETUNING, finetune.finetune_rounds, finetune.finetune_points, finetune.finetune_models
    ),
    landscape=Personalization(
        landscape.LANDSCAPE,
        landscape.landscape_rounds,
        finetune.finetune_points,
        landscape.landscape_models,
        landscape.finish,
    ),
    soup=Personalization(finetune.FINETUNING, finetune.finetune_rounds, soup.soup_points, soup.soup_models),
    cossim=cossim.COSSIM,
    transfer_matrix=transfer_matrix.TRANSFER_MATRIX,
)
