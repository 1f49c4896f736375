"""Images per second, and what the time went into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.stopwatch import PARTS, WAITING

# A run that waits for data in less than this share of its time gains nothing from faster input.
_NEGLIGIBLE = 0.02
_GUIDE = "docs/troubleshooting.md"


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
