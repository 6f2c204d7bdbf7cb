"""Personalization: each client adapts its model after the last round. Each kind of personalization has its own file."""

from __future__ import annotations

from knot_runner.methods.personalization import cossim, finetune, soup
from knot_runner.methods.personalization.contract import PERSONALIZATIONS, Personalization

PERSONALIZATIONS.update(
    finetune=Personalization(
        finetune.FINETUNING, finetune.finetune_rounds, finetune.finetune_points, finetune.finetune_models
    ),
    soup=Personalization(finetune.FINETUNING, finetune.finetune_rounds, soup.soup_points, soup.soup_models),
    cossim=cossim.COSSIM,
)
