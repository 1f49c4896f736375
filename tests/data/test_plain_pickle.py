from __future__ import annotations

import pickle
import resource
import time
from typing import Any

import numpy as np
import pytest

from data.plain_pickle import UnsafePickleError, load
from tests.support.sets import assert_refused

VALUES: dict[Any, Any] = {
    "nothing": None,
    "numbers": [0, 1, 255, 256, 65_536, -1, 2**31 - 1, 2**31, -(2**70), 0.0, -1.5],
    "bytearrays": [bytearray(b"ab\xff"), bytearray()],
    "no bytes": b"",
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
    found = load(pickle.dumps(VALUES, protocol))
    assert found == VALUES
    assert [type(one) for one in found["bytearrays"]] == [bytes, bytes]
    shared = ["x" * 50, b"y" * 50]
    assert load(pickle.dumps([shared, shared, shared[0]], protocol)) == [shared, shared, "x" * 50]
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for array in (pixels, np.asfortranarray(pixels[:1])):
        assert load(pickle.dumps(array, protocol)) == array.tobytes()


ARRAYS = [
    (np.array([True, False, True]), [True, False, True]),
    (np.array([1, -1, 300]), [1, -1, 300]),
    (np.array([[1, 0], [0, 700]], ">u2"), [1, 0, 0, 700]),
    (np.array([0.5, 1], np.float32), [0.5, 1.0]),
    (np.array([b"\xff\xd8", b"abc"]), [b"\xff\xd8", b"abc"]),
    (np.array([b"a", bytearray(b"bc"), None], object), [b"a", b"bc", None]),
    (np.array([[1, 2], [3, 4]], object).T, [1, 3, 2, 4]),
    (np.asfortranarray(np.arange(6).reshape(2, 3)), [0, 1, 2, 3, 4, 5]),
    (np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)), bytes(range(6))),
    (np.int64(-3), -3),
    (np.float64(0.25), 0.25),
    (np.bool_(False), False),
    (np.array(True), True),
]


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
    assert found == expected and type(found) is type(expected)


ENCODE = b"c_codecs\nencode\n"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\x01btR"
DTYPE = b"cnumpy\ndtype\n(U\x02u1K\0K\x01tR"
KEYS = "a dictionary with keys other than text, bytes and integers"


@pytest.mark.parametrize("content, message", [
    (b"", "damaged: no end"),
    (b"I1\n.I2\n.", "bytes follow its end"),
    (b"\xff.", "damaged, or it holds objects .instruction 255"),
    (b"g7\n.", "damaged"),
    (b"I1\n\x86.", "damaged"),
    (b"S'a\n.", "damaged: .*must be quoted"),
    (b"U\x09ab.", "damaged"),
    (b"cos\nsystem\n.", "it wants to run os.system$"),
    (b"U\x02osU\x06system\x93.", "damaged: STACK_GLOBAL requires str"),
    (b"c" + b"x" * 300 + b"\ny\n.", f"it wants to run {'x' * 100}$"),
    (b"I1\n)R.", "damaged: .*not callable"),
    (ENCODE + b"(U\x01aU\x05ascii\x74R.", "text in the encoding 'ascii'"),
    (ENCODE + b"(K\x01U\x06latin1tR.", "text in the encoding 'latin1'"),
    (b"c__builtin__\nbytes\nI9\n\x85R.", "bytes of a value of type int"),
    (DTYPE.replace(b"U\x02u1", b"U\x65" + b"u" * 101) + b".", "a name that is long"),
    (DTYPE + b"(K\x03U\x65" + b"<" * 101 + b"tb.", "a name that is long"),
    (b"(ios\nsystem\n.", "damaged, or it holds objects"),
    (b"\x82\x01.", "damaged, or it holds objects"),
    # Keys of which many have one hash.
    (b"}I2305843009213693951\nK\x01s.", KEYS),
    (b"}J\x00\x00\x10\x00K\x01s.", KEYS),
    (b"}K\x01K\x02\x86K\x01s.", KEYS),
    (b"(I1\nd.", KEYS),
    (b"}(K\x01K\x02)K\x04u.", KEYS),
    (b"I1\nI2\na.", "damaged"),
    (b"I1\nI2\nI3\ns.", "it sets a key of a value that is not a dictionary"),
    (ARRAY + b".", "an array without content"),
    (ARRAY + b"(K\x01K\x02tb.", "damaged"),
    (b"I1\n(K\1K\2K\3K\4K\5tb.", "it fills a value that is not an array"),
    # Python's own would set an attribute of the stand-in.
    (ENCODE + b"}U\x01aK\x01sb.", "it fills a value that is not an array"),
    *((ARRAY + b"(K\x01K\x02" + given + b"I00\nU\x01atb.", "an array without a type or a shape")
      for given in (b"I3\n", b"\x85I3\n", DTYPE)),
    (ARRAY + b"(K\x01K\x02\x85" + DTYPE + b"I00\nK\x05tb.", "an array of type 'u1'"),
    (ARRAY + b"(K\x01K\x02\x85" + DTYPE + b"I00\nU\x03abctb.", "damaged: cannot reshape"),
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


HUGE = (1 << 40).to_bytes(8, "little")
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
    """Values that are used many times, lengths before their bytes, numbers of the memo."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_refused(message, load, content + b"N.", kind=UnsafePickleError)
    assert time.process_time() - began < 1
    assert load(b"}" + text(1000) + b"Ns.") == {"a" * 1000: None}
    assert load(b"I1\nr\xff\xff\xff\xffp2305843009213693951\n.") == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16
