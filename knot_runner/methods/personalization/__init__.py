"""Personalization: each client adapts its model after the last round. Each kind of personalization has its own file."""

from __future__ import annotations

from dataclasses import replace

from knot_runner.methods.personalization import cossim, finetune, soup
from knot_runner.methods.personalization.contract import PERSONALIZATIONS, Personalization

PERSONALIZATIONS.update(
    finetune=finetune.FINETUNE,
    soup=replace(finetune.FINETUNE, points=soup.soup_points, measured=soup.soup_models),
    cossim=cossim.COSSIM,
)
