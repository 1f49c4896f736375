"""The log of a run: its lines, its metric files, and its watchdog.

Someone reads it at three in the morning, on 64 GPUs, to find out whether the run is healthy and
which rank is not. So rank 0 writes the lines of the whole run (one now and then, or one progress
bar on a terminal), every rank writes a file of its own, and only warnings of the other ranks reach
the screen. The same numbers go to ``metrics.jsonl`` and to mxboard's event files. An update that is
not reported never waits for the device here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Optional

from evaluation.verification import VerificationResult
from runtime.files import HeldFolder
from runtime.stopwatch import PARTS, WAITING, Stopwatch
from training.log.files import OFF_SCREEN, FileHandler, LineFormatter, RunFiles, ScreenHandler
from training.log.watchdog import Others, Watchdog
from training.run_folder import LOCK, explained

_log = logging.getLogger(__name__)

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


class RunLog:
    """The log of one rank: screen, file, metrics and scalars.

    A context manager: an exception that ends the run is written to the rank's file together with
    the last finished update.

    Attributes:
        stopwatch: counts the time of the parts of an update, whose shares are reported.
        folder: of the run, whose ``check`` raises ``DataError`` if it is no longer at its path.
        files: those that rank 0 writes for other programs; None on another rank.
        total: the sum over the reported intervals since ``start``; None before the first.
    """

    def __init__(
        self,
        models_root: Path,
        *,
        rank: int,
        world_size: int,
        frequent: int,
        stall_timeout: float,
        others: Callable[[], Others] = Others,
    ) -> None:
        """Open the files in ``models_root`` and attach to Python's logging.

        There is a report every ``frequent`` updates; ``stall_timeout`` and ``others`` are for
        ``Watchdog``.
        """
        self._frequent = frequent
        self._clock = time.monotonic
        self.stopwatch = Stopwatch(self._clock)
        self.total: Optional[Throughput] = None
        self._update = self._total_updates = 0
        self._open_interval()
        with explained(models_root):
            self.files = RunFiles(models_root) if rank == 0 else None
            file = FileHandler(models_root, rank)
            self.folder = HeldFolder("--models-root", models_root, LOCK)
        self._screen = ScreenHandler(rank)
        self._handlers = (file, self._screen)
        root_logger = logging.getLogger()
        self._former_level = root_logger.level
        root_logger.setLevel(logging.INFO)
        line = f"%(asctime)s rank {rank} %(levelname)s: %(message)s"
        for handler in self._handlers:
            handler.setFormatter(LineFormatter(line, "%Y-%m-%d %H:%M:%S"))
            root_logger.addHandler(handler)
        self._watchdog = Watchdog(
            stall_timeout,
            rank=rank,
            stopwatch=self.stopwatch,
            log_file=Path(file.baseFilename),
            others=others,
        )
        _log.info("rank %d of %d, files in %s", rank, world_size, models_root)

    def write_report(self) -> None:
        """Write the report of the run, on rank 0 only; nothing is watched any more."""
        self._watchdog.close()
        if self.files is not None:
            self.folder.check()
            self.files.write_report()

    def start(self, total_updates: int, update: int = 0) -> None:
        """Start the clock right before the first update, after ``update`` finished ones.

        The last of ``total_updates`` is always reported.
        """
        self._update = self._first_update = update
        self._total_updates = total_updates
        self.total, self._reports = None, 0
        self._started = self._clock()
        self._open_interval()
        # The first update compiles.
        self.end_updates()
        self._screen.open_bar(total_updates, update)

    def update(
        self,
        update: int,
        *,
        loss: Callable[[], float],
        lr: float,
        images: int,
        averages: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Count a finished update of ``images`` on all ranks; report now and then, and at the end.

        Only then ``loss`` is called, which waits for the mean loss of the global batch, and
        ``averages``, which returns further numbers.
        """
        self._update = update
        self._watchdog.beat(update)
        self._images += images
        self._screen.bar.update(update - self._screen.bar.n)
        if self.reports(update):
            # Before the clock is read, so that the device's pending work is in the measured time.
            self._report(float(loss()), lr, averages())

    def reports(self, update: int) -> bool:
        """Return True if there is a report after so many finished updates."""
        return update % self._frequent == 0 or update == self._total_updates

    def end_updates(self) -> None:
        """No update follows, unless there is another ``start``: nothing has to end soon."""
        self._watchdog.leave_updates()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep what happens inside (a verification, a save) out of images/s and the shares."""
        started = self._clock()
        try:
            with self._watchdog.pause():
                yield
        finally:
            self._pauses += self._clock() - started

    def verification(
        self, name: str, result: VerificationResult, *, best: float, update: int
    ) -> None:
        """Report the verification of target ``name``; ``best`` is its best accuracy so far."""
        rates = ", ".join(f"TAR@FAR={far:g} {tar:.4f}" for far, tar in result.tar_at_far.items())
        _log.info(
            "verification %s at update %d: accuracy %.4f +- %.4f (best %.4f)  %s  xnorm %.2f",
            *(name, update, result.accuracy, result.accuracy_std, best, rates, result.xnorm),
        )
        numbers = {
            **result.numbers(),
            "best": best,
            **{f"tar_at_far_{far:g}": tar for far, tar in result.tar_at_far.items()},
        }
        self.record(update, numbers, target=name)
        if self.files is not None:
            self.files.verification(name, result)

    def record(self, update: int, numbers: Mapping[str, float], *, target: str = "") -> None:
        """Write numbers to the metric files, on rank 0 only; see ``RunFiles.write``.

        Raises:
            DataError: the disk is full, or the folder of the run is no longer at its path.
        """
        if self.files is not None:
            # The open files would move with it.
            self.folder.check()
            self.files.write(update, numbers, target=target)

    def summarize(self) -> None:
        """Log the memory, and where time went since ``start``, whether input was the bottleneck."""
        if self.total is not None:
            _log.info("peak memory of this rank: %s MiB", f"{peak_memory() / 2**20:,.1f}")
            _log.info("time: %s", self.total.describe_shares())
            _log.info("%s", self.total.judge_input())

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], traceback: Any) -> None:
        if error is not None:
            # The program prints the error itself.
            _log.error("stopped after update %d", self._update, exc_info=error, extra=OFF_SCREEN)
        self._watchdog.close()
        self._screen.bar.close()
        if self.files is not None:
            self.files.close()
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()
        self.folder.close()
        logging.getLogger().setLevel(self._former_level)

    def _open_interval(self) -> None:
        self.stopwatch.lap()
        self._interval_started, self._images, self._pauses = self._clock(), 0, 0.0

    def _report(self, loss: float, lr: float, averages: Mapping[str, float]) -> None:
        """Report the numbers of an update, and the speed and shares since the last report.

        The seconds that are left are those at the average pace of the run, with verifications and
        saves.
        """
        seconds = max(self._clock() - self._interval_started - self._pauses, 1e-9)
        interval = Throughput(self._images, seconds, self.stopwatch.lap(seconds))
        # The first interval counts only as long as there is no other: it compiles, and its first
        # batches are not loaded during an earlier update.
        self.total = self.total + interval if self.total and self._reports > 1 else interval
        self._reports += 1
        self._open_interval()
        pace = (self._clock() - self._started) / (self._update - self._first_update)
        report = {
            "loss": loss,
            "lr": lr,
            "images_per_second": interval.images_per_second,
            **{part: interval.share(part) for part in PARTS},
            "seconds_left": pace * (self._total_updates - self._update),
        }
        text = "  ".join([*_describe(averages), _describe_report(report)])
        line = f"update {self._update}/{self._total_updates}  {text}"
        _log.info(line, extra={} if self._screen.bar.disable else OFF_SCREEN)
        self._screen.bar.set_postfix_str(text)
        self.record(self._update, {**report, **averages})


def peak_memory() -> int:
    """Return the resident bytes of this process at their peak, shared pages included.

    ``getrusage`` would report the peak of the process that started this one, if it was larger.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _describe_report(report: Mapping[str, float]) -> str:
    speed, left = report["images_per_second"], timedelta(seconds=round(report["seconds_left"]))
    shares = "  ".join(f"{part} {report[part]:.0%}" for part in PARTS if report[part] > 0)
    return (
        f"loss {report['loss']:.4f}  {speed:,.{0 if speed >= 100 else 1}f} images/s  "
        f"lr {report['lr']:.3g}  {shares}  left {left}"
    )


def _describe(numbers: Mapping[str, float]) -> list[str]:
    """Name and number; those of one name before a slash (``rate/a``, ``rate/b``) in a row.

    What was counted, ``correct`` of ``total``, is a fraction.
    """
    families: dict[str, list[str]] = {}
    for name, value in numbers.items():
        family, _, member = name.partition("/")
        if name == "correct" and "total" in numbers:
            families[name] = [f"{value:.0f}/{numbers['total']:.0f}"]
        elif name != "total" or "correct" not in numbers:
            families.setdefault(family, []).append(f"{value:.0f}" if member else f"{value:.4f}")
    return [f"{family} {' '.join(values)}" for family, values in families.items()]
