"""Command lines and ``config.json`` files, parsed by the groups of options of a program.

The results have only the options that the user has given; the program merges them with defaults and
presets.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import (
    Any,
    Callable,
    NoReturn,
    Optional,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import override

from runtime import options
from runtime.errors import ConfigError, did_you_mean
from runtime.files import read_text
from runtime.options import BARE, NAMES, REPEATABLE, hint_for, option

_Config = TypeVar("_Config")

_CONFIG = "config"


class Parser(argparse.ArgumentParser):
    """Command line of a program: takes options by their whole names alone.

    A mistake is raised as a ``ConfigError`` of one line, instead of printing the usage. An option
    of another program is answered with what to type here.
    """

    def __init__(
        self,
        *,
        foreign: str = "",
        synonyms: Mapping[str, str] = {},
        **settings: Any,
    ) -> None:
        """Take the arguments of ``argparse.ArgumentParser``, and two more.

        Args:
            foreign: the tables of docs/porting.md with the options of other programs.
            synonyms: names that other programs have for options of ours; they are taken as well.
            settings: those of ``argparse.ArgumentParser``.
        """
        # Off, since an option that is added later would change what an abbreviation means, and
        # since the options of other programs are abbreviations of ours.
        super().__init__(allow_abbrev=False, **settings)
        self.foreign, self.synonyms = foreign, synonyms

    @override
    def parse_known_args(
        self, args: Optional[Sequence[str]] = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        words = sys.argv[1:] if args is None else args
        parts = (word.partition("=") for word in words)
        words = ["".join((self.synonyms.get(name, name), *rest)) for name, *rest in parts]
        own = words[: words.index("--")] if "--" in words else words
        names = [word.split("=")[0] for word in own if word.startswith("-")]
        # Before the options that this program requires are missed.
        unknown = [name for name in names if name not in self._option_string_actions]
        self._refuse_foreign(unknown)
        found, left_over = super().parse_known_args(words, namespace)
        self._refuse_foreign(left_over)
        return found, left_over

    def _refuse_foreign(self, words: Iterable[str]) -> None:
        """Raise ``ConfigError`` with what to type instead of options of other programs."""
        hints = {word: hint_for(word, self.foreign) for word in words}
        known = [f"{word} is not an option here: {hint}" for word, hint in hints.items() if hint]
        if known:
            raise ConfigError(f"{'; '.join(known)} (docs/porting.md has the others)")

    @override
    def _get_option_tuples(self, option_string: str) -> list[Any]:
        # allow_abbrev is about two dashes alone: -n would be -np. A short name with a value stays.
        found = super()._get_option_tuples(option_string)
        return [one for one in found if option_string.startswith(one[1])]

    @override
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.removeprefix('argument ')} (--help lists the options)")


def parse(
    config_class: type[_Config],
    resolve: Callable[[Mapping[str, Any], Mapping[str, Any]], _Config],
    check: Callable[[_Config], None],
    argv: Optional[Sequence[str]] = None,
    **settings: Any,
) -> _Config:
    """Resolve a command line into a checked configuration; without ``argv``, this process's.

    Args:
        config_class: a dataclass whose fields are groups of options.
        resolve: merges the values of the command line with those of a file, presets and defaults.
        check: raises ``ConfigError`` for groups that contradict each other.
        argv: the words of the command line.
        settings: of the ``Parser``.

    Raises:
        ConfigError: an option is unknown, malformed, out of range or contradicts another.
    """
    parser = _build_parser(config_class, settings)
    given = _read_words(parser, argv)
    file = given.pop(_CONFIG, None)
    saved = _read_file(Path(file), parser) if file is not None else {}
    config = resolve(given, saved)
    options.check(config)
    check(config)
    return config


def _read_words(parser: Parser, argv: Optional[Sequence[str]]) -> dict[str, Any]:
    """Return the options that are on the command line, and no others."""
    namespace, unknown = parser.parse_known_args(argv)
    if unknown:
        word = unknown[0].split("=")[0]
        close = did_you_mean(word, parser._option_string_actions)
        raise ConfigError(f"{word} is not an option{close}; --help lists them")
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(namespace).items()
    }


def _build_parser(config_class: type, settings: Mapping[str, Any]) -> Parser:
    parser = Parser(argument_default=argparse.SUPPRESS, **settings)
    parser.add_argument(
        option(_CONFIG),
        metavar="FILE",
        help="config.json of an earlier run, whose options this run takes over; "
        "those on the command line win",
    )
    for group_class in options.group_classes(config_class).values():
        types, (title, helps) = get_type_hints(group_class), _documentation(group_class)
        section = parser.add_argument_group(title)
        for field in dataclasses.fields(group_class):
            text = helps[field.name].format(names=", ".join(field.metadata.get(NAMES, ())))
            _add_option(section, field, types[field.name], text)
    return parser


def _add_option(
    section: argparse._ArgumentGroup, field: dataclasses.Field[Any], annotation: Any, text: str
) -> None:
    if annotation is bool:
        section.add_argument(option(field.name), action="store_true", help=text)
        return
    if REPEATABLE in field.metadata:
        section.add_argument(option(field.name), action="append", metavar="DIR", help=text)
        return
    is_optional = get_origin(annotation) is Union
    convert, metavar = _CONVERTERS[get_args(annotation)[0] if is_optional else annotation]
    bare = {"nargs": "?", "const": field.metadata[BARE]} if BARE in field.metadata else {}
    default = f" (default {field.default})" if field.default not in (None, (), "") else ""
    section.add_argument(
        option(field.name), type=convert, metavar=metavar, help=text + default, **bare
    )


@functools.lru_cache(None)
def _documentation(group_class: type) -> tuple[str, dict[str, str]]:
    """Return a group's title, the first line of its docstring, and the literal under each field.

    From the source: Python keeps no such literals, and ``python -OO`` no docstrings.
    """
    title, helps = "", {}
    for base in reversed(group_class.__mro__[:-1]):
        (found,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(found, ast.ClassDef)
        title = ast.get_docstring(found) or ""
        for field, literal in zip(found.body, found.body[1:]):
            if isinstance(field, ast.AnnAssign) and isinstance(literal, ast.Expr):
                text = ast.literal_eval(literal.value)
                helps[ast.unparse(field.target)] = inspect.cleandoc(text)
    return title.partition("\n")[0].rstrip("."), helps


def _read_file(path: Path, parser: Parser) -> dict[str, Any]:
    """Return the values of a ``config.json``, read as if they were typed."""
    try:
        saved = json.loads(read_text(path))
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        saved = None
    if not isinstance(saved, dict):
        raise ConfigError(f"--config {path} is no table in JSON; give the config.json of a run")
    typed = (_typed(parser, option(field), value) for field, value in saved.items())
    try:
        return _read_words(parser, [*chain.from_iterable(typed)])
    except ConfigError as error:
        raise ConfigError(f"--config {path}: {error}") from None


def _typed(parser: Parser, name: str, value: Any) -> list[str]:
    """Return what one would type to give an option a value of a JSON file."""
    action = parser._option_string_actions.get(name)
    if action is not None and (value is None or (value is False and action.nargs == 0)):
        return []
    if value is True:
        return [name]
    if isinstance(value, list) and isinstance(action, argparse._AppendAction):
        return [f"{name}={one}" for one in value]
    text = ",".join(map(str, value)) if isinstance(value, list) else value
    return [f"{name}={text}"]


def positive_integer(text: str) -> int:
    """Convert an argument of a command that has no groups of options."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def number(text: str) -> float:
    """Convert a finite number."""
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",")) if text else ()


def integers(text: str) -> tuple[int, ...]:
    """Convert whole numbers with commas between them."""
    return tuple(map(int, _words(text)))


def margins(text: str) -> tuple[float, float, float]:
    """Convert three numbers with commas between them."""
    first, second, third = map(number, _words(text))
    return first, second, third


_CONVERTERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    str: (str, "NAME"),
    int: (int, "N"),
    float: (number, "X"),
    tuple[str, ...]: (_words, "A,B"),
    tuple[int, ...]: (integers, "N,N"),
    tuple[float, float, float]: (margins, "M1,M2,M3"),
}
