"""Lists, dictionaries, bytes and booleans out of a pickle, and nothing else.

A pickle is a program for a small machine, and one of that machine's instructions calls any function
of Python. InsightFace's verification sets and CIFAR-10's batches are pickles, and come from
strangers. This is a machine of its own, which has no such instruction: it looks up no name, calls
nothing and imports nothing. Four names mean something to it, because NumPy and Python 2 write bytes
and booleans with their help; what they stand for is written out here, and every other name ends the
reading. The time and the memory that it takes are those of the file.
"""

from __future__ import annotations

import codecs
import io
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Union

# What NumPy is asked to rebuild; the two places are those of its versions 1 and 2.
_NAMES = {
    "_codecs encode": "encode",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    **{
        f"{core}.{name}": kind
        for core in ("numpy.core", "numpy._core")
        for name, kind in (
            ("multiarray _reconstruct", "array"),
            ("multiarray scalar", "scalar"),
            ("numeric _frombuffer", "buffer"),
        )
    },
}
_BYTE, _BOOLEAN = "u1", "b1"
_MAX_NAME = 100


class UnsafePickleError(Exception):
    """The pickle holds something else than plain values and bytes, or is damaged."""


@dataclass(frozen=True)
class _Name:
    """A function or class that the pickle asks for."""

    kind: str


@dataclass(frozen=True)
class _Type:
    """A type of NumPy, by its code."""

    code: str


class _Array:
    """An array whose content follows."""

    content: Union[bytes, None] = None


class _Mark:
    """Where the items of a list or tuple begin."""


def load(content: bytes) -> Any:
    """Return what a pickle holds: lists, tuples, dictionaries, bytes, str, int, bool and None.

    An array of bytes becomes its bytes, in the order of its last axis.

    Raises:
        UnsafePickleError: there is anything else in it, or it is damaged.
    """
    return plain(_Machine(content).run())


def plain(value: Any) -> Any:
    """Return the bytes of an array, and everything else as it is."""
    if isinstance(value, _Array):
        if value.content is None:
            raise UnsafePickleError("an array without content")
        return value.content
    return value


class _Machine:
    """Runs the instructions of one pickle; see ``pickletools`` for their meanings."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        # Bytes that may still be made of text; a text is in the file once for each time it is used.
        self._allowance = len(content)

    def run(self) -> Any:
        try:
            for name, argument in _instructions(self._content):
                if name == "STOP":
                    return self._stack.pop()
                self._execute(name, argument)
        # Not enough on the stack or in the memo, or an argument that is cut off.
        except (IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise UnsafePickleError(f"damaged: {str(error)[:_MAX_NAME]}") from None
        raise UnsafePickleError("damaged: it has no end")

    def _execute(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _STORES:
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
        elif name in _FETCHES:
            self._stack.append(self._memo[argument])
        elif name in _TUPLES:
            count = _TUPLES[name]
            self._stack[len(self._stack) - count :] = [tuple(self._taken(count))]
        elif name in _OTHERS:
            _OTHERS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise UnsafePickleError(f"it holds a {name.lower().replace('_', ' ')}")

    def _taken(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError("nothing to make a tuple of")
        return self._stack[len(self._stack) - count :]

    def _since_mark(self) -> list[Any]:
        """Take everything from the last mark on."""
        for place in range(len(self._stack) - 1, -1, -1):
            if isinstance(self._stack[place], _Mark):
                items = self._stack[place + 1 :]
                del self._stack[place:]
                return items
        raise IndexError("there is no mark")

    def _pop(self, _: Any) -> None:
        self._stack.pop()

    def _pop_mark(self, _: Any) -> None:
        self._since_mark()

    def _make_list(self, _: Any) -> None:
        self._stack.append([plain(item) for item in self._since_mark()])

    def _make_tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _append(self, _: Any) -> None:
        item = self._stack.pop()
        self._list().append(plain(item))

    def _extend(self, _: Any) -> None:
        items = self._since_mark()
        self._list().extend(map(plain, items))

    def _list(self) -> list[Any]:
        if not isinstance(self._stack[-1], list):
            raise UnsafePickleError("something is appended to what is no list")
        found: list[Any] = self._stack[-1]
        return found

    def _make_dict(self, _: Any) -> None:
        self._stack.append(_pairs(self._since_mark()))

    def _set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._dict().update(_pairs([key, value]))

    def _set_items(self, _: Any) -> None:
        items = self._since_mark()
        self._dict().update(_pairs(items))

    def _dict(self) -> dict[Any, Any]:
        if not isinstance(self._stack[-1], dict):
            raise UnsafePickleError("something is set in what is no dictionary")
        found: dict[Any, Any] = self._stack[-1]
        return found

    def _name(self, argument: Any) -> None:
        self._push_name(str(argument))

    def _name_from_stack(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._push_name(f"{_text(module)} {_text(name)}")

    def _push_name(self, name: str) -> None:
        if name not in _NAMES:
            shown = name.replace(" ", ".")[:_MAX_NAME]
            raise UnsafePickleError(f"it wants to run {shown}")
        self._stack.append(_Name(_NAMES[name]))

    def _reduce(self, _: Any) -> None:
        arguments, name = self._stack.pop(), self._stack.pop()
        if not (isinstance(arguments, tuple) and isinstance(name, _Name)):
            raise UnsafePickleError("it wants to run what is no function")
        rebuild = _REBUILT.get(name.kind)
        if rebuild is None:
            raise UnsafePickleError("it wants to run numpy.ndarray")
        self._stack.append(rebuild(self, *arguments))

    def _build(self, _: Any) -> None:
        """Fill an array; of a type, byte order and alignment follow, which single bytes lack."""
        state = self._stack.pop()
        target = self._stack[-1]
        if isinstance(target, _Type):
            return
        if not isinstance(target, _Array) or not isinstance(state, tuple) or len(state) != 5:
            raise UnsafePickleError("it sets what is no array")
        if state[3] and len(state[1]) > 1:
            raise UnsafePickleError("an array in Fortran's order")
        target.content = _bytes_of(state[4], state[2], _BYTE)

    def _rebuild_bytes(self, text: Any, encoding: Any) -> bytes:
        """Bytes as protocol 2 stores them."""
        if _text(encoding) != "latin1":
            raise UnsafePickleError(f"text in the encoding {_text(encoding)[:_MAX_NAME]!r}")
        encoded = _text(text).encode("latin1")
        self._allowance -= len(encoded)
        if self._allowance < 0:
            raise UnsafePickleError("more text is made of it than is in it")
        return encoded

    def _rebuild_type(self, code: Any, *_: Any) -> _Type:
        return _Type(_text(code))

    def _rebuild_array(self, *_: Any) -> _Array:
        return _Array()

    def _rebuild_scalar(self, dtype: Any, content: Any) -> bool:
        return _bytes_of(content, dtype, _BOOLEAN) != b"\0"

    def _rebuild_buffer(self, content: Any, dtype: Any, *_: Any) -> _Array:
        array = _Array()
        array.content = _bytes_of(content, dtype, _BYTE)
        return array


_INSTRUCTIONS = {instruction.code: instruction for instruction in pickletools.opcodes}


def _instructions(content: bytes) -> Iterator[tuple[str, Any]]:
    """Yield names and arguments; what Python 2 calls a string is bytes here."""
    file = io.BytesIO(content)
    while code := file.read(1):
        instruction = _INSTRUCTIONS.get(code.decode("latin1"))
        if instruction is None:
            raise ValueError(f"there is no instruction {code!r}")
        argument: Any = None
        if instruction.name == "STRING":
            argument = _read_escaped(file)
        elif instruction.arg is not None:
            argument = instruction.arg.reader(file)
            if instruction.name in ("BINSTRING", "SHORT_BINSTRING"):
                argument = argument.encode("latin1")
            elif isinstance(argument, bytearray):
                argument = bytes(argument)
        yield instruction.name, argument


def _read_escaped(file: io.BytesIO) -> bytes:
    line = file.readline()
    if len(line) < 3 or line[:1] not in b"'\"" or line[-2:-1] != line[:1]:
        raise ValueError("a string without quotes")
    unescaped: Any = codecs.escape_decode(line[1:-2])[0]
    return bytes(unescaped)


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Return keys and values that follow each other; only what cannot change is a key."""
    keys, values = items[::2], items[1::2]
    if len(keys) != len(values) or not all(isinstance(key, (str, bytes, int)) for key in keys):
        raise UnsafePickleError("a dictionary with keys of its own kind")
    return dict(zip(keys, map(plain, values)))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("latin1")
    if not isinstance(value, str):
        raise UnsafePickleError(f"a {type(value).__name__} in the place of text")
    return value


def _bytes_of(content: Any, dtype: Any, code: str) -> bytes:
    if not (isinstance(dtype, _Type) and dtype.code == code and isinstance(content, bytes)):
        raise UnsafePickleError("an array or scalar of something else than bytes or booleans")
    return content


_LITERALS = frozenset(
    "INT LONG1 BININT BININT1 BININT2 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES "
    "BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8".split()
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "MARK": _Mark,
}
_STORES = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"))
_FETCHES = frozenset(("GET", "BINGET", "LONG_BINGET"))
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_OTHERS: dict[str, Callable[[_Machine, Any], None]] = {
    "POP": _Machine._pop,
    "POP_MARK": _Machine._pop_mark,
    "LIST": _Machine._make_list,
    "TUPLE": _Machine._make_tuple,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._extend,
    "DICT": _Machine._make_dict,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    "GLOBAL": _Machine._name,
    "STACK_GLOBAL": _Machine._name_from_stack,
    "REDUCE": _Machine._reduce,
    "BUILD": _Machine._build,
}
_REBUILT: dict[str, Callable[..., Any]] = {
    "encode": _Machine._rebuild_bytes,
    "dtype": _Machine._rebuild_type,
    "array": _Machine._rebuild_array,
    "scalar": _Machine._rebuild_scalar,
    "buffer": _Machine._rebuild_buffer,
}
