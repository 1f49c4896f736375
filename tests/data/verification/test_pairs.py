from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from data.verification.pairs import draw_pairs, read_pairs
from runtime.errors import ConfigError
from tests.support.sets import assert_refused, write_files

LINES = ["1\t2", "Ann\t1\t2", "Ann\t2\t12", "Ann\t1\tBob_B\t1", "Bob_B\t1\tAnn\t12"]
NAMES = ("Ann_0001.jpg", "Ann_0002.png", "Ann_0012.jpg", "Bob_B_0001.jpg", "Ann Lee_0001.JPG",
         "Ann Lee_0002.PNG", "Bob, Roy_0001")  # fmt: skip


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a list; an image is given as its file's name."""
    write_files(tmp_path, {f"{name[: name.rindex('_')]}/{name}": b"" for name in NAMES})

    def read_list(content):
        if not isinstance(content, bytes):
            content = ("\n".join(content) + "\n").encode()
        (tmp_path / "pairs.txt").write_bytes(content)
        pairs = read_pairs(tmp_path / "pairs.txt", tmp_path)
        assert all(file.parent.parent == tmp_path for pair in pairs for file in pair[:2])
        return [(first.name, second.name, same) for first, second, same in pairs]

    return read_list


@pytest.mark.parametrize("header", ["1\t2", "2"])
def test_pairs_in_the_format_of_lfw(read, header: str) -> None:
    assert read([header, *LINES[1:]]) == [
        ("Ann_0001.jpg", "Ann_0002.png", True),
        ("Ann_0002.png", "Ann_0012.jpg", True),
        ("Ann_0001.jpg", "Bob_B_0001.jpg", False),
        ("Bob_B_0001.jpg", "Ann_0012.jpg", False),
    ]


@pytest.mark.parametrize("text", [
    "1 1\nAnn Lee\t1\t2\nAnn Lee\t1\tBob, Roy\t1\n".encode("utf-16"),
    b"\xef\xbb\xbf1\t1\r\n# same\r\nAnn Lee\t1\t2\r\n\r\n#\r\nAnn Lee\t1\tBob, Roy\t1",
    b'1,1,,\nAnn Lee,1,2,\nAnn Lee,1,"Bob, Roy",1\n',
    b'1;1;;\nAnn Lee;1;0002;\n"Ann Lee";1;Bob, Roy;1\n',
    b'1\n"Ann Lee" 1 2\n"Ann Lee"  1 "Bob, Roy" 1\n',
])  # fmt: skip
def test_names_with_spaces(read, text: bytes) -> None:
    assert read(text) == [
        ("Ann Lee_0001.JPG", "Ann Lee_0002.PNG", True), ("Ann Lee_0001.JPG", "Bob, Roy_0001", False)
    ]  # fmt: skip


@pytest.mark.parametrize("line", [
    "Ann Lee 1 2",
    "Ann Lee\t1 2",
    "Ann/Ann_0001.jpg Ann/Ann_0002.jpg 1",
    "name,imagenum1,imagenum2",
    "\t1\t2",
    "Ann\t1\t\t2",
])  # fmt: skip
def test_other_layouts_are_refused(read, line: str) -> None:
    """CALFW, CPLFW, CFP and lists of paths: never read as another pair."""
    assert_refused("line 2: .* 'name i j' nor 'name1 i name2 j'", read, ["1 1", line, LINES[2]])
    assert_refused("line 1: .* instead of the numbers of folds and pairs", read, [line, *LINES])


@pytest.mark.parametrize(("number", "line", "message"), [
    (1, "2\t2", "announces 8 pairs .* holds 4"),
    (1, "2\t1", "of the 2 pairs of fold 1, 2 instead of 1 are of one person; sort them"),
    (3, "Ann\t2\tBob_B\t1", "of the 4 pairs of fold 1, 1 instead of 2 are of one person"),
    (4, "Ann\t1\t.Bob\t1", "line 4: .* is neither"),
    (3, "../Ann\t1\t2", "line 3: .* is neither"),
    (3, f"{'A' * 201}\t1\t2", "line 3: .* is neither"),
    (3, f"{'A' * 200}\t1\t2", "line 3: there is no image"),
    (3, "Ann\t123456789\t2", r"line 3: there is no image .*Ann_123456789\.jpg"),
    (3, "Ann\t1234567890\t2", "line 3: .* is neither"),
    (4, "Ann\t1\tAnn\t2", "line 4: 'Ann 1 Ann 2' has one name for two people"),
    (5, "Ann\t1\tBob_B\t7", r"line 5: there is no image .*Bob_B_0007\.jpg"),
])  # fmt: skip
def test_wrong_lines_are_named(read, number: int, line: str, message: str) -> None:
    assert_refused(message, read, [*LINES[: number - 1], line, *LINES[number:]])


@pytest.mark.parametrize(
    ("content", "message"), [(b"\xff\xfe\x00", "pairs.txt cannot be read"), (b"", "line 1")]
)
def test_files_of_no_lines(read, content: bytes, message: str) -> None:
    assert_refused(message, read, content)


def drawn(counts: list[int], count: int, folds: int, seed: int = 0):
    images = [[(identity, n) for n in range(images)] for identity, images in enumerate(counts)]
    return draw_pairs(images, count=count, folds=folds, seed=seed)


def test_drawn_pairs_are_distinct_and_true() -> None:
    draw = partial(drawn, [3, 10, 50, 7, 1], 160, 4)
    pairs = draw(5)
    assert pairs == draw(5) != draw(6)
    assert len({frozenset((first, second)) for first, second, _ in pairs}) == 160
    for first, second, same in pairs:
        assert (first[0] == second[0]) == same and first != second
    # All that there are: five pairs of the one image with each of the others'.
    assert sum(same for _, _, same in drawn([4, 4], 24, 2)) == 12
    assert {first[1] for first, _, same in drawn([5, 1], 10, 1) if not same} == set(range(5))
    # The identity with most images does not dominate: 3 and 6 pairs are all that the small ones
    # have, the others share the rest.
    shares = Counter(first[0] for first, _, same in drawn([3, 4, 200, 10], 80, 2) if same)
    assert [shares[i] for i in range(4)] in ([3, 6, 15, 16], [3, 6, 16, 15])
    pairs = drawn([10] * 8, 200, 5)
    for start in range(0, 200, 40):
        fold = pairs[start : start + 40]
        assert [same for _, _, same in fold] == [True] * 20 + [False] * 20
        assert len({first[0] for first, _, _ in fold[:20]}) > 3


@pytest.mark.parametrize(("counts", "count", "message"), [
    ([3, 3], 40, "only 6 pairs of the same identity, fewer than 20"),
    ([20], 40, "only 0 pairs of different identities, fewer than 20"),
    ([9, 9], 30, "do not fill 10 folds .* multiple of 20"),
    ([9, 9], 0, "do not fill"),
])  # fmt: skip
def test_impossible_draws_say_why(counts: list[int], count: int, message: str) -> None:
    assert_refused(message, drawn, counts, count, 10, kind=ConfigError)
