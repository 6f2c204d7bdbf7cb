"""The figure of a partition, its numbers and its CSV."""

import numpy as np
import pytest

from knot_runner.report.figures import style as figure_style
from knot_runner.report.figures.partition import draw_partition, partition_lines
from tests.unit.report.made_runs import assert_drawn, csv_rows


@pytest.fixture(autouse=True)
def as_printed(printed_resolution, monkeypatch):
    """Figures of this file are as users get them."""
    monkeypatch.setattr(figure_style, "DPI", printed_resolution)


def read(path):
    """The PNG's pixels, RGB 0..1."""
    from matplotlib.image import imread

    return imread(path)[..., :3]


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (300, 100)])
def test_partition_is_drawn_at_every_size(tmp_path, clients, classes):
    rng = np.random.default_rng(0)
    counts = rng.multinomial(200, rng.dirichlet(np.full(classes, 0.3)), clients)
    names = [f"client {k}" for k in range(clients)]
    path = tmp_path / "partition.png"
    lines = draw_partition(counts, names, [f"class_{k}" for k in range(classes)], path, "A title", ["a note"])
    assert read(path).shape[1] == 1900
    assert_drawn(path)
    assert lines[0].startswith(f"{clients} clients with 200 / 200 / 200 training examples")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["partition.csv", "partition.png"]


def test_partition_in_numbers(tmp_path):
    draw_partition(np.array([[3, 0], [1, 5]]), ["client 0", "=writer\n1"], ["no", "-yes"], tmp_path / "p.png", "t")
    first, second = csv_rows(tmp_path / "p.png")
    assert list(first.items()) == [("client", "client 0"), ("examples", "3"), ("no", "3"), ("'-yes", "0")]
    assert list(second.values()) == ["'=writer?1", "6", "1", "5"]
    assert partition_lines(np.array([[4, 0, 0], [1, 3, 0], [2, 2, 0], [0, 0, 0]])) == [
        "4 clients with 0 / 4 / 4 training examples (least / median / most)",
        "mean largest class share 0.750; 1.7 classes per client on average, of 2",  # 2.25 / 3; 5 / 3
    ]


def test_larger_share_is_darker(tmp_path):
    """Client 0 has class 0 alone: of the map's four quarters the upper left is the darkest, the upper right white."""
    draw_partition(np.array([[8, 0], [4, 4]]), ["a", "b"], ["x", "y"], tmp_path / "p.png", "t")
    gray = read(tmp_path / "p.png").mean(2)
    height, width = gray.shape
    upper, lower = gray[int(0.3 * height)], gray[int(0.6 * height)]
    left, right = int(0.2 * width), int(0.55 * width)
    assert upper[left] < lower[left] < upper[right]
    assert lower[left] == pytest.approx(lower[right], abs=0.01)


def test_draw_partition_ignores_hostile_names_and_settings(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"figure.dpi": 10, "savefig.dpi": 10, "text.parse_math": True}):
        draw_partition(np.eye(2, dtype=int), ["$\\x", "\x1b[31m"], ["$a", "b$"], tmp_path / "p.png", "$\\bad{")
        assert matplotlib.rcParams["figure.dpi"] == 10
    assert read(tmp_path / "p.png").shape[1] >= 950
