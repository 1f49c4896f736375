from __future__ import annotations

import os
import pickle
import resource
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.plain_pickle import UnsafePickleError, load
from data.verification.bin_file import VerificationSet, read_bin, write_bin
from data.verification.pairs import draw_pairs, read_pairs
from runtime.errors import ConfigError
from tests.support.sets import assert_refused, write_files

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 255, 256, 65_536, -1, 2**31 - 1, 2**31, -(2**70), 0.0, -1.5),
    *(b"", b"a", b"\0\xff", b"x" * 300, "", "é", "x" * 300, [], {}, ()),
    *((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {1: {2: {b"three": [4]}}, "five": 5}),
    *(list(range(2000)), dict.fromkeys(range(2000)), [bytearray(b"ab\xff"), bytearray()]),
]
ARRAYS = [
    (np.array([True, False, True]), [True, False, True]),
    (np.array([[1, 0], [0, 700]], ">u2"), [1, 0, 0, 700]),
    (np.array([0.5, 1], np.float32), [0.5, 1.0]),
    (np.array([b"\xff\xd8", b"abc"]), [b"\xff\xd8", b"abc"]),
    (np.array([b"a", bytearray(b"bc"), None], object), [b"a", b"bc", None]),
    (np.asfortranarray(np.arange(6).reshape(2, 3)), [0, 1, 2, 3, 4, 5]),
    (np.arange(24, dtype=np.uint8).reshape(4, 6), bytes(range(24))),
    *(
        (np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(shape)), bytes(range(6)))
        for shape in ((2, 3), (1, 6))
    ),
    (np.float64(0.25), 0.25),
    (np.bool_(False), False),
    (np.array(True), True),
]
ENCODE = b"c_codecs\nencode\n"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\x01btR"
DTYPE = b"cnumpy\ndtype\n(U\x02u1K\0K\x01tR"
HUGE = (1 << 40).to_bytes(8, "little")
ANSWERS_AS = [
    (True, False, True),
    [np.bool_(True), 0.0, 1],
    *(np.array([1, 0, 1], kind) for kind in (bool, np.uint8, ">i4", np.float32, object)),
    np.array([[True], [False], [True]]),
]
LINES = ["1\t2", "Ann\t1\t2", "Ann\t2\t12", "Ann\t1\tBob_B\t1", "Bob_B\t1\tAnn\t12"]
NAMES = ("Ann_0001.jpg", "Ann_0002.png", "Ann_0012.jpg", "Bob_B_0001.jpg", "Ann Lee_0001.JPG",
         "Ann Lee_0002.PNG", "Bob, Roy_0001")  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values(protocol: int) -> None:
    found = load(pickle.dumps(VALUES, protocol))
    assert found == VALUES and [type(one) for one in found[-1]] == [bytes, bytes]
    shared = ["x" * 50, b"y" * 50]
    assert load(pickle.dumps([shared, shared, shared[0]], protocol)) == [shared, shared, "x" * 50]


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_and_scalars_of_numpy(protocol: int) -> None:
    for value, expected in ARRAYS:
        contents = [pickle.dumps([value, value], protocol)]
        if protocol < 4:
            # NumPy 1 and 2 write another name; from protocol 4 on its length stands before it.
            plain = contents[0].replace(b"numpy._core", b"numpy.core")
            contents = [plain, plain.replace(b"numpy.core", b"numpy._core")]
        for content in contents:
            found = load(content)
            assert found == [expected] * 2 and type(found[0]) is type(expected), value


@pytest.mark.parametrize("content, expected", [
    # Strings of Python 2, in the three forms that it had.
    (rb"S'a\x00\'b'" + b"\n.", b"a\0'b"),
    (b"U\x03a\xffb.", b"a\xffb"),
    (b"T\x03\0\0\0a\xffb.", b"a\xffb"),
    (b"\x96\x02\0\0\0\0\0\0\0ab.", b"ab"),
    (b"(I1\nI2\nI3\nI4\nd.", {1: 2, 3: 4}),
    (b"}K\x01K\x02s.", {1: 2}),
    (b"}(K\x01K\x02K\x03K\x04u.", {1: 2, 3: 4}),
])  # fmt: skip
def test_instructions_by_hand(content: bytes, expected: object) -> None:
    found = load(content)
    assert found == expected and isinstance(found, type(expected))


@pytest.mark.parametrize("content, message", [
    (b"", "damaged: no end"),
    (b"I1\n.I2\n.", "bytes follow its end"),
    (b"\xff.", "damaged, or it holds objects .instruction 255"),
    *((content, "damaged") for content in (b"g7\n.", b"I1\n\x86.", b"U\x09ab.", b"I1\nI2\na.")),
    (b"S'a\n.", "damaged: .*must be quoted"),
    (b"cos\nsystem\n.", "it wants to run os.system$"),
    (b"c" + b"x" * 300 + b"\ny\n.", f"it wants to run {'x' * 100}$"),
    (ENCODE + b"(U\x01aU\x05ascii\x74R.", "text in the encoding 'ascii'"),
    (ENCODE + b"(K\x01U\x06latin1tR.", "text in the encoding 'latin1'"),
    (b"c__builtin__\nbytes\nI9\n\x85R.", "bytes of a value of type int"),
    (DTYPE.replace(b"U\x02u1", b"U\x65" + b"u" * 101) + b".", "a name that is long"),
    (DTYPE + b"(K\x03U\x65" + b"<" * 101 + b"tb.", "a name that is long"),
    *((content, "damaged, or it holds objects") for content in (b"(ios\nsystem\n.", b"\x82\x01.")),
    # Of the first two kinds of keys many have one hash.
    *((content, "a dictionary with keys other than text, bytes and integers") for content in (
        b"}I2305843009213693951\nK\x01s.", b"}J\x00\x00\x10\x00K\x01s.",
        b"}K\x01K\x02\x86K\x01s.", b"}(K\x01K\x02)K\x04u.")),
    (ARRAY + b".", "an array without content"),
    (b"I1\n(K\1K\2K\3K\4K\5tb.", "it fills a value that is not an array"),
    # Python's own would set an attribute of the stand-in.
    (ENCODE + b"}U\x01aK\x01sb.", "it fills a value that is not an array"),
    *((ARRAY + b"(K\x01K\x02" + given + b"I00\nU\x01atb.", "an array without a type or a shape")
      for given in (b"I3\n", b"\x85I3\n", DTYPE)),
    (ARRAY + b"(K\x01K\x02\x85" + DTYPE + b"I00\nK\x05tb.", "an array of type 'u1'"),
])  # fmt: skip
def test_damage_and_danger_end_the_reading(content: bytes, message: str) -> None:
    assert_refused(message, load, content, kind=UnsafePickleError)


@pytest.mark.parametrize("value, message", [
    (np.zeros(3, complex), "an array of type 'c16'"),
    (np.array(["text"]), "an array of type 'U4'"),
    (np.zeros(2, [("a", "u1"), ("b", "u1")]), "an array of type 'V2'"),
    (np.zeros((2, 4, 3), np.uint8), r"pixels \(2 x 4 x 3\), where an encoded image"),
    (1j, "it wants to run"),
    (range(3), "it wants to run"),
])  # fmt: skip
@pytest.mark.parametrize("protocol", range(5))
def test_other_values_are_refused(value: object, message: str, protocol: int) -> None:
    assert_refused(message, load, pickle.dumps(value, protocol), kind=UnsafePickleError)


def text(length: int) -> bytes:
    return b"X" + length.to_bytes(4, "little") + b"a" * length


def test_no_more_is_made_than_there_are_bytes_in_the_file() -> None:
    """A kilobyte that is encoded a thousand times would be a megabyte out of some kilobytes."""

    def content(length: int) -> bytes:
        return text(length) + b"q\0" + (ENCODE + b"h\0U\x06latin1\x86R0") * 3 + b"I1\n."

    # Encoded three times it is twice as long as the file; with one more letter, longer by one.
    length = 2 * len(content(0))
    # A hundred arrays share the bytes of one.
    head = b"U\xff" + bytes(255) + b"q\0"
    array = ARRAY + b"(K\x01(I255\nt" + DTYPE.replace(b"u1", b"b1") + b"I00\nh\0tb0"
    for enough, more in (
        (content(length), content(length + 1)),
        (head + array + b"I1\n.", head + array * 100 + b"I1\n."),
    ):
        assert load(enough) == 1
        assert_refused("it makes more bytes than it holds", load, more, kind=UnsafePickleError)


# A tuple of many arguments, a long code, and two equal keys, each used many times.
ARGUMENTS = b"cnumpy\ndtype\nq\0(" + b"N" * 100_000 + b"tq\1" + b"h\0h\1R0" * 6000
CODE = b"cnumpy\ndtype\nq\0" + text(1_000_000) + b"\x85q\1(" + b"h\0h\1R" * 300
LONG_KEYS = text(1_500_000) + b"q\0" + text(1_500_000) + b"q\1}h\0Ns" + b"h\1Ns" * 60_000


@pytest.mark.parametrize(("content", "message"), [
    (ARGUMENTS, "damaged: .*arguments"),
    (CODE, "a name that is long"),
    (LONG_KEYS, "or too long ones"),
    (b"}" + text(1001) + b"Ns", "or too long ones"),
    (b"}T\xe9\3\0\0" + bytes(1001) + b"Ns", "or too long ones"),
    *((code + HUGE + b"ab", "damaged") for code in (b"\x96", b"\x8e", b"\x8d", b"\x95")),
], ids=["arguments", "code", "keys", "text", "bytes", *"1234"])  # fmt: skip
def test_no_content_takes_more_time_or_memory_than_its_bytes(content: bytes, message: str) -> None:
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_refused(message, load, content + b"N.", kind=UnsafePickleError)
    assert time.process_time() - began < 1
    assert load(b"}" + text(1000) + b"Ns.") == {"a" * 1000: None}
    assert load(b"I1\nr\xff\xff\xff\xffp2305843009213693951\n.") == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16


@pytest.fixture
def faces(make_image) -> list[bytes]:
    return [make_image(number) for number in range(6)]


def pickled(folder: Path, content: object, protocol: int = 4) -> Path:
    return write_files(folder, {"set.bin": pickle.dumps(content, protocol)}) / "set.bin"


def test_a_written_set_reads_back(tmp_path, faces, make_image) -> None:
    write_bin(tmp_path / "lfw.bin", faces, [True, False, True])
    target = read_bin(str(tmp_path / "lfw.bin"))
    assert (target.name, len(target), target.same.tolist()) == ("lfw", 6, [True, False, True])
    assert target.images == faces
    written = (tmp_path / "lfw.bin").read_bytes()
    assert pickle.loads(written) == (faces, [True, False, True])
    assert written[:2] == b"\x80\x04", "the protocol that every Python since 3.4 reads"
    pixels = target.pixels(2, (16, 16))
    assert pixels.shape == (3, 16, 16) and pixels.dtype == np.uint8
    assert (pixels == np.array([2, 7, 253])[:, None, None]).all()
    target = VerificationSet(Path("a.bin"), [make_image(9, (250, 250))] * 2, np.ones(1, np.bool_))
    assert (target.pixels(1, (112, 112))[0] == 9).all()


def test_images_of_several_pairs_are_known_by_their_bytes(faces) -> None:
    images = [faces[0], faces[1], faces[2], bytes(bytearray(faces[0])), faces[2], faces[2]]
    target = VerificationSet(Path("a.bin"), images, np.array([True, False, True]))
    assert target.firsts.tolist() == [0, 1, 2, 0, 2, 2]
    assert target.firsts.dtype == np.int64


IMAGES_AS: list[Any] = [
    list,
    lambda faces: [np.frombuffer(face, np.uint8).reshape(-1, 1) for face in faces],
    lambda faces: np.array([bytearray(face) for face in faces], object).reshape(3, 2),
    np.array,
]


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_every_plain_form_is_read(tmp_path, faces, protocol: int) -> None:
    parts = [(make(faces), ANSWERS_AS[0]) for make in IMAGES_AS]
    for images, same in [*parts, *((faces, answers) for answers in ANSWERS_AS)]:
        for content in ([images, same], {b"issame_list": same, b"bins": images, b"more": 1}):
            target = read_bin(pickled(tmp_path, content, protocol))
            assert target.images == faces
            assert target.same.dtype == np.bool_ and target.same.tolist() == [True, False, True]


@pytest.mark.parametrize("protocol", [0, 4])
def test_code_in_a_pickle_does_not_run(tmp_path, faces, protocol: int) -> None:
    trace = tmp_path / "trace"
    attack = type("Attack", (), {"__reduce__": lambda _: (os.mkdir, (str(trace),))})()
    for content in (attack, (faces, [attack] * 3), ([attack, *faces[1:]], [True] * 3)):
        assert_refused("wants to run .*mkdir", read_bin, pickled(tmp_path, content, protocol))
    assert not trace.exists()


@pytest.mark.parametrize("content", [
    "text", (["text", "text"], [True]), ([b"a", b"b", b"c"], [True]), (b"ab", [True]), ([], []),
    *(([b"a", b"b"], same) for same in ([2], [True, False], [np.float64(0.5)], [None], True)),
    {"bins": [b"a", b"b"]}, (np.zeros((2, 4, 4, 3), np.uint8), [True]),
])  # fmt: skip
def test_anything_else_is_no_verification_set(tmp_path, content: object) -> None:
    assert_refused(r"set\.bin", read_bin, pickled(tmp_path, content))


def test_damaged_files_and_images_are_named(tmp_path, faces) -> None:
    path = tmp_path / "a.bin"
    assert_refused(r"a\.bin cannot be read", read_bin, path)
    write_bin(path, [*faces[:3], b"junk"], [True] * 2)
    target = read_bin(path)
    assert_refused("image 3: the image cannot be decoded", target.pixels, 3, (16, 16))
    content = path.read_bytes()
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        assert_refused(r"a\.bin", read_bin, path)


def read(folder: Path, content):
    """Read a list of pairs; an image is given as its file's name."""
    write_files(folder, {f"{name[: name.rindex('_')]}/{name}": b"" for name in NAMES})
    text = content if isinstance(content, bytes) else ("\n".join(content) + "\n").encode()
    (folder / "pairs.txt").write_bytes(text)
    pairs = read_pairs(folder / "pairs.txt", folder)
    assert all(file.parent.parent == folder for pair in pairs for file in pair[:2])
    return [(first.name, second.name, same) for first, second, same in pairs]


@pytest.mark.parametrize("header", ["1\t2", "2"])
def test_pairs_in_the_format_of_lfw(tmp_path, header: str) -> None:
    assert read(tmp_path, [header, *LINES[1:]]) == [
        ("Ann_0001.jpg", "Ann_0002.png", True),
        ("Ann_0002.png", "Ann_0012.jpg", True),
        ("Ann_0001.jpg", "Bob_B_0001.jpg", False),
        ("Bob_B_0001.jpg", "Ann_0012.jpg", False),
    ]
    for content, message in ((b"\xff\xfe\x00", "pairs.txt cannot be read"), (b"", "line 1")):
        assert_refused(message, read, tmp_path, content)


@pytest.mark.parametrize("text", [
    "1 1\nAnn Lee\t1\t2\nAnn Lee\t1\tBob, Roy\t1\n".encode("utf-16"),
    b"\xef\xbb\xbf1\t1\r\n# same\r\nAnn Lee\t1\t2\r\n\r\n#\r\nAnn Lee\t1\tBob, Roy\t1",
    b'1,1,,\nAnn Lee,1,2,\nAnn Lee,1,"Bob, Roy",1\n',
    b'1;1;;\nAnn Lee;1;0002;\n"Ann Lee";1;Bob, Roy;1\n',
    b'1\n"Ann Lee" 1 2\n"Ann Lee"  1 "Bob, Roy" 1\n',
])  # fmt: skip
def test_names_with_spaces(tmp_path, text: bytes) -> None:
    assert read(tmp_path, text) == [
        ("Ann Lee_0001.JPG", "Ann Lee_0002.PNG", True), ("Ann Lee_0001.JPG", "Bob, Roy_0001", False)
    ]  # fmt: skip


@pytest.mark.parametrize("line", [
    "Ann Lee 1 2", "Ann Lee\t1 2", "Ann/Ann_0001.jpg Ann/Ann_0002.jpg 1", "\t1\t2",
    "name,imagenum1,imagenum2", "Ann\t1\t\t2",
])  # fmt: skip
def test_other_layouts_are_refused(tmp_path, line: str) -> None:
    """CALFW, CPLFW, CFP and lists of paths: never read as another pair."""
    message = "line 2: .* 'name i j' nor 'name1 i name2 j'"
    assert_refused(message, read, tmp_path, ["1 1", line, LINES[2]])
    message = "line 1: .* instead of the numbers of folds and pairs"
    assert_refused(message, read, tmp_path, [line, *LINES])


@pytest.mark.parametrize(("number", "line", "message"), [
    (1, "2\t2", "announces 8 pairs .* holds 4"),
    (1, "2\t1", "of the 2 pairs of fold 1, 2 instead of 1 are of one person; sort them"),
    (3, "Ann\t2\tBob_B\t1", "of the 4 pairs of fold 1, 1 instead of 2 are of one person"),
    (3, "../Ann\t1\t2", "line 3: .* is neither"),
    (3, f"{'A' * 201}\t1\t2", "line 3: .* is neither"),
    (3, f"{'A' * 200}\t1\t2", "line 3: there is no image"),
    (3, "Ann\t123456789\t2", r"line 3: there is no image .*Ann_123456789\.jpg"),
    (3, "Ann\t1234567890\t2", "line 3: .* is neither"),
    (5, "Ann\t1\tBob_B\t7", r"line 5: there is no image .*Bob_B_0007\.jpg"),
])  # fmt: skip
def test_wrong_lines_are_named(tmp_path, number: int, line: str, message: str) -> None:
    assert_refused(message, read, tmp_path, [*LINES[: number - 1], line, *LINES[number:]])


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
])  # fmt: skip
def test_impossible_draws_say_why(counts: list[int], count: int, message: str) -> None:
    assert_refused(message, drawn, counts, count, 10, kind=ConfigError)
