from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from data.decoding import decode_rgb
from data.inspect.sheets import (
    SheetRow,
    draw_batch,
    draw_chosen_pairs,
    draw_histogram,
    draw_identities,
    draw_pairs,
    draw_rows,
)
from data.records.record_set import RecordSet
from data.verification.bin_file import read_bin, write_bin


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


def drawn_figure(monkeypatch, counts: list[int]):
    """Return the axes of a histogram."""
    from matplotlib.figure import Figure

    figures = []
    savefig = Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda figure, *args, **options: figures.append(figure)
        or savefig(figure, *args, **options),
    )
    draw_histogram(np.array(counts), "faces")
    (axes,) = figures[-1].axes
    return axes


def tick_texts(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels() if label.get_text()]


def test_a_histogram_of_similar_identities_has_plain_axes(monkeypatch) -> None:
    axes = drawn_figure(monkeypatch, [2, 2, 2, 4])
    assert axes.get_title() == "faces"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("images per identity", "identities")
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
    assert axes.get_xlim() == (-3.5, 9.5) and axes.get_ylim() == pytest.approx((0, 3.6))
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["median 2.0", "mean 2.5"]
    lines = axes.get_lines()
    assert [line.get_xdata()[0] for line in lines] == [2.0, 2.5]
    assert [line.get_linestyle() for line in lines] == ["-", "--"]
    for axis in (axes.xaxis, axes.yaxis):
        assert all("." not in text for text in tick_texts(axis))


def test_a_histogram_of_unequal_identities_has_logarithmic_axes(monkeypatch) -> None:
    axes = drawn_figure(monkeypatch, [1] * 100 + [2] * 31 + [1000])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlim() == pytest.approx((0.8 * 0.5, 1.2 * 1000.5))
    assert axes.get_ylim() == pytest.approx((0.7, 400))
    assert {"1", "2", "5", "10", "1,000"} <= set(tick_texts(axes.xaxis))
    assert not any(text.get_text() for text in axes.xaxis.get_minorticklabels())


@pytest.mark.parametrize("most, scale", [(30, "linear"), (31, "log")])
def test_from_31_times_on_an_axis_is_logarithmic(monkeypatch, most: int, scale: str) -> None:
    assert drawn_figure(monkeypatch, [1, most]).get_xscale() == scale
    assert drawn_figure(monkeypatch, [1] * most + [2]).get_yscale() == scale


@pytest.mark.parametrize("highest, width", [(60, 1.0), (61, 2.0), (121, 3.0)])
def test_many_numbers_share_bars(monkeypatch, highest: int, width: float) -> None:
    """From 10 up: 60 different numbers get a bar each, 61 do not."""
    axes = drawn_figure(monkeypatch, [10, highest + 9])
    assert {bar.get_width() for bar in axes.patches} == {width}
    assert sum(bar.get_height() for bar in axes.patches) == 2


def test_a_row_shows_one_identity(write_set) -> None:
    records = RecordSet(write_set([3, 1, 2]))
    sheet = decode_rgb(draw_identities(records, records.labels().astype(np.int64), "faces"))
    # A margin of 8, the title of 32, rows of 112 with 4 below each; a name of 124 before the tiles.
    assert sheet.shape == (8 + 36 + 3 * 116 + 8, 8 + 720 + 8, 3)
    for number in range(6):
        identity, place = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)][number]
        top, left = 8 + 36 + 116 * identity, 8 + 124 + 4 + 116 * place
        found = (sheet == (number, 7, 255 - number)).all(axis=2)
        assert found[top : top + 112, left : left + 112].all() and found.sum() == 112 * 112
        name = (sheet[top : top + 112, 8 : 8 + 124] < 120).all(axis=2)
        lines = np.flatnonzero(name.any(axis=1))
        # Two lines of 20 in the middle.
        assert [lines.min(), lines.max()] == pytest.approx([41, 74], abs=2) and name[:, :20].any()
    title = np.flatnonzero((sheet[: 8 + 32] < 120).all(axis=2).any(axis=1))
    assert [title.min(), title.max()] == pytest.approx([20, 29], abs=2)


def test_names_count_images(write_set, monkeypatch) -> None:
    written = []
    monkeypatch.setattr(cv2, "putText", lambda paper, text, *rest: written.append(text))
    records = RecordSet(write_set([3, 1]))
    draw_identities(records, records.labels().astype(np.int64), "faces")
    assert written == ["identity 0", "3 images", "identity 1", "1 image", "faces"]


def test_unreadable_images_have_no_identity(write_set) -> None:
    records = RecordSet(write_set([2]))
    sheet = decode_rgb(draw_identities(records, np.array([-1, 5]), "faces"))
    assert has_color(sheet, (1, 7, 254)) and not has_color(sheet, (0, 7, 255))
    assert sheet.shape[0] == 8 + 36 + 116 + 8


def test_an_image_that_is_not_square_is_centered(tmp_path: Path, make_image) -> None:
    images = [make_image(1, (8, 16)), make_image(2, (16, 8))]
    write_bin(tmp_path / "set.bin", images, [True])
    sheet = decode_rgb(draw_pairs(read_bin(tmp_path / "set.bin"), "set"))
    # Below the margin, the title and the heading.
    tiles = sheet[8 + 36 + 36 : 8 + 36 + 36 + 112, 8 : 8 + 224]
    expected = np.full((112, 224, 3), 228, np.uint8)
    expected[28:84, :112] = (1, 7, 254)
    expected[:, 112 + 28 : 112 + 84] = (2, 7, 253)
    np.testing.assert_array_equal(tiles, expected)


def test_large_sets_are_sampled_evenly_over_their_images(write_set) -> None:
    records = RecordSet(write_set([100, *[1] * 10]))
    sheet = decode_rgb(draw_identities(records, records.labels().astype(np.int64), "faces"))
    shown = {int(red) for red in np.unique(sheet[(sheet[..., 1] == 7)][:, 0])}
    # Of 110 images every twelfth; the first identity's row shows eight of its hundred.
    assert {0, 99, 109} <= shown and len(shown) == 8 + 1


def test_a_broken_image_is_drawn_as_a_cross(write_set) -> None:
    folder = write_set([2])
    path = folder / "train.rec"
    path.write_bytes(path.read_bytes().replace(b"IHDR", b"XXXX", 1))
    records = RecordSet(folder)
    sheet = decode_rgb(draw_identities(records, np.zeros(2, np.int64), "faces"))
    assert has_color(sheet, (200, 30, 30)) and has_color(sheet, (1, 7, 254))
    assert not has_color(sheet, (0, 7, 255))
    tile = sheet[8 + 36 : 8 + 36 + 112, 136 : 136 + 112]
    red = (tile == (200, 30, 30)).all(axis=2)
    for line in (red, red[:, ::-1]):
        assert np.diagonal(line).all()
    assert 2 * 112 < red.sum() < 6 * 112 and (tile[50, 5] == 228).all()


@pytest.mark.parametrize("same", [[True, False], [True, True], [False]])
def test_same_pairs_are_on_the_left(tmp_path: Path, make_image, same: list[bool]) -> None:
    images = [make_image(number, (8, 16)) for number in range(2 * len(same))]
    write_bin(tmp_path / "set.bin", images, same)
    sheet = decode_rgb(draw_pairs(read_bin(tmp_path / "set.bin"), "set"))
    for number in range(2 * len(same)):
        found = (sheet == (number, 7, 255 - number)).all(axis=2)
        rows, columns = (np.flatnonzero(found.any(axis=axis)) for axis in (1, 0))
        # Twice as wide as high, as the image is.
        assert len(rows) == 56 and len(columns) == 112
        assert (columns[0] < sheet.shape[1] // 2) == same[number // 2]


def test_thirty_pairs_of_each_kind_are_shown(tmp_path: Path, make_image) -> None:
    same = [number % 2 == 0 for number in range(80)]
    images = [make_image(number) for number in range(160)]
    write_bin(tmp_path / "set.bin", images, same)
    sheet = decode_rgb(draw_pairs(read_bin(tmp_path / "set.bin"), "set"))
    # Three pairs of 224 with 8 between them, twice, with 24 between the halves.
    half = 3 * 224 + 2 * 8
    assert sheet.shape == (8 + 36 + (36 + 10 * 116) + 4 + 8, 8 + 2 * half + 24 + 8, 3)
    left, right = sheet[:, : 8 + half], sheet[:, 8 + half + 24 :]
    shown = [np.unique(side[(side[..., 1] == 7)][:, 0]) for side in (left, right)]
    assert [len(numbers) for numbers in shown] == [60, 60]
    assert (shown[0] // 2 % 2 == 0).all() and (shown[1] // 2 % 2 == 1).all()
    # The first and the last of each kind, row by row.
    top, column = 8 + 36 + 36, 8
    for place, number in ((0, 0), (1, 1)):
        assert sheet[top, column + 112 * place].tolist() == [number, 7, 255 - number]
    assert sheet[top + 9 * 116, 8 + 2 * 232 + 112].tolist() == [157, 7, 255 - 157]
    assert sheet[top, 8 + half + 24].tolist() == [2, 7, 253]


def test_sheets_are_png(write_set) -> None:
    records = RecordSet(write_set([1]))
    png = draw_identities(records, np.zeros(1, np.int64), "faces")
    assert png.startswith(b"\x89PNG")
    assert cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR) is not None


def test_chosen_pairs_are_drawn_in_their_order_with_notes(tmp_path: Path) -> None:
    colors = [(10 * number, 0, 255 - 10 * number) for number in range(12)]
    images = [np.full((8, 8, 3), color, np.uint8) for color in colors]
    encoded = [cv2.imencode(".png", image[..., ::-1])[1].tobytes() for image in images]
    write_bin(tmp_path / "pairs.bin", encoded, [True, False] * 3)
    pairs = read_bin(tmp_path / "pairs.bin")
    chosen = [5, 0, 3, 1, 2]
    sheet = decode_rgb(draw_chosen_pairs(pairs, chosen, [str(pair) for pair in chosen], "wrong"))
    places = []
    for pair in chosen:
        halves = [np.argwhere((sheet == colors[2 * pair + side]).all(axis=2)) for side in (0, 1)]
        assert all(len(half) == 112 * 112 for half in halves)
        left, right = (half[0].tolist() for half in halves)
        assert right == [left[0], left[1] + 112]
        places.append(tuple(left))
        below = sheet[left[0] + 112 : left[0] + 132, left[1] : left[1] + 224]
        assert below.min() < 100, "the note"
    # Four in the first row, from left to right, and the fifth below the first.
    assert places == sorted(places) and len({top for top, _ in places}) == 2
    assert places[4][1] == places[0][1]


@pytest.mark.parametrize(("channels", "side", "count"), [(3, 112, 64), (1, 28, 5), (3, 224, 1)])
def test_the_first_images_of_a_batch(channels: int, side: int, count: int) -> None:
    """In rows of four, in their order and colors, each above its class."""
    images = np.zeros((count, channels, side, side), np.uint8)
    images[0, 0] = 200
    before = images.copy()
    sheet = decode_rgb(draw_batch(images, np.arange(count)))
    assert (images == before).all()
    first = [200, 200, 200] if channels == 1 else [200, 0, 0]
    assert np.abs(sheet[20, 20].astype(int) - first).max() < 12
    rows, columns = min(-(-count // 4), 4), min(count, 4)
    # Four pixels below each image, each class and each row.
    assert sheet.shape[:2] == (rows * (112 + 4 + 20 + 4 + 4), columns * 112 + (columns - 1) * 4)


def test_a_name_of_other_bytes_or_of_a_formula_is_drawn() -> None:
    """OpenCV would end the process, matplotlib raise the error of a formula."""
    for name in ("a\udcff", "\x1b[2J\n", "$\\frac{1}{0}$ $"):
        assert decode_rgb(draw_histogram(np.array([1, 2]), name)).std() > 1
        assert decode_rgb(draw_rows([SheetRow([name], [[(b"", name)]])], name)).std() > 1
