"""A fake of gld23k in its official layout: 12 photographs of three users, and three of the official test set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

#: user -> (image, class); as in the official files, users' names are numbers and no two users share an image
PHOTOGRAPHS = {
    "77": [("a0", 3), ("a1", 3), ("a2", 0), ("a3", 202), ("a4", 0)],
    "5": [("b0", 1), ("b1", 0), ("b2", 1), ("b3", 0)],
    "1234": [("c0", 202), ("c1", 3), ("c2", 1)],
}
OFFICIAL_TEST = [("d0", 3), ("d1", 1), ("d2", 0)]
TRAIN = "gld23k/data_user_dict/gld23k_user_dict_train.csv"
TEST = "gld23k/data_user_dict/gld23k_user_dict_test.csv"
HEADER = "user_id,image_id,class"


def write_gld23k(root: Path) -> Path:
    """The files below ``root`` / gld23k; each image is 20 x 16 of one gray level, of its place among all times 15."""
    images = root / "gld23k" / "images"
    images.mkdir(parents=True)
    (root / TRAIN).parent.mkdir()
    names = [name for own in PHOTOGRAPHS.values() for name, _ in own] + [name for name, _ in OFFICIAL_TEST]
    for place, name in enumerate(names):
        Image.fromarray(np.full((16, 20, 3), 15 * place, np.uint8)).save(images / f"{name}.jpg", quality=95)
    rows = [f"{user},{name},{label}" for user, own in PHOTOGRAPHS.items() for name, label in own]
    (root / TRAIN).write_text("\n".join([HEADER, *rows]) + "\n")
    (root / TEST).write_text("\n".join([HEADER, *(f",{name},{label}" for name, label in OFFICIAL_TEST)]) + "\n")
    return root
