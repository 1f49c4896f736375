"""A machine for pickles that runs nothing: what it understands and what ends the reading."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from data.plain_pickle import UnsafePickleError, load

VALUES: dict[Any, Any] = {
    "nothing": None,
    "numbers": [0, 1, 255, 256, 65_536, -1, 2**31 - 1],
    "answers": (True, False),
    "bytes": [b"a", b"\0\xff", b"x" * 300],
    "text": ["", "é", "x" * 300],
    "empty": ([], {}, ()),
    "tuples": ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    "long": [list(range(2000)), dict.fromkeys(range(2000))],
    1: {2: {b"three": [4]}},
}


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values(protocol: int) -> None:
    assert load(pickle.dumps(VALUES, protocol)) == VALUES


@pytest.mark.parametrize("protocol", range(6))
def test_a_value_that_is_used_twice(protocol: int) -> None:
    shared = ["x" * 50, b"y" * 50]
    assert load(pickle.dumps([shared, shared, shared[0]], protocol)) == [shared, shared, "x" * 50]


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_bytes_and_booleans_of_numpy(protocol: int) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    found = load(pickle.dumps({"a": pixels, "b": np.bool_(True), "c": [np.bool_(False)]}, protocol))
    assert found == {"a": pixels.tobytes(), "b": True, "c": [False]}
    assert load(pickle.dumps(pixels, protocol)) == pixels.tobytes()
    assert load(pickle.dumps(np.asfortranarray(pixels[:1]), protocol)) == pixels[:1].tobytes()


@pytest.mark.parametrize(
    "content, expected",
    [
        # Strings of Python 2, in the three forms that it had.
        (rb"S'a\x00\'b'" + b"\n.", b"a\0'b"),
        (b'S"ab"\n.', b"ab"),
        (b"S''\n.", b""),
        (b"U\x03a\xffb.", b"a\xffb"),
        (b"T\x03\0\0\0a\xffb.", b"a\xffb"),
        (b"\x96\x02\0\0\0\0\0\0\0ab.", b"ab"),
        # (1, 2) and [3]; the 9 is dropped, and so is what follows a mark.
        (b"(I1\nI2\nt.", (1, 2)),
        (b"K\x09(lI3\na.", [3]),
        (b"I1\nI9\n0.", 1),
        (b"I1\n(I9\nI8\n1.", 1),
        (b"(lp5\n0g5\n.", []),
        (b"(I1\nI2\nI3\nI4\nd.", {1: 2, 3: 4}),
        (b"}K\x01K\x02s.", {1: 2}),
        (b"}(K\x01K\x02K\x03K\x04u.", {1: 2, 3: 4}),
        # Nested marks: the inner list is made of what follows its own.
        (b"(I1\n(I2\nlI3\nl.", [1, [2], 3]),
    ],
)
def test_instructions_by_hand(content: bytes, expected: object) -> None:
    found = load(content)
    assert found == expected and type(found) is type(expected)


ENCODE = b"c_codecs\nencode\n"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\x01btR"
DTYPE = b"cnumpy\ndtype\n(U\x02u1K\0K\x01tR"


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "damaged: it has no end"),
        (b"I1\n", "damaged: it has no end"),
        (b".", "damaged"),
        (b"\xff.", r"damaged: there is no instruction b'\\xff'"),
        (b"Iabc\n.", "damaged"),
        (b"g7\n.", "damaged"),
        (b"0.", "damaged"),
        (b"I1\n\x86.", "damaged: the stack is too short"),
        (b"I1\nl.", "damaged: there is no mark"),
        (b"S'a\n.", "damaged: a string without quotes"),
        (b"S'\n.", "damaged: a string without quotes"),
        (b"Sab\n.", "damaged: a string without quotes"),
        (b"S'a\"\n.", "damaged: a string without quotes"),
        (b"U\x09ab.", "damaged"),
        (b"cos\nsystem\n.", "it wants to run os.system$"),
        (b"U\x02osU\x06system\x93.", "it wants to run os.system$"),
        (b"K\x01U\x06system\x93.", "a value of type int instead of text"),
        (b"c" + b"x" * 300 + b"\ny\n.", f"it wants to run {'x' * 100}$"),
        (b"I1\n)R.", "it calls a value that is not a function"),
        (ENCODE + b"I1\nR.", "it calls a value that is not a function"),
        (b"cnumpy\nndarray\n)R.", "it wants to run numpy.ndarray"),
        (ENCODE + b"(U\x01aU\x05ascii\x74R.", "text in the encoding 'ascii'"),
        (ENCODE + b"(K\x01U\x06latin1tR.", "a value of type int instead of text"),
        (b"G" + bytes(8) + b".", "it holds a binfloat"),
        (b"\x8f.", "it holds a empty set"),
        (b"I1\nI2\na.", "it appends to a value that is not a list"),
        (b"I1\n(I2\ne.", "it appends to a value that is not a list"),
        (b"I1\nI2\nI3\ns.", "it sets a key of a value that is not a dictionary"),
        (b"I1\n(I2\nI3\nu.", "it sets a key of a value that is not a dictionary"),
        (b"(I1\nd.", "a dictionary with keys other than text, bytes and integers"),
        (b"}(I1\nu.", "a dictionary with keys other than text, bytes and integers"),
        (b"}]K\x01s.", "a dictionary with keys other than text, bytes and integers"),
        (b"}(K\x01K\x02)K\x04u.", "a dictionary with keys other than text, bytes and integers"),
        (ARRAY + b".", "an array without content"),
        (b"(" + ARRAY + b"l.", "an array without content"),
        (ARRAY + b"I1\nb.", "it fills a value that is not an array"),
        (ARRAY + b"(K\x01K\x02tb.", "it fills a value that is not an array"),
        (b"I1\n(K\1K\2K\3K\4K\5tb.", "it fills a value that is not an array"),
        (ARRAY + b"(K\x01K\x02I3\nI00\nU\x01atb.", "an array or scalar of something else"),
        (ARRAY + b"(K\x01K\x02" + DTYPE + b"I00\nK\x05tb.", "an array or scalar of something else"),
    ],
)
def test_damage_and_danger_end_the_reading(content: bytes, message: str) -> None:
    with pytest.raises(UnsafePickleError, match=message):
        load(content)


@pytest.mark.parametrize(
    "value, message",
    [
        (np.zeros(3), "an array or scalar of something else"),
        (np.float32(1), "an array or scalar of something else"),
        (np.asfortranarray(np.zeros((2, 3), np.uint8)), "an array in Fortran's order"),
        (np.array([None]), "an array or scalar of something else|it "),
        (1.5, "it holds a (bin)?float"),
        ({1, 2}, "it wants to run|it holds a empty set"),
        (range(3), "it wants to run"),
    ],
)
@pytest.mark.parametrize("protocol", range(5))
def test_other_values_are_refused(value: object, message: str, protocol: int) -> None:
    with pytest.raises(UnsafePickleError, match=message):
        load(pickle.dumps(value, protocol))


def test_no_more_text_is_made_than_there_are_bytes_in_the_file() -> None:
    """A kilobyte that is encoded a thousand times would be a megabyte out of some kilobytes."""

    def content(length: int) -> bytes:
        text = b"X" + length.to_bytes(4, "little") + b"a" * length + b"q\0"
        return text + (ENCODE + b"h\0U\x06latin1\x86R0") * 2 + b"I1\n."

    # Encoded twice it is as long as the file; with one more letter, longer by one.
    length = len(content(0))
    assert load(content(length)) == 1
    with pytest.raises(UnsafePickleError, match="it makes more text than it holds"):
        load(content(length + 1))
