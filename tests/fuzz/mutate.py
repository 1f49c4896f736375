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
_SIZES = (1, 2, 4, 8, 33, 64, 512, 1024)


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
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 6))):
        if rng.random() < 0.25:
            _change_text(content, rng)
        else:
            _change_bytes(content, rng, rng.choice(seeds))
    return bytes(content)


def _change_text(content: bytearray, rng: random.Random) -> None:
    """Put a number, a word, or another part of the text into the place of one of its parts."""
    pattern = rng.choice((rb"-?[0-9]+|[A-Za-z_]+", rb"-?[0-9]+|[A-Za-z_0-9]+"))
    found = list(re.finditer(pattern, bytes(content[:20_000])))
    if found:
        start, stop = rng.choice(found).span()
        words = (str(rng.choice(_NUMBERS)).encode(), rng.choice(_WORDS).encode())
        content[start:stop] = rng.choice((*words, rng.choice(found)[0]))


def _change_bytes(content: bytearray, rng: random.Random, other: bytes) -> None:
    """Put something else into the place of some bytes, of none, or of all that follow."""
    # Headers are short and decide most: half of the changes are made in the first bytes.
    end = min(len(content), 128) if rng.random() < 0.5 else len(content)
    unit, width, size = rng.choice((1, 1, 1, 4)), rng.choice((2, 4, 8)), rng.choice(_SIZES)
    place = rng.randrange(end // unit + 1) * unit
    flipped = bytes(byte ^ 1 << rng.randrange(8) for byte in content[place : place + 1])
    number = rng.choice(_NUMBERS) % (1 << 8 * width)
    start = rng.randrange(len(other) + 1)
    count, piece = rng.choice(
        (
            (1, flipped),
            (1, rng.randbytes(1)),
            *[(width, number.to_bytes(width, rng.choice(("little", "big"))))] * 2,
            (len(content), b""),
            (size, b""),
            (0, content[place : place + size] * rng.choice((1, 2, 50))),
            (0, rng.randbytes(size)),
            (size * rng.randrange(2), other[start : start + size]),
        )
    )
    content[place : place + count] = piece
