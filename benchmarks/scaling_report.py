"""The report of ``benchmarks.scaling``: tables, the model beside them, and the plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from benchmarks import measure
from benchmarks.scaling_model import sent
from benchmarks.scaling_runs import (
    ALLREDUCE,
    INDEPENDENT,
    ScalingSetup,
    ScalingSpeed,
)
from runtime import processors

_READ_ON = (2, 4, 8, 16, 32, 64)
ALONE = ScalingSetup(1, INDEPENDENT)
Measurements = Mapping[ScalingSetup, Sequence[ScalingSpeed]]
"""The speeds of a setup, by round."""


class Prediction(NamedTuple):
    """What the model says of a setup."""

    exchange: float
    """Seconds."""
    efficiency: float


def speed(speeds: Sequence[ScalingSpeed]) -> float:
    """The median images/s over the rounds."""
    return statistics.median(one.images_per_second for one in speeds)


def efficiency(setup: ScalingSetup, measured: Measurements, other: ScalingSetup = ALONE) -> float:
    """Images/s per worker, over those of another setup: the median of the rounds' ratios."""
    own, others = (
        [one.images_per_second / each.workers for one in measured[each]] for each in (setup, other)
    )
    return measure.ratio(own, others)


def exchange_seconds(setup: ScalingSetup, measured: Measurements) -> float:
    """The median time of an exchange by itself."""
    return statistics.median(one.exchange for one in measured[setup])


def bytes_sent(setup: ScalingSetup, parameter_bytes: int) -> tuple[float, float]:
    """What a worker and what a server sends for an update, computed, not measured.

    A worker of parameter servers sends all gradients; the servers together send all weights to
    every worker.
    """
    servers = setup.exchange.servers_per_worker * setup.workers
    if servers:
        return float(parameter_bytes), setup.workers * parameter_bytes / servers
    return sent(setup.workers, parameter_bytes) if setup.exchange == ALLREDUCE else 0.0, 0.0


def predict(setup: ScalingSetup, measured: Measurements) -> Prediction:
    """The model, from what the fewest workers of its line measured.

    Each worker has a processor, and nothing of the exchange is hidden: where gradients are computed
    on processors, it takes the same ones. What a worker and a server of as many parameter servers
    send does not grow with their number, nor, therefore, does the time of that exchange.
    """
    fewest = min(each for each in measured if each.line == setup.line and each.workers > 1)
    if setup.exchange == ALLREDUCE:
        seconds = statistics.median(
            one.link.allreduce(setup.workers, one.messages)
            for one in measured[fewest]
            if one.link is not None
        )
    else:
        seconds = exchange_seconds(fewest, measured)
    # As many processes as there are processors: what more of them lose, they lose to waiting.
    beside = max(
        each
        for each in measured
        if each.exchange == INDEPENDENT and each.workers <= processors.available()
    )
    alone = statistics.median(one.update for one in measured[ALONE])
    return Prediction(seconds, alone / (alone / efficiency(beside, measured) + seconds))


def lines(measured: Measurements) -> dict[str, ScalingSetup]:
    """A setup of each line that exchanges gradients between several workers."""
    return {
        setup.line: setup
        for setup in measured
        if setup.workers > 1 and setup.exchange != INDEPENDENT
    }


def table(measured: Measurements) -> str:
    """Lay out the measurements."""
    header = ["measured", "images/s", "from … to", "efficiency", "of no exchange"]
    header += ["exchange by itself, ms", "MB per worker", "MB per server"]
    rows = []
    for setup, speeds in measured.items():
        every = [one.images_per_second for one in speeds]
        worker, server = bytes_sent(setup, sum(speeds[0].messages))
        beside = ScalingSetup(setup.workers, INDEPENDENT)
        rows.append(
            [
                str(setup),
                f"{speed(speeds):.1f}",
                f"{min(every):.1f} … {max(every):.1f}",
                f"{efficiency(setup, measured):.3f}",
                f"{efficiency(setup, measured, beside):.3f}" if worker else "",
                f"{exchange_seconds(setup, measured) * 1e3:.1f}" if worker else "",
                f"{worker / 1e6:.2f}" if worker else "",
                f"{server / 1e6:.2f}" if server else "",
            ]
        )
    return measure.markdown_table(header, rows)


def model_table(measured: Measurements) -> str:
    """Lay out the model for up to 64 workers, beside what was measured."""
    header = ["model", "exchange, ms", "measured", "efficiency", "measured"]
    rows = []
    for line in lines(measured).values():
        for workers in _READ_ON:
            setup = line._replace(workers=workers)
            seconds, predicted = predict(setup, measured)
            known = setup in measured
            rows.append(
                [
                    str(setup),
                    f"{seconds * 1e3:.1f}",
                    f"{exchange_seconds(setup, measured) * 1e3:.1f}" if known else "–",
                    f"{predicted:.3f}",
                    f"{efficiency(setup, measured):.3f}" if known else "–",
                ]
            )
    return "\n\n".join((_links(measured), measure.markdown_table(header, rows)))


def _links(measured: Measurements) -> str:
    """What the model begins with."""
    described = []
    for setup, speeds in measured.items():
        links = [one.link for one in speeds if one.link is not None]
        if links:
            start, latency, bandwidth = (statistics.median(part) for part in zip(*links))
            described.append(
                f"- {setup}: {len(speeds[0].messages)} arrays of "
                f"{sum(speeds[0].messages) / 1e6:.1f} MB, start {start * 1e3:.2f} ms, "
                f"latency {latency * 1e6:.0f} µs, bandwidth {bandwidth / 1e9:.2f} GB/s"
            )
    return "\n".join(described)


def draw(measured: Measurements, path: Path) -> None:
    """Draw the efficiency over the number of workers: measured as points, the model as lines."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(1, color="gray", linewidth=0.8)
    for name, line in lines(measured).items():
        model = [predict(line._replace(workers=workers), measured) for workers in _READ_ON]
        drawn = axes.plot(_READ_ON, [one.efficiency for one in model], "--", label=f"{name}: model")
        points = {
            setup.workers: efficiency(setup, measured) for setup in measured if setup.line == name
        }
        color = drawn[0].get_color()
        axes.plot(*zip(*points.items()), "o", color=color, label=f"{name}: measured")
    beside = {
        setup.workers: efficiency(setup, measured)
        for setup in measured
        if setup.exchange == INDEPENDENT
    }
    axes.plot(*zip(*beside.items()), "x", color="black", label="no exchange: measured")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="workers", ylabel="images/s per worker, over one alone")
    axes.set_xticks((1, *_READ_ON), labels=[str(workers) for workers in (1, *_READ_ON)])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="x-small", ncols=2)
    figure.savefig(path, dpi=150)


def rows_of(title: str, measured: Measurements) -> list[measure.Row]:
    """The same as rows for a file."""
    rows = []
    for setup, speeds in measured.items():
        worker, server = bytes_sent(setup, sum(speeds[0].messages))
        rows += [
            measure.Row(title, str(setup), speed(speeds), "images/s"),
            measure.Row(title, str(setup), efficiency(setup, measured), "of ideal scaling"),
            measure.Row(title, str(setup), exchange_seconds(setup, measured), "s per exchange"),
            measure.Row(title, str(setup), worker, "bytes sent per worker and update"),
            measure.Row(title, str(setup), server, "bytes sent per server and update"),
        ]
    for line in lines(measured).values():
        for workers in _READ_ON:
            setup = line._replace(workers=workers)
            seconds, predicted = predict(setup, measured)
            rows += [
                measure.Row(title, str(setup), predicted, "of ideal scaling by the model"),
                measure.Row(title, str(setup), seconds, "s per exchange by the model"),
            ]
    return rows
