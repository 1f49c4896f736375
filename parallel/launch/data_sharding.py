"""The file ``data_sharding``: what part of each epoch's images a worker reads.

Line k is for the worker that has number k in MXNet-G. MXNet numbers workers by their addresses,
compared as text, in descending order: ``10.0.0.9`` comes before ``10.0.0.10``, and that before
``10.0.0.1``. MXNet-G's ``clusting/data_sharding.py`` writes the lines in the same order. Here
worker k is that of line k of ``hosts``, so shares change places when they are read and written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from parallel.launch.cluster_files import number, read_lines
from parallel.parameter_server.assignment import Share
from runtime.errors import DataError

_LINE = "two numbers, start and end of a worker's share of the data"
# Sums of decimal fractions such as 0.1 + 0.2 differ by less than this from what they mean.
_ROUNDING = 1e-9
# The generator of MXNet-G rounds each share to this; their sum is wrong by as much for each worker,
# and the last shares may be below zero by it.
_HUNDREDTH = 0.01
_MOST_NAMED = 3
_SHOWN = 80


class Shares(NamedTuple):
    """The shares of all workers, and what to say about them."""

    of_workers: tuple[Share, ...]
    """By the number of the worker, which is its place in ``hosts``."""
    notes: list[str]
    """Lines for the log: which address reads which part."""
    warnings: list[str]
    """Data that nobody or several workers read, and what is not used of the file."""


def in_mxnet_order(addresses: Sequence[str]) -> list[int]:
    """Return workers in the order of MXNet's numbers: by address, as text, descending.

    MXNet numbers the workers of one address by ports that are known only while it runs; here they
    come in the order of ``hosts``.
    """
    return sorted(range(len(addresses)), key=lambda worker: addresses[worker], reverse=True)


def read_shares(path: Path, addresses: Sequence[str]) -> Shares:
    """Read the share of each worker: line k has start and end, from 0 to 1, for MXNet's worker k.

    Like MXNet-G, this reads the first two words of a line, and accepts shares that leave some of
    the data to nobody or give it to several workers, and lines beyond the last worker: its
    generator rounds shares down, or up to more than the whole. ``warnings`` say how much of the
    data that is.

    Args:
        path: the file.
        addresses: the IP address of each worker, by which MXNet numbers it.

    Raises:
        DataError: with the file and the line: not two numbers from 0 to 1, or too few lines.
    """
    lines, count = read_lines(path, _LINE), len(addresses)
    if len(lines) < count:
        raise DataError(
            f"{path} has {len(lines)} lines, but there are {count} workers; give it one line for "
            "each"
        )
    slack = _ROUNDING + _HUNDREDTH * len(lines)
    shares = [_share(words[:2], here, slack) for here, words in lines]
    warnings = _uneven(path, shares[:count])
    for here, _ in lines[count : count + 1]:
        warnings.append(
            f"{path} has {len(lines)} lines for {count} workers: those from "
            f"{here.rpartition(', ')[2]} on are not used"
        )
    longer = [(here, " ".join(words)) for here, words in lines if len(words) > 2]
    for here, text in longer[:1]:
        warnings.append(f"{here} has {text[:_SHOWN]!r}: what follows the two numbers is not used")
    of_worker = dict(zip(in_mxnet_order(addresses), shares))
    notes = [
        f"worker {worker} on {addresses[worker]} reads {start:.6g} to {end:.6g} of the data "
        f"({here})"
        for (worker, (start, end)), (here, _) in zip(of_worker.items(), lines)
    ]
    return Shares(tuple(of_worker[worker] for worker in range(count)), notes, warnings)


def format_shares(shares: Sequence[Share], addresses: Sequence[str]) -> str:
    """Return the text from which ``read_shares``, and MXNet-G, read the shares of these workers."""
    ordered = (shares[worker] for worker in in_mxnet_order(addresses))
    return "".join(f"{start!r} {end!r}\n" for start, end in ordered)


def unread_in_groups(shares: Sequence[Share], groups: Iterable[Sequence[int]]) -> list[str]:
    """Say which groups leave data unread because their workers' shares differ in size.

    The workers of a group take equally many steps, as many as the smallest of their shares has
    images for.
    """
    said = []
    for group in groups:
        sizes = [shares[worker].end - shares[worker].start for worker in group]
        unread = sum(sizes) - len(group) * min(sizes)
        if unread > _ROUNDING:
            workers = ", ".join(map(str, group))
            said.append(
                f"workers {workers} take equally many steps, as many as the share of worker "
                f"{group[sizes.index(min(sizes))]} has images for: {_percent(unread)} of the data, "
                "the rest of their shares, is not read"
            )
    return said


def _share(words: list[str], here: str, slack: float) -> Share:
    """Read a line; what lies beyond 1 by no more than the slack is cut."""
    if len(words) != 2:
        raise DataError(f"{here}: {' '.join(words)!r} is not {_LINE}")
    for word in words:
        if not 0 <= number(word) <= 1 + slack:
            raise DataError(f"{here}: {word!r} is not a number from 0 to 1")
    start, end = map(float, words)
    if start > end and end < 1 - slack:
        raise DataError(
            f"{here}: {' '.join(words)!r} must rise: the first number is the start of a share, the "
            "second its end"
        )
    start, end = min(start, 1.0), min(end, 1.0)
    return Share(start, max(start, end))


def _uneven(path: Path, shares: Sequence[Share]) -> list[str]:
    """Say how much of the data nobody reads, and how much several workers read."""
    edges = sorted({0.0, 1.0, *(edge for share in shares for edge in share)})
    found: dict[str, list[Share]] = {"nobody reads": [], "several workers read": []}
    for start, end in zip(edges, edges[1:]):
        readers = sum(share.start <= start and end <= share.end for share in shares)
        if readers != 1 and end - start > _ROUNDING:
            parts = found["several workers read" if readers else "nobody reads"]
            is_next = parts and start - parts[-1].end <= _ROUNDING
            parts.append(Share(parts.pop().start if is_next else start, end))
    said = []
    for verb, parts in found.items():
        ranges = ", ".join(f"{start:.6g} to {end:.6g}" for start, end in parts[:_MOST_NAMED])
        more = f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
        if parts:
            size = sum(end - start for start, end in parts)
            said.append(f"{path}: {verb} {_percent(size)} of the data: {ranges}{more}")
    return said


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"
