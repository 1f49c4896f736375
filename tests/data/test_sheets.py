from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from data.images import decode_rgb
from data.records import RecordSet
from data.sheets import draw_histogram, draw_identities, draw_pairs
from data.verification_sets import read_bin, write_bin


def has_color(sheet: np.ndarray, color: tuple[int, int, int]) -> bool:
    return bool((sheet == color).all(axis=2).any())


@pytest.mark.parametrize(
    "counts",
    [[30] * 400, [1], [1, 2, 3], list(range(10, 200)), [1] * 5000 + [2] * 700 + [530]],
    ids=["equal", "single", "few", "spread", "long tail"],
)
def test_histograms_are_drawn_without_warnings(counts: list[int]) -> None:
    image = decode_rgb(draw_histogram(np.array(counts), "faces"))
    assert image.shape == (550, 990, 3)
    # The bars' blue, on white.
    assert has_color(image, (31, 119, 180)) and has_color(image, (255, 255, 255))


def test_bars_show_how_many_identities_have_how_many_images(monkeypatch) -> None:
    from matplotlib.axes import Axes

    drawn = []
    bar = Axes.bar
    monkeypatch.setattr(
        Axes,
        "bar",
        lambda axes, *args, **options: drawn.append(args) or bar(axes, *args, **options),
    )
    draw_histogram(np.array([2, 2, 2, 4]), "faces")
    draw_histogram(np.array([1] * 9 + [1000]), "faces")
    left, heights, widths = drawn[0]
    assert left.tolist() == [1.5, 2.5, 3.5] and heights.tolist() == [3, 0, 1]
    assert widths.tolist() == [1, 1, 1]
    left, heights, widths = drawn[1]
    assert heights[0] == 9 and heights[-1] == 1 and heights.sum() == 10
    assert left[0] == 0.5 and left[-1] + widths[-1] == 1000.5
    assert (left[1:] == (left + widths)[:-1]).all() and (left % 1 == 0.5).all()


def test_a_row_shows_one_identity(write_set) -> None:
    records = RecordSet(write_set([3, 1, 2]))
    sheet = decode_rgb(draw_identities(records, records.labels().astype(np.int64), "faces"))
    for number in range(6):
        rows = np.flatnonzero((sheet == (number, 7, 255 - number)).all(axis=2).any(axis=1))
        identity = [0, 0, 0, 1, 2, 2][number]
        assert len(rows) == 112 and abs(rows[0] - (40 + 116 * identity)) < 10


def test_large_sets_are_sampled_evenly_over_their_images(write_set) -> None:
    records = RecordSet(write_set([100, *[1] * 10]))
    sheet = decode_rgb(draw_identities(records, records.labels().astype(np.int64), "faces"))
    shown = {int(red) for red in np.unique(sheet[(sheet[..., 1] == 7)][:, 0])}
    # Of 110 images every twelfth; the first identity's row shows eight of its hundred.
    assert {0, 99, 109} <= shown and len(shown) == 8 + 1


def test_a_broken_image_is_a_cross_in_its_place(write_set) -> None:
    folder = write_set([2])
    path = folder / "train.rec"
    path.write_bytes(path.read_bytes().replace(b"IHDR", b"XXXX", 1))
    records = RecordSet(folder)
    sheet = decode_rgb(draw_identities(records, np.zeros(2, np.int64), "faces"))
    assert has_color(sheet, (200, 30, 30)) and has_color(sheet, (1, 7, 254))
    assert not has_color(sheet, (0, 7, 255))


@pytest.mark.parametrize("same", [[True, False], [True, True], [False]])
def test_pairs_stand_on_their_side(tmp_path: Path, make_image, same: list[bool]) -> None:
    images = [make_image(number, (8, 16)) for number in range(2 * len(same))]
    write_bin(tmp_path / "set.bin", images, same)
    sheet = decode_rgb(draw_pairs(read_bin(tmp_path / "set.bin"), "set"))
    for number in range(2 * len(same)):
        found = (sheet == (number, 7, 255 - number)).all(axis=2)
        rows, columns = (np.flatnonzero(found.any(axis=axis)) for axis in (1, 0))
        # Twice as wide as high, as the image is.
        assert len(rows) == 56 and len(columns) == 112
        assert (columns[0] < sheet.shape[1] // 2) == same[number // 2]


def test_sheets_are_png(write_set) -> None:
    records = RecordSet(write_set([1]))
    png = draw_identities(records, np.zeros(1, np.int64), "faces")
    assert png.startswith(b"\x89PNG")
    assert cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR) is not None
