"""Lists, dictionaries, bytes, text and numbers out of a pickle, and nothing else.

A pickle is a program for a small machine, and one of that machine's instructions calls any function
of Python. InsightFace's verification sets and CIFAR-10's batches are pickles, and come from
strangers. The machine in this module has no such instruction: it looks up no name, calls nothing
and imports nothing. It knows the few names with which NumPy and Python 2 write bytes, numbers and
arrays of these, and Python's ordered dictionaries and deques, and every other name is an error. Its
time and memory are bounded by the size of the file, which those of ``pickle.Unpickler`` are not,
whatever its ``find_class`` allows: a number of its memo takes an array of that length, and a key
that is a nested tuple is hashed forever.
"""

from __future__ import annotations

import codecs
import io
import pickletools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Optional, TypeVar, Union

import numpy as np

_Kind = TypeVar("_Kind")

_BYTE = "u1"
# Objects; booleans, integers and floats; bytes of one length. Each in NumPy's code.
_OBJECT, _PLAIN = re.compile(r"O[48]?"), re.compile(r"b1|[iu][1248]|f[248]|S\d{1,9}")
_MAX_NAME = 100
# NumPy and Python write at most four.
_MAX_ARGUMENTS = 8
# Equal keys are compared, each time one is set.
_LONGEST_KEY = 1000
# Among larger integers are many that a dictionary looks for in the same places, one after another.
_MAX_KEY = 1 << 20
_MARK = object()
"""Where the items of a list, tuple or dictionary begin on the stack."""


class UnsafePickleError(Exception):
    """The pickle holds something else than plain values and bytes, or is damaged."""


@dataclass(frozen=True)
class _Function:
    """What the machine does for a function that the pickle calls; None: it cannot be called."""

    rebuild: Optional[Callable[..., Any]]


@dataclass
class _Type:
    """A type of NumPy, by its code and the order of its bytes."""

    code: str
    order: str = "="


@dataclass
class _Array:
    """An array; None until its content has been read."""

    content: Optional[Union[bytes, list[Any]]] = None


def load(content: bytes) -> Any:
    """Return what a pickle holds: lists, tuples, dictionaries, bytes, str, numbers and None.

    An array of bytes becomes its bytes, any other one the list of its elements, both in the order
    of the last axis.

    Raises:
        UnsafePickleError: there is anything else in it, or it is damaged.
    """
    return _plain(_Machine(content).run())


def _plain(value: Any) -> Any:
    """Return the content of an array, and any other value unchanged."""
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
        # Bytes that may still be copied: text becomes bytes once, and these fill an array once.
        self._allowance = 2 * len(content)

    def run(self) -> Any:
        try:
            for name, argument in _instructions(self._content):
                if name == "STOP":
                    return self._stack.pop()
                self._execute(name, argument)
        # Too few values on the stack or in the memo, or an argument that is cut off.
        except (IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise UnsafePickleError(f"damaged: {str(error)[:_MAX_NAME]}") from None
        raise UnsafePickleError("damaged: it has no end")

    def _execute(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self._stack.append(argument)
        elif name in _PUSHES:
            self._stack.append(_PUSHES[name](self))
        elif name in _STORES:
            number = len(self._memo) if argument is None else argument
            if not 0 <= number <= len(self._content):
                raise ValueError("a number of its memo is too large")
            self._memo[number] = self._stack[-1]
        elif name in _FETCHES:
            self._stack.append(self._memo[argument])
        elif name in _CHANGES:
            _CHANGES[name](self)
        elif name == "GLOBAL":
            self._stack.append(_function(str(argument)))
        elif name not in ("PROTO", "FRAME"):
            raise UnsafePickleError(f"it holds a {name.lower().replace('_', ' ')}")

    def take(self, count: int) -> list[Any]:
        """Take values from the top of the stack."""
        if len(self._stack) < count:
            raise IndexError("the stack is too short")
        items = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return items

    def take_marked(self) -> list[Any]:
        """Take all values above the last mark, and the mark."""
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                return self.take(len(self._stack) - index)[1:]
        raise IndexError("there is no mark")

    def extend(self, items: list[Any]) -> None:
        """Append to the list on top of the stack."""
        self._top(list, "it appends to a value that is not a list").extend(map(_plain, items))

    def update(self, items: list[Any]) -> None:
        """Set keys, each followed by its value, in the dictionary on top of the stack."""
        self._top(dict, "it sets a key of a value that is not a dictionary").update(_pairs(items))

    def _top(self, kind: type[_Kind], problem: str) -> _Kind:
        value = self._stack[-1]
        if not isinstance(value, kind):
            raise UnsafePickleError(problem)
        return value

    def call(self) -> Any:
        """Return what a known function would return for the arguments on the stack."""
        function, arguments = self.take(2)
        if not (isinstance(arguments, tuple) and isinstance(function, _Function)):
            raise UnsafePickleError("it calls a value that is not a function")
        if function.rebuild is None:
            raise UnsafePickleError("it wants to run numpy.ndarray")
        # The call copies the tuple, which may be large and used many times.
        if len(arguments) > _MAX_ARGUMENTS:
            raise UnsafePickleError(f"it calls a function with {len(arguments):,} arguments")
        return function.rebuild(self, *arguments)

    def fill(self) -> None:
        """Fill an array, or say in which order the bytes of a type are."""
        (state,) = self.take(1)
        target = self._stack[-1]
        if isinstance(target, _Type):
            target.order = _name(state[1])
        elif isinstance(target, _Array) and isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, is_transposed, content = state
            target.content = self.elements(content, dtype, shape, bool(is_transposed))
        else:
            raise UnsafePickleError("it fills a value that is not an array")

    def elements(self, content: Any, dtype: Any, shape: Any, is_transposed: bool) -> Any:
        """Return the elements of an array in the order of its last axis; of no axis, its value."""
        if not isinstance(dtype, _Type) or not isinstance(shape, tuple):
            raise UnsafePickleError("an array without a type or a shape")
        if _OBJECT.fullmatch(dtype.code) and isinstance(content, list):
            return content
        if not (_PLAIN.fullmatch(dtype.code) and isinstance(content, bytes)):
            raise UnsafePickleError(f"an array of type {dtype.code[:_MAX_NAME]!r}")
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

    def encode(self, text: Any, encoding: Any) -> bytes:
        """Return bytes as protocol 2 stores them."""
        if _text(encoding) not in ("latin1", "latin-1"):
            raise UnsafePickleError(f"text in the encoding {_text(encoding)[:_MAX_NAME]!r}")
        encoded = _text(text).encode("latin1")
        self._copy(len(encoded))
        return encoded

    def as_bytes(self, content: Any = b"", *encoding: Any) -> bytes:
        """Return the content of ``bytes`` or ``bytearray``."""
        if encoding:
            return self.encode(content, *encoding)
        if not isinstance(content, bytes):
            raise UnsafePickleError(f"bytes of a value of type {type(content).__name__}")
        return content

    def _copy(self, length: int) -> None:
        self._allowance -= length
        if self._allowance < 0:
            raise UnsafePickleError("it makes more bytes than it holds")


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
        rest = len(content) - file.tell()
        if instruction.name == "STOP" and rest:
            raise UnsafePickleError(f"{rest:,} bytes follow its end")
        yield instruction.name, argument


def _read_escaped(file: io.BytesIO) -> bytes:
    line = file.readline()
    if len(line) < 3 or line[:1] not in b"'\"" or line[-2:-1] != line[:1]:
        raise ValueError("a string without quotes")
    unescaped: Any = codecs.escape_decode(line[1:-2])[0]
    return bytes(unescaped)


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Return a dictionary of keys, each followed by its value; keys have few equal hashes."""
    keys, values = items[::2], items[1::2]
    if len(keys) != len(values) or not all(map(_is_key, keys)):
        raise UnsafePickleError(
            "a dictionary with keys other than text, bytes and integers, or too long ones"
        )
    return dict(zip(keys, map(_plain, values)))


def _is_key(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return len(value) <= _LONGEST_KEY
    return isinstance(value, int) and abs(value) < _MAX_KEY


def _empty(kind: Callable[[], Any]) -> Callable[..., Any]:
    """Return what makes an empty list or dictionary, which instructions fill afterwards."""

    def rebuild(_: _Machine, *arguments: Any) -> Any:
        if any(arguments):
            raise UnsafePickleError("a collection that is not filled by instructions")
        return kind()

    return rebuild


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("latin1")
    if not isinstance(value, str):
        raise UnsafePickleError(f"a value of type {type(value).__name__} instead of text")
    return value


def _name(value: Any) -> str:
    """Return text; refuse long text, since each call makes a copy."""
    if isinstance(value, (str, bytes)) and len(value) > _MAX_NAME:
        raise UnsafePickleError(f"a name of {len(value):,} letters")
    return _text(value)


def _function(name: str) -> _Function:
    if name not in _FUNCTIONS:
        raise UnsafePickleError(f"it wants to run {name.replace(' ', '.')[:_MAX_NAME]}")
    return _Function(_FUNCTIONS[name])


_FUNCTIONS: dict[str, Optional[Callable[..., Any]]] = {
    "_codecs encode": _Machine.encode,
    "numpy ndarray": None,
    "numpy dtype": lambda machine, code, *_: _Type(_name(code)),
    "collections OrderedDict": _empty(dict),
    "collections deque": _empty(list),
}
# The modules of Python 2 and 3.
for _builtins in ("__builtin__", "builtins"):
    for _kind in ("bytes", "bytearray"):
        _FUNCTIONS[f"{_builtins} {_kind}"] = _Machine.as_bytes
# The modules of NumPy 1 and 2.
for _core in ("numpy.core", "numpy._core"):
    _FUNCTIONS[f"{_core}.multiarray _reconstruct"] = lambda machine, *_: _Array()
    _FUNCTIONS[f"{_core}.multiarray scalar"] = lambda machine, dtype, content: machine.elements(
        content, dtype, (), False
    )
    _FUNCTIONS[f"{_core}.numeric _frombuffer"] = lambda machine, content, dtype, shape, order: (
        _Array(machine.elements(content, dtype, shape, _name(order) == "F"))
    )

_LITERALS = frozenset(
    "INT LONG LONG1 BININT BININT1 BININT2 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING "
    "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE "
    "BINUNICODE8".split()
)
_STORES = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"))
_FETCHES = frozenset(("GET", "BINGET", "LONG_BINGET"))
_PUSHES: dict[str, Callable[[_Machine], Any]] = {
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "MARK": lambda _: _MARK,
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "EMPTY_TUPLE": lambda _: (),
    "TUPLE1": lambda machine: tuple(map(_plain, machine.take(1))),
    "TUPLE2": lambda machine: tuple(map(_plain, machine.take(2))),
    "TUPLE3": lambda machine: tuple(map(_plain, machine.take(3))),
    "TUPLE": lambda machine: tuple(map(_plain, machine.take_marked())),
    "LIST": lambda machine: list(map(_plain, machine.take_marked())),
    "DICT": lambda machine: _pairs(machine.take_marked()),
    "STACK_GLOBAL": lambda machine: _function(" ".join(map(_text, machine.take(2)))),
    "REDUCE": _Machine.call,
}
_CHANGES: dict[str, Callable[[_Machine], Any]] = {
    "POP": lambda machine: machine.take(1),
    "POP_MARK": _Machine.take_marked,
    "APPEND": lambda machine: machine.extend(machine.take(1)),
    "APPENDS": lambda machine: machine.extend(machine.take_marked()),
    "SETITEM": lambda machine: machine.update(machine.take(2)),
    "SETITEMS": lambda machine: machine.update(machine.take_marked()),
    "BUILD": _Machine.fill,
}
