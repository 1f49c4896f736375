"""Lists, dictionaries, bytes, text and numbers out of a pickle, and nothing else.

A pickle is a program for a small machine, and one of that machine's instructions calls any function
of Python. InsightFace's verification sets and CIFAR-10's batches are pickles, and come from
strangers. Here Python's own machine runs them, with the instructions for plain values alone; it
looks up no name and imports nothing. It has stand-ins for the few functions with which NumPy and
Python 2 write bytes, numbers and arrays of these, and every other name is an error.

Time and memory are bounded by the size of the file. ``pickle.Unpickler`` cannot have these bounds,
whatever its ``find_class`` allows: a number of its memo takes an array of that length, and a key
that is a nested tuple is hashed forever. So this class is derived from the form of it that is
written in Python, whose memo is a dictionary and whose instructions can be replaced.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import numpy as np
from typing_extensions import override

_BYTE = "u1"
# Objects; booleans, integers and floats; bytes of one length. Each in NumPy's code.
_OBJECT, _PLAIN = re.compile(r"O[48]?"), re.compile(r"b1|[iu][1248]|f[248]|S\d{1,9}")
_MAX_NAME = 100
# Equal keys are compared, each time one is set.
_LONGEST_KEY = 1000
# Among larger integers are many that a dictionary looks for in the same places, one after another.
_MAX_KEY = 1 << 20

_INSTRUCTIONS = (
    "PROTO FRAME STOP MARK POP POP_MARK PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET "
    "NONE NEWTRUE NEWFALSE INT LONG LONG1 BININT BININT1 BININT2 FLOAT BINFLOAT "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 "
    "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS SETITEM SETITEMS "
    "GLOBAL STACK_GLOBAL REDUCE"
).split()


class UnsafePickleError(Exception):
    """The pickle holds something else than plain values and bytes, or is damaged."""


@dataclass
class _Type:
    """A type of NumPy, by its code and the order of its bytes."""

    code: str
    order: str = "="


@dataclass
class _Array:
    """An array; None until its content has been read."""

    content: Any = None


class _Memo(dict[int, Any]):
    """The values that a pickle uses again; of an array its content."""

    @override
    def __getitem__(self, number: int) -> Any:
        found = super().__getitem__(number)
        is_filled = isinstance(found, _Array) and found.content is not None
        return found.content if is_filled else found


class _Dictionary(dict[Any, Any]):
    """A dictionary whose keys take no long comparison; few of them have equal hashes."""

    @override
    def __setitem__(self, key: Any, value: Any) -> None:
        is_text = isinstance(key, (str, bytes)) and len(key) <= _LONGEST_KEY
        if not is_text and not (isinstance(key, int) and abs(key) < _MAX_KEY):
            raise UnsafePickleError(
                "a dictionary with keys other than text, bytes and integers, or too long ones"
            )
        super().__setitem__(key, value)


def load(content: bytes) -> Any:
    """Return what a pickle holds: lists, tuples, dictionaries, bytes, str, numbers and None.

    An array of bytes becomes its bytes, any other one the list of its elements, both in the order
    of the last axis.

    Raises:
        UnsafePickleError: there is anything else in it, or it is damaged.
    """
    file = io.BytesIO(content)
    try:
        value = _Unpickler(file, len(content)).load()
    except KeyError as error:
        raise UnsafePickleError(f"damaged, or it holds objects (instruction {error})") from None
    # Too few values on the stack, values of other types, or an argument that is cut off.
    except (
        pickle.UnpicklingError, EOFError, IndexError, ValueError, TypeError, AttributeError,
        OverflowError, struct.error,
    ) as error:  # fmt: skip
        raise UnsafePickleError(f"damaged: {str(error)[:_MAX_NAME] or 'no end'}") from None
    if isinstance(value, _Array):
        raise UnsafePickleError("an array without content")
    if file.read(1):
        raise UnsafePickleError("bytes follow its end")
    return value


class _Unpickler(pickle._Unpickler):
    """Python's machine with fewer instructions; see ``pickletools`` for their meanings."""

    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: io.BytesIO, size: int) -> None:
        # A string of Python 2 is bytes.
        super().__init__(file, encoding="bytes")
        self.memo = _Memo()
        # Bytes that may still be copied: text becomes bytes once, and these fill an array once.
        self._allowance = 2 * size
        self._functions: dict[str, Optional[Callable[..., Any]]] = {
            "_codecs.encode": self._encode,
            # An argument of the next one, and never called.
            "numpy.ndarray": None,
            "numpy.core.multiarray._reconstruct": lambda kind, shape, code: _Array(),
            "numpy.core.multiarray.scalar": lambda dtype, content: self._elements(
                content, dtype, (), False
            ),
            "numpy.core.numeric._frombuffer": lambda content, dtype, shape, order: self._elements(
                content, dtype, shape, _name(order) == "F"
            ),
            "numpy.dtype": lambda code, align=False, copy=False: _Type(_name(code)),
            "builtins.bytes": self._bytes,
            "builtins.bytearray": self._bytes,
        }

    @override
    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a function; NumPy 2 and Python 2 have other names of modules."""
        full = f"{module}.{name}".replace("numpy._core", "numpy.core")
        full = full.replace("__builtin__", "builtins")
        if full not in self._functions:
            raise UnsafePickleError(f"it wants to run {full[:_MAX_NAME]}")
        return self._functions[full]

    def _load_empty_dictionary(self) -> None:
        self.append(_Dictionary())

    def _load_dict(self) -> None:
        items, found = self.pop_mark(), _Dictionary()
        for number in range(0, len(items), 2):
            found[items[number]] = items[number + 1]
        self.append(found)

    def _load_build(self) -> None:
        """Fill an array, or say in which order the bytes of a type are."""
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, _Type):
            target.order = _name(state[1])
        elif isinstance(target, _Array):
            _, shape, dtype, is_transposed, content = state
            target.content = self._elements(content, dtype, shape, bool(is_transposed))
            self.stack[-1] = target.content
        else:
            raise UnsafePickleError("it fills a value that is not an array")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{
            code: pickle._Unpickler.dispatch[code]
            for code in (ord(getattr(pickle, name)) for name in _INSTRUCTIONS)
        },
        # Python's own would make a bytearray of any length before it reads one.
        ord(pickle.BYTEARRAY8): pickle._Unpickler.dispatch[ord(pickle.BINBYTES8)],
        ord(pickle.EMPTY_DICT): _load_empty_dictionary,
        ord(pickle.DICT): _load_dict,
        ord(pickle.BUILD): _load_build,
    }

    def _elements(self, content: Any, dtype: Any, shape: Any, is_transposed: bool) -> Any:
        """Return the elements of an array in the order of its last axis; of no axis, its value."""
        if not isinstance(dtype, _Type) or not isinstance(shape, tuple):
            raise UnsafePickleError("an array without a type or a shape")
        if _OBJECT.fullmatch(dtype.code) and isinstance(content, list):
            return content
        if not (_PLAIN.fullmatch(dtype.code) and isinstance(content, bytes)):
            raise UnsafePickleError(f"an array of type {dtype.code!r}")
        self._copy(len(content))
        order = ">" if dtype.order == ">" else "<"
        array = np.frombuffer(content, order + dtype.code)
        array = array.reshape(shape, order="F" if is_transposed else "C")
        if not shape:
            return array.item()
        if dtype.code != _BYTE:
            return array.ravel().tolist()
        if len(shape) > 2:
            size = " x ".join(map(str, shape))
            raise UnsafePickleError(f"pixels ({size}), where an encoded image or a table belongs")
        return array.tobytes() if is_transposed else content

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """Return bytes as protocol 2 stores them."""
        if _name(encoding) not in ("latin1", "latin-1") or not isinstance(text, str):
            raise UnsafePickleError(f"text in the encoding {_name(encoding)!r}")
        self._copy(len(text))
        return text.encode("latin1")

    def _bytes(self, content: Any = b"", encoding: Any = None) -> bytes:
        """Return the content of ``bytes`` or ``bytearray``."""
        if encoding is not None:
            return self._encode(content, encoding)
        if not isinstance(content, bytes):
            raise UnsafePickleError(f"bytes of a value of type {type(content).__name__}")
        return content

    def _copy(self, length: int) -> None:
        self._allowance -= length
        if self._allowance < 0:
            raise UnsafePickleError("it makes more bytes than it holds")


def _name(value: Any) -> str:
    """Return text; refuse long text, since each call makes a copy."""
    if not isinstance(value, (str, bytes)) or len(value) > _MAX_NAME:
        raise UnsafePickleError("a name that is long or no text")
    return value if isinstance(value, str) else value.decode("latin1")
