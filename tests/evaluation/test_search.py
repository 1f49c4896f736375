"""Files of embeddings, and searches in them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from evaluation import search as command
from evaluation.files import map_floats, read_embeddings
from evaluation.search import identification, search
from tests.evaluation.support import check_refusal, npy, write_embeddings
from tests.support.sets import assert_refused

TABLE = np.arange(12, dtype=np.float32).reshape(6, 2) / 8


def test_tables_are_mapped(tmp_path: Path) -> None:
    """Also those of other writers."""
    path = tmp_path / "a.npy"
    with pytest.raises(FileNotFoundError):
        map_floats(path)
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (6,2)}\n"
    other = b"\x93NUMPY\x01\0" + bytes([len(header), 0]) + header + TABLE.tobytes()
    tables = [TABLE, TABLE.astype("f2"), TABLE.astype(">f8"), np.asfortranarray(TABLE), TABLE[:0]]
    written = [(npy(table), table) for table in tables]
    for content, table in (*written, (other, TABLE)):
        path.write_bytes(content)
        found = map_floats(path)
        assert found is not None and found.dtype == table.dtype
        np.testing.assert_array_equal(found, table)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x93NUMPY\x01\0\xff\xff", b"\x93NUMPY\x09\0" + bytes(200),
        npy(TABLE)[:-1], npy(TABLE) + b"\0", npy(TABLE[0]), npy(TABLE.reshape(1, 6, 2)),
        *(npy(TABLE.astype(kind)) for kind in (int, complex, object)),
        *(npy(TABLE).replace(b"(6, 2)", shape) for shape in (b"(-6,2)", b"(6,9)")),
        npy(TABLE).replace(b"False", b"0    "), npy(TABLE).replace(b"'<f4'", b"['f']"),
    ],
)  # fmt: skip
def test_anything_else_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    assert map_floats(tmp_path / "a.npy") is None


def test_names_and_labels_come_back(tmp_path: Path) -> None:
    images = [("a b/ü.jpg", "ann"), ("b\udcff.jpg", ""), ("set/train.rec:7", "7")]
    found = read_embeddings(write_embeddings(tmp_path / "x", np.eye(3), *images))
    assert list(zip(found.names, found.labels)) == images
    lines = (tmp_path / "x.tsv").read_bytes().splitlines()
    assert lines[:2] == ["0\ta b/ü.jpg\tann".encode(), b"1\tb\xff.jpg\t"]
    assert isinstance(found.rows, np.memmap)
    # As a spreadsheet writes it; labels are compared with those of other files.
    (tmp_path / "x.tsv").write_bytes(b"\xef\xbb\xbf0\ta\tann\r\n1\tb\t\r\n2\tc\t\r\n")
    found = read_embeddings(tmp_path / "x.npy")
    assert (found.names, found.labels) == (["a", "b", "c"], ["ann", "", ""])
    (tmp_path / "x.tsv").write_text("0\ta\t\n1\tb\t\n2\tc\t\n")
    assert read_embeddings(tmp_path / "x.npy").labels == []


@pytest.mark.parametrize(
    ("rows", "index", "message"),
    [
        (None, "", "x.npy cannot be read: No such file"),
        (np.zeros((0, 4)), "", r"x.npy holds no embeddings, floats \[n, D\]"),
        (np.eye(3), "0\ta\t\n1\tb\t\n", "has 2 lines, and .*x.npy 3 rows"),
        (np.eye(3), "0\ta\t\n2\tb\t\n3\tc\t\n", "line 2 is .* instead of the number 1"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, rows, index: str, message: str) -> None:
    (tmp_path / "x.tsv").write_text(index)
    if rows is not None:
        np.save(tmp_path / "x.npy", rows)
    assert_refused(message, read_embeddings, tmp_path / "x.npy")


def drawn(rows: int, seed: int, width: int = 16) -> np.ndarray:
    generator = np.random.default_rng(seed)
    scales = generator.uniform(0.1, 30, (rows, 1))
    return (generator.normal(size=(rows, width)) * scales).astype(np.float32)


@pytest.mark.parametrize(
    ("blocks", "top"), [((7, 11), 1), ((50, 300), 5), ((1, 1), 5), ((1024, 16384), 1)]
)
def test_equals_brute_force(blocks: tuple[int, int], top: int) -> None:
    gallery, probes = drawn(300, 0), drawn(50, 1)
    excluded = np.arange(50) * 7 % 301 - 1
    rows, others = (each.astype(np.float64) for each in (probes, gallery))
    lengths = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(others, axis=1)
    expected = rows @ others.T / lengths
    assert (excluded < 0).any() and (excluded >= 0).any()
    expected[excluded >= 0, excluded[excluded >= 0]] = -2
    order = np.argsort(-expected, axis=1)[:, :top]
    cosines, matches = search(gallery, probes, top, excluded, blocks)
    np.testing.assert_array_equal(matches, order)
    nearest = np.take_along_axis(expected, order, 1)
    np.testing.assert_allclose(cosines, nearest, atol=1e-6)


def test_of_equal_cosines_the_first_row_counts_and_rows_may_be_few() -> None:
    gallery = np.repeat(np.eye(2, dtype=np.float32), 4, axis=0)
    for blocks in ((1, 3), (2, 100)):
        _, found = search(gallery, np.eye(2), 3, None, blocks)
        assert found.tolist() == [[0, 1, 2], [4, 5, 6]]
    _, rows = search(np.eye(2), np.eye(2)[:1], 3, np.array([0]))
    assert rows.tolist() == [[1, -1, -1]]


def test_a_gallery_on_the_disk_is_not_loaded(tmp_path: Path) -> None:
    gallery = np.lib.format.open_memmap(tmp_path / "g.npy", "w+", np.float32, (100_000, 64))
    gallery[:] = drawn(1000, 0, 64)[np.arange(100_000) % 1000]
    gallery.flush()
    tracemalloc.start()
    search(np.load(tmp_path / "g.npy", mmap_mode="r"), drawn(20, 1, 64), 5, None, (10, 1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3e6 < 100_000 * 64 * 4


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e30, 1e200])
@pytest.mark.parametrize("what", ["gallery", "probes"])
def test_a_row_that_has_no_length_is_named(what: str, value: float) -> None:
    """The squares of 1e30 are no float32, and without a length its cosines are 0."""
    rows = {"gallery": drawn(30, 0).astype("f8"), "probes": drawn(20, 1).astype("f8")}
    rows[what][17, 3] = value
    message, blocks = f"row 17 of the {what} is not finite", (8, 8)
    assert_refused(message, search, rows["gallery"], rows["probes"], 5, None, blocks)


def test_rates_by_hand() -> None:
    """Of six probes: first, third, sixth, not at all, not in the gallery, without a label."""
    rows, none = np.tile(np.arange(6), (6, 1)), np.full(6, -1)
    probes = ["a", "c", "f", "g", "z", ""]
    assert identification([*"abcdefg"], probes, none, rows) == (4, [0.25, 0.5])
    # One that is the only image of its identity is not counted.
    assert identification([*"abb"], [*"ab"], np.arange(2), np.array([[1], [2]])) == (1, [1, 1])
    assert identification([*"abb"], [*"ab"], none[:2], np.array([[-1], [0]])) == (2, [0, 0])


@pytest.fixture(autouse=True)
def _sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gallery of four images of two people, and three probes, of which the first is in it."""
    monkeypatch.chdir(tmp_path)
    names = [("a1", "ann"), ("b1", "bob"), ("b2", "bob"), ("a2", "ann")]
    write_embeddings("g", [[1, 0, 0], [0.8, 0.6, 0], [0, 1, 0], [0, 0.6, 0.8]], *names)
    probes = [names[0], ("b3", "bob"), ("z", "zoe")]
    write_embeddings("p", [[1.0, 0, 0], [0, 3, 0], [0, 0, -1]], *probes)


WORDS = ["--gallery", "g.npy", "--probes", "p.npy"]


def test_the_table_and_the_rates(capsys: pytest.CaptureFixture[str]) -> None:
    command.main([*WORDS, "--top", "2"])
    assert Path("p-matches.tsv").read_text().splitlines() == [
        "probe\trank\tgallery\tcosine",
        *("a1\t1\ta1\t1.000000", "a1\t2\tb1\t0.800000"),
        *("b3\t1\tb2\t1.000000", "b3\t2\tb1\t0.600000"),
        *("z\t1\ta1\t0.000000", "z\t2\tb1\t0.000000"),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "p-matches.tsv: 3 of 3 probes have a match among 4 images",
        "identification: rank-1 1.0000, rank-5 1.0000, of 2 probes whose identity is there",
    ]


def test_threshold_and_leave_self_out(capsys: pytest.CaptureFixture[str]) -> None:
    command.main([*WORDS, "--threshold", "0.7", "--leave-self-out", "--out", "m.tsv"])
    matches = Path("m.tsv").read_text().splitlines()[1:]
    assert matches == ["a1\t1\tb1\t0.800000", "b3\t1\tb2\t1.000000"]
    said, rates = capsys.readouterr().out.splitlines()
    assert said == "m.tsv: 2 of 3 probes have a match among 4 images"
    assert "rank-1 0.5000, rank-5 1.0000, of 2 probes" in rates
    Path("p.tsv").write_text("0\ta\t\n1\tb\t\n2\tc\t\n")
    command.main([*WORDS])
    assert len(capsys.readouterr().out.splitlines()) == 1, "no labels, no rates"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--threshold 1.5", "--threshold: '1.5' is no cosine"),
        ("--out g.npy/m.tsv", "g.npy/m.tsv cannot be written: "),
        ("--out ./p.tsv", "p.tsv would replace what this command reads"),
        ("--probes n.npy", "n.tsv cannot be read as an index of embeddings: No such file"),
        ("--probes w.npy", "g.npy has rows of 3 numbers, w.npy of 4"),
    ],
)
def test_mistakes_are_one_line(words: str, message: str) -> None:
    write_embeddings("w", np.eye(4)[:1], ("a", ""))
    write_embeddings("n", np.eye(3))
    check_refusal(command.main, [*WORDS, *words.split()], message)
