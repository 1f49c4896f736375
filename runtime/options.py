"""The command line of a program, made from the dataclass of its configuration.

Every field is an option of the same name; the literal under the field is its help, its default is
the option's. What is given here alone counts as given: defaults and presets are laid under it by
the program's ``resolve``.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import (
    Any,
    Callable,
    Generic,
    Optional,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from runtime.command_line import Parser
from runtime.errors import ConfigError, did_you_mean

_Config = TypeVar("_Config")

# The metadata of a field whose option may be given several times, with one value each.
REPEATABLE = {"repeatable": True}
# The key of the metadata that tells what an option without its value means.
BARE = "bare"


@dataclasses.dataclass(frozen=True)
class Program(Generic[_Config]):
    """What has to be known of a program to understand its command line."""

    config_class: type[_Config]
    """A dataclass; the literal under each field is the help of its option."""
    description: str
    """What the program does, in a sentence."""
    epilog: str
    """Stands below the options in the help."""
    resolve: Callable[[Mapping[str, Any]], _Config]
    """Lays the given values over presets and defaults."""
    check: Callable[[_Config], None]
    """Raises ``ConfigError`` for a configuration that cannot run."""


def parse(program: Program[_Config], argv: Optional[Sequence[str]] = None) -> _Config:
    """Resolve a command line into a checked configuration.

    Args:
        program: whose command line it is.
        argv: The arguments after the program's name; those of this process if left out.

    Raises:
        ConfigError: An option is unknown, malformed, out of range or contradicts another.
    """
    config = program.resolve(_read_command_line(program, argv))
    program.check(config)
    return config


def option(field: str) -> str:
    """The option of a field."""
    return "--" + field.replace("_", "-")


def _read_command_line(program: Program[Any], argv: Optional[Sequence[str]]) -> dict[str, Any]:
    """Return what was given, and nothing that was not."""
    namespace, unknown = _build_parser(program).parse_known_args(argv)
    if unknown:
        word = unknown[0].split("=")[0]
        known = [option(field.name) for field in dataclasses.fields(program.config_class)]
        raise ConfigError(f"{word} is not an option{did_you_mean(word, known)}; --help lists them")
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(namespace).items()
    }


def _build_parser(program: Program[Any]) -> argparse.ArgumentParser:
    # Abbreviations are off, since an option added later would change what they mean.
    parser = Parser(
        description=program.description,
        epilog=program.epilog,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    types = get_type_hints(program.config_class)
    helps = _field_docstrings(program.config_class)
    for field in dataclasses.fields(program.config_class):
        if types[field.name] is bool:
            parser.add_argument(option(field.name), action="store_true", help=helps[field.name])
            continue
        if "repeatable" in field.metadata:
            parser.add_argument(
                option(field.name), action="append", metavar="DIR", help=helps[field.name]
            )
            continue
        convert, metavar = _CONVERTERS[_without_optional(types[field.name])]
        bare = {"nargs": "?", "const": field.metadata[BARE]} if BARE in field.metadata else {}
        default = f" (default {field.default})" if field.default not in (None, (), "") else ""
        parser.add_argument(
            option(field.name),
            type=convert,
            metavar=metavar,
            help=helps[field.name] + default,
            **bare,
        )
    return parser


def _without_optional(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Union else annotation


def _field_docstrings(config_class: type) -> dict[str, str]:
    """Return the literal under each field, which Python itself does not keep."""
    body = ast.parse(inspect.getsource(config_class)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(literal.value.value)
        for field, literal in zip(body.body, body.body[1:])
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(literal, ast.Expr)
        and isinstance(literal.value, ast.Constant)
        and isinstance(literal.value.value, str)
    }


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number; write it in digits, as in 100"
        ) from None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a finite number; write it as in 0.1 or 5e-4"
        )
    return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",")) if text else ()


def _integers(text: str) -> tuple[int, ...]:
    return tuple(_integer(word) for word in _words(text))


def _margins(text: str) -> tuple[float, float, float]:
    numbers = [_number(word) for word in _words(text)]
    if len(numbers) != 3:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not three numbers; write m1,m2,m3, as in 1,0.5,0"
        )
    m1, m2, m3 = numbers
    return m1, m2, m3


_CONVERTERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    str: (str, "NAME"),
    int: (_integer, "N"),
    float: (_number, "X"),
    tuple[str, ...]: (_words, "A,B"),
    tuple[int, ...]: (_integers, "N,N"),
    tuple[float, float, float]: (_margins, "M1,M2,M3"),
}
