"""Coordinates of image classes, whose distances measure how bad a confusion is."""

from __future__ import annotations

import math

import numpy as np

from knot_runner.config.settings import ImageTaskSettings, Labels

#: Of superclasses: distance between two classes of one of them, and of two.
WITHIN, ACROSS = 1.0, 2.0


def class_points(settings: ImageTaskSettings) -> list[list[float]] | None:
    """One point per class [C][d] by ``task.geometry``; None where it is "given" and no coordinates are."""
    if settings.geometry == "onehot":
        return one_hot(len(settings.classes))
    if settings.geometry == "superclasses":
        return superclass_points(settings.classes, settings.superclasses)
    return settings.coordinates


def one_hot(classes: int) -> list[list[float]]:
    """Unit vectors [C][C]: every two sqrt(2) apart."""
    return np.eye(classes).tolist()


def label_space(classes: list[str], coordinates: list[list[float]] | None) -> Labels:
    """``classes`` at their ``coordinates``; every two equally far apart where there are none."""
    return Labels(classes, coordinates or one_hot(len(classes)), "semantic")


def superclass_points(classes: list[str], superclasses: dict[str, list[str]]) -> list[list[float]]:
    """Points [C][C + S], ``WITHIN`` apart in one superclass and ``ACROSS`` in two: a class's unit vector and that of
    its superclass, scaled, one after the other."""
    of = {name: number for number, members in enumerate(superclasses.values()) for name in members}
    own = WITHIN / math.sqrt(2) * np.eye(len(classes))
    shared = math.sqrt((ACROSS**2 - WITHIN**2) / 2) * np.eye(len(superclasses))[[of[name] for name in classes]]
    return np.hstack([own, shared]).tolist()
