"""What a run says about itself.

Someone reads this at three in the morning, on 64 GPUs, to find out whether the run is healthy and
which rank is not. So rank 0 speaks for all (a plain line now and then, or one progress bar on a
terminal), every rank keeps a file of its own, and only warnings of the other ranks reach the
screen. A screen that takes nothing any more (its disk is full, its terminal or reader is gone) does
not end a run: the lines go on in the files. The same numbers go to ``metrics.jsonl`` and to
mxboard's event files. Nothing here waits for the device on an update that is not reported.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Optional, Protocol, SupportsFloat, TextIO, Union

from tqdm import tqdm

from runtime.errors import ConfigError, discard, is_launched
from training.log.metric_files import MetricFiles
from training.log.stopwatch import Stopwatch
from training.log.throughput import Meter, Report, Throughput
from training.log.watchdog import Others, Watchdog

# float() of an NDArray waits for the device, which is why the loss arrives unconverted.
Loss = Union[SupportsFloat, Callable[[], SupportsFloat]]

_LOGGER = logging.getLogger(__name__)


class Verification(Protocol):
    """What a verification result has to offer to be reported."""

    @property
    def accuracy(self) -> float:
        """Mean accuracy over the folds."""

    @property
    def accuracy_std(self) -> float:
        """Standard deviation of the accuracy over the folds."""

    @property
    def xnorm(self) -> float:
        """Mean norm of the embeddings before normalization."""

    @property
    def tar_at_far(self) -> Mapping[float, float]:
        """True accept rate by false accept rate."""


class RunLog:
    """The log of one rank: screen, file, metrics and scalars.

    Use it as a context manager: an exception that ends the run is then written to the rank's file
    together with the update at which it struck.

    Attributes:
        stopwatch: counts the time of the parts of an update, whose shares are reported.
    """

    def __init__(
        self,
        models_root: Union[str, Path],
        *,
        rank: int,
        world_size: int,
        frequent: int,
        screen: Optional[TextIO] = None,
        clock: Callable[[], float] = time.monotonic,
        stall_timeout: Optional[float] = None,
        others: Callable[[], Others] = Others,
    ) -> None:
        """Open the files and attach to Python's logging.

        Args:
            models_root: folder of the run; ``logs/``, ``scalars/`` and ``metrics.jsonl`` go there.
            rank: the rank that this log belongs to.
            world_size: the number of ranks.
            frequent: updates between reports.
            screen: where lines go; standard output unless given. A terminal gets a progress bar.
            clock: seconds from any origin.
            stall_timeout: seconds without progress after which the process is ended.
            others: what this rank knows of those that it may have to wait for.

        Raises:
            ConfigError: the folder cannot be written.
        """
        self._total = 0
        self._frequent = frequent
        self.stopwatch = Stopwatch(clock)
        self._meter = Meter(clock, self.stopwatch)
        self._earlier: Optional[Throughput] = None
        self._update = 0
        self._screen = sys.stdout if screen is None else screen
        # mpirun gives every rank a terminal of its own; run.sh knows whether there is a real one.
        real = not is_launched() or os.environ.get("PROGRESS") == "bar"
        interactive = self._screen.isatty() and real
        self._has_bar = rank == 0 and interactive
        self._bar: Any = None
        root = Path(models_root)
        try:
            self._records = MetricFiles(root) if rank == 0 else None
            self._handlers = (_file_handler(root, rank), _ScreenHandler(self._screen, rank))
        except OSError as error:
            raise ConfigError(
                f"--models-root {models_root} cannot be written ({error.strerror}); "
                "give a folder in which you may write"
            ) from error
        self._attach(rank)
        self._watchdog = stall_timeout and Watchdog(
            stall_timeout,
            rank=rank,
            stopwatch=self.stopwatch,
            log_file=_log_path(root, rank),
            others=others,
        )
        _LOGGER.info("rank %d of %d, files in %s", rank, world_size, root)

    def start(self, total_updates: int, update: int = 0) -> None:
        """Start the clock; call it right before the first update.

        Args:
            total_updates: length of the run; the last update is always reported.
            update: the number of updates that an earlier run has finished.
        """
        self._total = total_updates
        self._update = update
        # What has been counted since an earlier start goes into the summary.
        self._earlier = self._whole()
        self._meter.start(update)
        if self._watchdog:
            # The first update compiles.
            self._watchdog.rest()
        if self._has_bar:
            with _losing(self._screen):
                if self._bar is not None:
                    self._bar.close()
                self._bar = _open_bar(total_updates, update, self._screen)

    def update(
        self,
        update: int,
        *,
        loss: Loss,
        lr: float,
        images: int,
        averages: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Count a finished update; every ``frequent`` updates and at the end, report.

        Args:
            update: how many updates are finished, 1 for the first.
            loss: mean loss of the global batch: a number, an NDArray of one element, or a function
                that returns one. It is looked at only when it is reported.
            lr: the learning rate that the update used.
            images: images of the update, over all ranks.
            averages: further numbers to be reported; called only when they are.
        """
        self._update = update
        if self._watchdog:
            self._watchdog.beat(update)
        self._meter.count(update, images)
        if self._bar is not None:
            with _losing(self._screen):
                self._bar.update(update - self._bar.n)
        if update % self._frequent == 0 or update == self._total:
            # Before the clock is read, so that the device's pending work is in the measured time.
            value = float(loss() if callable(loss) else loss)
            further = averages()
            self._report(update, self._meter.report(value, lr, self._total), further)

    def end_updates(self) -> None:
        """Say that no update follows, unless there is another ``start``."""
        if self._watchdog:
            self._watchdog.rest()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep what happens inside (a verification, a save) out of images/s and the shares."""
        watchdog = self._watchdog.patience() if self._watchdog else nullcontext()
        with self._meter.paused(), watchdog:
            yield

    def verification(self, name: str, result: Verification, *, best: float, update: int) -> None:
        """Report the verification of one target.

        Args:
            name: the target, such as ``lfw``.
            result: its numbers.
            best: the best accuracy on this target so far.
            update: how many updates are finished.
        """
        rates = ", ".join(f"TAR@FAR={far:g} {tar:.4f}" for far, tar in result.tar_at_far.items())
        _LOGGER.info(
            "verification %s at update %d: accuracy %.4f +- %.4f (best %.4f)  %s  xnorm %.2f",
            *(name, update, result.accuracy, result.accuracy_std, best, rates, result.xnorm),
        )
        if self._records is not None:
            numbers = {
                "accuracy": result.accuracy,
                "accuracy_std": result.accuracy_std,
                "best": best,
            }
            numbers.update({f"tar_at_far_{far:g}": tar for far, tar in result.tar_at_far.items()})
            self._records.write(update, {**numbers, "xnorm": result.xnorm}, target=name)

    def record(self, update: int, numbers: Mapping[str, float], *, target: str) -> None:
        """Write numbers for machines, if this is rank 0."""
        if self._records is not None:
            self._records.write(update, numbers, target=target)

    def total(self) -> Optional[Throughput]:
        """What was counted since ``start``, see ``Meter.total``."""
        return self._meter.total()

    def _whole(self) -> Optional[Throughput]:
        last = self._meter.total()
        return self._earlier + last if self._earlier and last else self._earlier or last

    def summarize(self, *, debug: bool) -> None:
        """Say where the time of the run went and whether input was its bottleneck.

        Args:
            debug: the batches came from memory.
        """
        total = self._whole()
        if total is not None:
            _LOGGER.info("time: %s", total.describe_shares())
            _LOGGER.info("%s", total.judge_debug() if debug else total.judge_input())

    def close(self) -> None:
        """Close the files and detach from Python's logging."""
        if self._watchdog:
            self._watchdog.close()
        if self._bar is not None:
            with _losing(self._screen):
                self._bar.close()
        if self._records is not None:
            self._records.close()
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()
        logging.getLogger().setLevel(self._former_level)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if error is not None:
            # The program prints the error itself.
            _LOGGER.error(
                "stopped after update %d", self._update, exc_info=error, extra={"off_screen": True}
            )
        self.close()

    def _attach(self, rank: int) -> None:
        root_logger = logging.getLogger()
        self._former_level = root_logger.level
        root_logger.setLevel(logging.INFO)
        for handler in self._handlers:
            handler.setFormatter(
                logging.Formatter(
                    f"%(asctime)s rank {rank} %(levelname)s: %(message)s", "%Y-%m-%d %H:%M:%S"
                )
            )
            root_logger.addHandler(handler)

    def _report(self, update: int, report: Report, further: Mapping[str, float]) -> None:
        text = "  ".join([*_describe(further), str(report)])
        line = f"update {update}/{self._total}  {text}"
        _LOGGER.info(line, extra={"off_screen": self._bar is not None})
        if self._bar is not None:
            with _losing(self._screen):
                self._bar.set_postfix_str(text)
        if self._records is not None:
            self._records.write(update, {**asdict(report), **further})


def _describe(numbers: Mapping[str, float]) -> list[str]:
    """Name and number; those of one name before a slash (``rate/a``, ``rate/b``) in a row."""
    families: dict[str, list[str]] = {}
    for name, value in numbers.items():
        family, _, member = name.partition("/")
        families.setdefault(family, []).append(f"{value:.0f}" if member else f"{value:.4f}")
    return [f"{family} {' '.join(values)}" for family, values in families.items()]


class _FileHandler(logging.FileHandler):
    """Writes the file of a rank; without it the run goes on, and one line says so."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Complain once, and not with a traceback for each line."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_failed:
            self._has_failed = True
            what = f"{self.baseFilename} cannot be written ({error.strerror})"
            # The screen may be a file on the same disk.
            with suppress(OSError):
                print(f"warning: {what}; lines are missing from it", file=sys.stderr)

    def close(self) -> None:
        """Close the file, also where what it holds back finds no room."""
        with suppress(OSError):
            super().close()


class _ScreenHandler(logging.Handler):
    """Prints the lines of rank 0 and the warnings of the others, above the progress bar."""

    def __init__(self, screen: TextIO, rank: int) -> None:
        super().__init__(logging.INFO if rank == 0 else logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "off_screen", False):
            return
        with _losing(self._screen):
            # tqdm takes open bars away, writes and puts them back; without a bar it just writes.
            tqdm.write(self.format(record), file=self._screen)
            self._screen.flush()


@contextmanager
def _losing(screen: TextIO) -> Iterator[None]:
    """Go on without the screen if it cannot be written any more, and say so elsewhere."""
    try:
        yield
    except OSError as error:
        discard(screen)
        text = f"the screen cannot be written ({error.strerror}); the log goes on in its file"
        _LOGGER.warning(text, extra={"off_screen": True})
        with suppress(OSError):
            print(f"warning: {text}", file=sys.stderr)


def _file_handler(root: Path, rank: int) -> logging.Handler:
    path = _log_path(root, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Names of files may hold bytes that are no characters.
    return _FileHandler(path, encoding="utf-8", errors="backslashreplace")


def _log_path(root: Path, rank: int) -> Path:
    return root / "logs" / f"rank-{rank:04d}.log"


def _open_bar(total_updates: int, update: int, screen: TextIO) -> Any:
    layout = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_inv_fmt}]{postfix}"
    return tqdm(
        total=total_updates, initial=update, file=screen, bar_format=layout, dynamic_ncols=True
    )
