"""Coordinates of image classes, whose distances measure how bad a confusion is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from knot_runner.config.settings import ImageTaskSettings, Labels
from knot_runner.util.errors import UserError

#: Of superclasses: distance between two classes of one of them, and of two.
WITHIN, ACROSS = 1.0, 2.0


def class_points(settings: ImageTaskSettings) -> list[list[float]] | None:
    """One point per class [C][d] by ``task.geometry``; None where it is "given" and no coordinates are."""
    if settings.geometry == "onehot":
        return one_hot(len(settings.classes))
    if settings.geometry == "superclasses":
        return superclass_points(settings.classes, settings.superclasses)
    return settings.coordinates


def with_superclasses(settings: ImageTaskSettings, found: dict[int, int] | None) -> tuple[ImageTaskSettings, list[str]]:
    """``settings`` with the hierarchy of ``task.superclasses`` or, where that is null, of the files: ``found`` (class
    number -> superclass number; None where they have none); and notes on which it is. Raises :class:`UserError`."""
    name, given = settings.name, settings.superclasses
    if found is None and not given:
        raise UserError(
            f"task.superclasses: is not set, and the files of {name} have no coarse labels, as CIFAR-100's archives "
            "have; 'superclass: [class, ...]' in its YAML is right"
        )
    if found is None:
        return settings, [f"{name}: superclasses are those of task.superclasses; the files have none"]
    absent = [label for number, label in enumerate(settings.classes) if number not in found]
    if not given and absent:
        raise UserError(f"task.superclasses: is not set, and no image says of which class {absent[0]!r} is")
    own: dict[str, list[str]] = {}
    for number, above in sorted(found.items()):
        own.setdefault(str(above), []).append(settings.classes[number])
    if not given:
        return replace(settings, superclasses=own), [f"{name}: superclasses are those of the files' coarse labels"]
    other = [label for label in settings.classes if label not in absent and not _agree(label, own, given, absent)]
    if not other:
        return settings, [f"{name}: superclasses are those of the files' coarse labels, as task.superclasses has them"]
    return settings, [
        f"{name}: superclasses are those of task.superclasses, though the files' coarse labels put {other[0]!r} with "
        "others; task.superclasses=null takes theirs"
    ]


def _agree(label: str, one: dict[str, list[str]], other: dict[str, list[str]], absent: list[str]) -> bool:
    """Whether a class is with the same classes in both hierarchies, ``absent`` ones aside."""
    groups = [next(set(group) for group in hierarchy.values() if label in group) for hierarchy in (one, other)]
    return groups[0] == groups[1] - set(absent)


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
