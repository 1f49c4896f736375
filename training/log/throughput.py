"""Images per second, and what the time went into, between two reports and over a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Callable, Optional

from runtime.stopwatch import PARTS, WAITING, Stopwatch

# A run that waits for data in less than this share of its time gains nothing from faster input.
_NEGLIGIBLE = 0.02
_GUIDE = "docs/troubleshooting.md"


def describe(report: Mapping[str, float]) -> str:
    """Return the numbers of ``Meter.report`` in words."""
    speed, left = report["images_per_second"], timedelta(seconds=round(report["seconds_left"]))
    shares = "  ".join(f"{part} {report[part]:.0%}" for part in PARTS if report[part] > 0)
    return (
        f"loss {report['loss']:.4f}  {speed:,.{0 if speed >= 100 else 1}f} images/s  "
        f"lr {report['lr']:.3g}  {shares}  left {left}"
    )


@dataclass(frozen=True)
class Throughput:
    """Images and seconds of an interval of the run."""

    images: int
    """Over all ranks."""
    seconds: float
    """Without pauses."""
    parts: Mapping[str, float]
    """Seconds of each of ``stopwatch.PARTS``."""

    def __add__(self, other: Throughput) -> Throughput:
        parts = {part: self.parts[part] + other.parts[part] for part in PARTS}
        return Throughput(self.images + other.images, self.seconds + other.seconds, parts)

    @property
    def images_per_second(self) -> float:
        """Over all ranks."""
        return self.images / self.seconds

    def share(self, part: str) -> float:
        """The part's share of the seconds."""
        return min(self.parts[part] / self.seconds, 1.0)

    def describe_shares(self) -> str:
        """The share of each part, and of the time outside of all parts."""
        rest = max(0.0, 1.0 - sum(map(self.share, PARTS)))
        return ", ".join(f"{part} {self.share(part):.1%}" for part in PARTS) + f", rest {rest:.1%}"

    def judge_input(self) -> str:
        """A sentence about whether input was the bottleneck."""
        waiting = self.share(WAITING)
        if waiting < _NEGLIGIBLE:
            return (
                f"input is not the bottleneck: {waiting:.1%} of the time went into waiting for data"
            )
        now = self.images_per_second
        without = now / max(1.0 - waiting, 1e-9)
        return (
            f"input is a bottleneck: {waiting:.1%} of the time went into waiting for data; without "
            f"that, {now:,.4g} images/s would be {without:,.4g} ({_GUIDE})"
        )


class Meter:
    """Counts images and seconds between reports."""

    def __init__(self, clock: Callable[[], float], stopwatch: Stopwatch) -> None:
        """Args: clock: seconds from any origin; stopwatch: the seconds of each part."""
        self._clock = clock
        self._stopwatch = stopwatch
        self.start(0)

    def start(self, update: int) -> None:
        """Forget what was counted; ``update`` updates are finished."""
        self._total: Optional[Throughput] = None
        self._started = self._clock()
        self._first_update = self._update = update
        self._reports = 0
        self._open_interval()

    def count(self, update: int, images: int) -> None:
        """Count a finished update."""
        self._update = update
        self._images += images

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside out of all numbers but ``seconds_left``."""
        started = self._clock()
        try:
            yield
        finally:
            self._pauses += self._clock() - started

    def report(self, loss: float, lr: float, total_updates: int) -> dict[str, float]:
        """Close the interval since the last report and open the next; returns its numbers.

        These are the mean ``loss`` of the global batch of the last update and its ``lr``; images
        per second over all ranks, without verifications and saves; the share of the time of each of
        ``stopwatch.PARTS`` on this rank; and the seconds that are left to the end of the run at its
        average pace, verifications and saves included.
        """
        seconds = max(self._clock() - self._interval_started - self._pauses, 1e-9)
        throughput = Throughput(self._images, seconds, self._stopwatch.lap(seconds))
        # The first interval counts only as long as there is no other: it compiles, and its first
        # batches are not loaded during an earlier update.
        if self._total is not None and self._reports > 1:
            self._total += throughput
        else:
            self._total = throughput
        self._reports += 1
        self._open_interval()
        pace = (self._clock() - self._started) / (self._update - self._first_update)
        return {
            "loss": loss,
            "lr": lr,
            "images_per_second": throughput.images_per_second,
            **{part: throughput.share(part) for part in PARTS},
            "seconds_left": pace * (total_updates - self._update),
        }

    def total(self) -> Optional[Throughput]:
        """Return the sum over the reported intervals since ``start``; None before the first."""
        return self._total

    def _open_interval(self) -> None:
        self._stopwatch.lap()
        self._interval_started = self._clock()
        self._images = 0
        self._pauses = 0.0
