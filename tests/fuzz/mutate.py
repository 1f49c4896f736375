"""Inputs for a reader: valid files with damage, and random bytes; all of them by a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Optional

# Where programs count wrong: at the ends of their integer types.
_NUMBERS = [0, 1, 2, 3, 4, 7, 8, 16, 255, 256, 4096, 65535, 65536]
_NUMBERS += [2**k + d for k in (24, 29, 31, 32, 40, 48, 62, 63, 64) for d in (-1, 0, 1)]
_WORDS = ["", "-1", "-0", "nan", "inf", "1e9", "0x10", "9" * 400, "\x00", "é", '"', "'", "[" * 2000]
_WORDS += ["None", "True", "(0, 0)", "(1, 1)", "()", "__import__", "os.system", "_Native", "Custom"]
_WORDS += ["../..", "/etc/passwd", "$(id)", ";", "\n", "\t", "{}", "[]", "null", "data", "fc1"]
_CHANGES_AT_ONCE = (1, 1, 1, 1, 2, 2, 3, 6)


def make_input(
    seeds: Sequence[bytes], seed: int, make: Optional[Callable[[random.Random], bytes]] = None
) -> bytes:
    """Return input number ``seed``: mostly one of ``seeds`` with a few changes.

    With ``make`` it is mostly what that makes, and a seventh of these is changed.
    """
    rng = random.Random(seed)
    if make is not None and rng.random() < 0.9:
        seeds = [make(rng)]
        if rng.random() < 0.85:
            return seeds[0]
    if rng.random() < 0.05:
        return rng.randbytes(rng.choice((0, 1, 4, 16, 64, 256, 4096)))
    content = bytearray(rng.choice(seeds))
    for _ in range(rng.choice(_CHANGES_AT_ONCE)):
        change = rng.choice(_CHANGES)
        change(content, rng, seeds)
    return bytes(content)


def _place(content: bytearray, rng: random.Random, unit: int = 1) -> int:
    # Headers are short and decide most: half of the changes are made in the first bytes.
    end = min(len(content), 128) if rng.random() < 0.5 else len(content)
    return rng.randrange(end // unit + 1) * unit


def _flip(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if content:
        place = min(_place(content, rng), len(content) - 1)
        content[place] ^= 1 << rng.randrange(8)


def _put_byte(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    place = _place(content, rng)
    content[place : place + 1] = rng.randbytes(1)


def _put_number(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    size = rng.choice((2, 4, 8))
    place = _place(content, rng, rng.choice((1, 4)))
    number = rng.choice(_NUMBERS) % (1 << 8 * size)
    content[place : place + size] = number.to_bytes(size, rng.choice(("little", "big")))


def _put_text(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """Replace a number or word of a text, or insert one."""
    found = list(re.finditer(rb"-?[0-9]+|[A-Za-z_]+", bytes(content[:20_000])))
    word = str(rng.choice(_NUMBERS)) if rng.random() < 0.5 else rng.choice(_WORDS)
    if found:
        start, stop = rng.choice(found).span()
        content[start:stop] = word.encode()


def _swap_text(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """Put one word of the text into the place of another."""
    found = list(re.finditer(rb"-?[0-9]+|[A-Za-z_0-9]+", bytes(content[:20_000])))
    if found:
        (start, stop), (other_start, other_stop) = (rng.choice(found).span() for _ in range(2))
        content[start:stop] = content[other_start:other_stop]


def _cut(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    del content[_place(content, rng) :]


def _remove(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    place = _place(content, rng)
    del content[place : place + rng.choice((1, 2, 4, 8, 33, 512))]


def _repeat(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    place = _place(content, rng)
    piece = content[place : place + rng.choice((1, 4, 8, 64, 512))]
    content[place:place] = piece * rng.choice((1, 2, 50))


def _insert(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    place = _place(content, rng)
    content[place:place] = rng.randbytes(rng.choice((1, 4, 8, 64)))


def _splice(content: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    start = rng.randrange(len(other) + 1)
    place = _place(content, rng)
    piece = other[start : start + rng.choice((4, 16, 64, 1024))]
    content[place : place + len(piece) * rng.randrange(2)] = piece


_CHANGES: list[Callable[[bytearray, random.Random, Sequence[bytes]], None]] = [
    _flip, _put_byte, _put_number, _put_number, _put_text, _put_text, _swap_text,
    _cut, _remove, _repeat, _insert, _splice,
]  # fmt: skip
