"""The options of a program, each declared once, by the part that obeys it.

A part declares its options as a group, a frozen dataclass: the literal under a field is the help of
the option, and the field's metadata says which values it takes. The configuration of a program is a
dataclass whose fields are groups; its command line has the options of all groups. The parser, the
checks and ``config.json`` follow from that. Values resolve in one order: default, preset, file of
an earlier run (``--config``), command line.

Modules of options import neither MXNet nor Horovod nor Numba nor OpenCV, so that ``--help`` and a
wrong option are answered at once.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, TypeVar, Union, get_type_hints

from runtime.errors import ConfigError, did_you_mean
from runtime.files import read_text, write_atomically

_Config = TypeVar("_Config")

_PORTING = Path(__file__).parents[1] / "docs/porting.md"
_TABLE = re.compile(r"<!-- ([a-z. ]+) -->\n\n.*\n\|[-|]+\n((?:\|.*\n)+)")

# Keys of a field's metadata.
RANGE, NAMES, REPEATABLE, BARE = "range", "names", "repeatable", "bare"


class Range(NamedTuple):
    """The values that a number may have: a test, and the rule for the error message."""

    holds: Callable[[float], bool]
    rule: str


POSITIVE_COUNT = Range(lambda value: value >= 1, "must be at least 1")
COUNT = Range(lambda value: value >= 0, "must not be negative")
POSITIVE = Range(lambda value: value > 0, "must be above 0")


def number(default: Optional[float], allowed: Range) -> Any:
    """Declare an option whose value is a number within a range."""
    return dataclasses.field(default=default, metadata={RANGE: allowed})


def name(default: str, known: Collection[str]) -> Any:
    """Declare an option whose value is one of several names; its help has them as {names}."""
    return dataclasses.field(default=default, metadata={NAMES: known})


def repeatable() -> Any:
    """Declare an option that may be given several times, with a folder each."""
    return dataclasses.field(default=(), metadata={REPEATABLE: True})


def with_bare(default: Optional[str], bare: str) -> Any:
    """Declare an option that may be given without a value, which then is ``bare``."""
    return dataclasses.field(default=default, metadata={BARE: bare})


@dataclasses.dataclass(frozen=True)
class Options:
    """A group of options, obeyed by one part of a program."""

    def check(self) -> None:
        """Refuse options that contradict each other; each has been checked by itself.

        Raises:
            ConfigError: with the option, its value, the reason and the remedy.
        """


def check(config: object) -> None:
    """Check every option by itself, then the groups of a configuration.

    Raises:
        ConfigError: with the option, its value, the reason and the remedy.
    """
    for group in groups(config):
        for field in dataclasses.fields(group):
            value, allowed = getattr(group, field.name), field.metadata.get(RANGE)
            if allowed is not None and value is not None and not allowed.holds(value):
                raise ConfigError(f"{option(field.name)} {value:.12g} {allowed.rule}")
            if NAMES in field.metadata:
                check_name(option(field.name)[2:], value, field.metadata[NAMES])
    for group in groups(config):
        group.check()


def option(field: str) -> str:
    """Return the option of a field."""
    return "--" + field.replace("_", "-")


def compose(config_class: type[_Config], values: Mapping[str, Any]) -> _Config:
    """Put values into the groups by the names of their fields; other fields keep their defaults."""
    composed = {}
    for group, group_class in group_classes(config_class).items():
        fields = {field.name for field in dataclasses.fields(group_class)}
        composed[group] = group_class(**{name: values[name] for name in fields & values.keys()})
    return config_class(**composed)


def values(config: object) -> dict[str, Any]:
    """Return the values of all groups by the names of their fields."""
    return {
        field.name: getattr(group, field.name)
        for group in groups(config)
        for field in dataclasses.fields(group)
    }


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as a JSON file would return them: tuples are lists."""
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def overlay(
    layers: Iterable[Mapping[str, Any]], rivals: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    """Merge layers of values.

    Args:
        layers: the lowest first.
        rivals: pairs of options; where a layer has the first, the second of lower layers is void.
    """
    rivals = list(rivals)
    merged: dict[str, Any] = {}
    for layer in layers:
        for chosen, rival in rivals:
            if chosen in layer:
                merged.pop(rival, None)
        merged.update(layer)
    return merged


def write(values: Mapping[str, Any], path: Union[str, Path]) -> None:
    """Write values as JSON, whole or not at all; ``--config`` reads them."""
    write_atomically(Path(path), (json.dumps(values, indent=2) + "\n").encode())


def check_name(option_name: str, value: str, known: Collection[str], kind: str = "") -> None:
    """Raise ``ConfigError`` if the value of ``--option_name`` is not a known name.

    ``kind`` is that of the tables with the names of other programs, see ``hint_for``.
    """
    if value in known:
        return
    if hint := hint_for(value, kind):
        raise ConfigError(f"--{option_name} {value!r} does not exist here: {hint}")
    raise ConfigError(
        f"--{option_name} {value!r} is unknown{did_you_mean(value, known)}; "
        f"choose from {', '.join(known)}"
    )


def hint_for(word: str, kind: str) -> Optional[str]:
    """Return what to type instead of a word of another program; None if no table has it.

    A similar name of ours would be a wrong answer to most users of other programs. The tables of
    docs/porting.md have the right ones; the first row whose pattern fits counts. Without the page
    there are none.

    Args:
        word: an option, which may have underscores for dashes, or a name.
        kind: of the tables, such as "networks".
    """
    page = ""
    with suppress(OSError):
        page = read_text(_PORTING)
    for row in "".join(rows for name, rows in _TABLE.findall(page) if name == kind).splitlines():
        there, here, why = (cell.strip() for cell in row.strip("|").split("|"))
        for name in re.findall("`([^` ]+)", there):
            # Some programs have a file of options, whose names are fields.
            is_field = kind.startswith("options") and name.isidentifier()
            pattern = option(name) if is_field else name.replace("_", "-")
            if fnmatchcase(word.replace("_", "-"), pattern):
                answer = f"type {here}" if here.startswith("`") else here
                return f"{answer}; {why}" if why else answer
    return None


def groups(config: Any) -> list[Options]:
    """Return the groups of a configuration, in their order."""
    return [getattr(config, field.name) for field in dataclasses.fields(config)]


def group_classes(config_class: type) -> dict[str, Any]:
    """Return the classes of the groups of a configuration, by their names in it."""
    types = get_type_hints(config_class)
    return {field.name: types[field.name] for field in dataclasses.fields(config_class)}
