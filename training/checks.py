"""What options may be: ranges of numbers, lists of names, and the errors that say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from runtime.errors import ConfigError, did_you_mean
from training.options import option


class Range(NamedTuple):
    """What a number may be, in the words of an error message, and how to test it."""

    holds: Callable[[float], bool]
    rule: str


POSITIVE_COUNT = Range(lambda value: value >= 1, "must be at least 1")
COUNT = Range(lambda value: value >= 0, "must not be negative")
POSITIVE = Range(lambda value: value > 0, "must be above 0")
# MXNet and NumPy's legacy generators take 32 bits.
SEED_RANGE = Range(lambda value: 0 <= value < 2**32, "must be from 0 to 4294967295")
STALL_SECONDS = Range(
    POSITIVE_COUNT.holds, "must be at least 1 second; several times the longest update"
)


def check_ranges(config: object, ranges: Mapping[str, Range]) -> None:
    """Raise ``ConfigError`` for the first field that is given and outside its range."""
    for field, allowed in ranges.items():
        value = getattr(config, field)
        if value is not None and not allowed.holds(value):
            raise ConfigError(f"{option(field)} {value:.12g} {allowed.rule}")


def check_name(word: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if ``--word`` has been given another name than those that exist."""
    if name not in known:
        raise ConfigError(
            f"--{word} {name!r} is unknown{did_you_mean(name, known)}; "
            f"choose from {', '.join(known)}"
        )
