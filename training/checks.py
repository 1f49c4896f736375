"""What options may be: ranges of numbers, lists of names, and the errors that say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from runtime.errors import ConfigError, did_you_mean
from runtime.options import option


class Range(NamedTuple):
    """What a number may be, in the words of an error message, and how to test it."""

    holds: Callable[[float], bool]
    rule: str


POSITIVE_COUNT = Range(lambda value: value >= 1, "must be at least 1")
COUNT = Range(lambda value: value >= 0, "must not be negative")
POSITIVE = Range(lambda value: value > 0, "must be above 0")
SHARED_RANGES: Mapping[str, Range] = {
    "num_classes": Range(
        lambda value: value >= 2, "must be at least 2: one class cannot be told from others"
    ),
    "num_images": POSITIVE_COUNT,
    "threads": Range(
        COUNT.holds, "must not be negative; 0 takes the rank's share of the processors"
    ),
    "momentum": Range(lambda value: 0 <= value < 1, "must be from 0 to below 1; 0.9 is usual"),
    "wd": Range(COUNT.holds, "must not be negative; 0 turns weight decay off"),
    "epochs": POSITIVE_COUNT,
    "frequent": POSITIVE_COUNT,
    "stall_timeout": Range(
        POSITIVE_COUNT.holds, "must be at least 1 second; several times the longest update"
    ),
    "keep": Range(COUNT.holds, "must not be negative; 0 writes no checkpoints"),
    # MXNet and NumPy's legacy generators take 32 bits.
    "seed": Range(lambda value: 0 <= value < 2**32, "must be from 0 to 4294967295"),
}
"""Of the options that both programs have."""


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


def check_steps(schedule: str, steps: Sequence[int], unit: str, example: str) -> None:
    """Raise ``ConfigError`` if a learning rate that falls in steps has none, or not in their order.

    Args:
        schedule: the value of ``--lr-schedule``.
        steps: that of ``--lr-steps``.
        unit: what they count.
        example: some, for the message.
    """
    if schedule == "step" and not steps:
        raise ConfigError(
            f"--lr-schedule step has no {unit} at which to fall: add --lr-steps, as in {example}"
        )
    if any(step < 1 for step in steps) or list(steps) != sorted(set(steps)):
        raise ConfigError(
            f"--lr-steps {','.join(map(str, steps))} must be positive and rise, as in {example}"
        )
