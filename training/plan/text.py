"""The parts of a plan in words, for a terminal of 100 columns, and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.plan.items import Duration, Item, seconds, total

if TYPE_CHECKING:
    # Loads what classify.py does without.
    from partial_fc.shard import Shard
    from training.plan.capacity import Choice


def lines_of_shards(first: Shard, last: Shard) -> list[str]:
    """Which classes the first and the last rank hold."""
    lines = [f"{first.num_classes:,} classes in {first.world_size:,} shards"]
    for shard in (first, last)[: first.world_size]:
        lines.append(
            f"  rank {shard.rank}: classes {shard.start:,} to {shard.stop - 1:,} ({shard.size:,})"
        )
    larger = first.num_classes % first.world_size
    if larger:
        lines.append(f"  the first {larger:,} ranks hold one class more than the others")
    return lines


def lines_of_memory(items: list[Item], copy: int) -> list[str]:
    """The items of rank 0 on a CPU, and their sum without and with the copy for checkpoints."""
    head = sum(item.num_bytes for item in items[:5])
    everything = sum(item.num_bytes for item in items)
    rows = [row(item.label, item.num_bytes) + f"  {item.basis}" for item in items]
    return [
        "memory of rank 0",
        *rows[:5],
        row("head in all", head),
        *rows[5:],
        row("everything together", everything),
        row("with the copy for checkpoints", everything + copy),
    ]


def lines_of_gpu(items: list[Item]) -> list[str]:
    """The items on a GPU, in MiB as ``nvidia-smi`` has them."""
    shown = [(item.label, item.num_bytes) for item in items if item.num_bytes]
    shown.append(("everything together", sum(item.num_bytes for item in items)))
    return [
        "memory of rank 0 on a GPU",
        *(f"  {name:<30}{size / 2**20:>8,.0f} MiB  {size:>18,}" for name, size in shown),
    ]


def lines_of_time(durations: list[Duration], global_batch: int) -> list[str]:
    """The parts of an update, their sum, and images per second over all ranks."""
    whole = seconds(durations)
    images = global_batch / whole
    return [
        "time of an update",
        *(f"  {one.label:<36}{one.seconds * 1000:>10,.1f} ms  {one.basis}" for one in durations),
        f"  {'everything together':<36}{whole * 1000:>10,.1f} ms  {images:,.1f} images/s",
    ]


def lines_of_choices(table: list[Choice]) -> list[str]:
    """The table, with a dash for what is not known."""
    lines = ["ranks   batch   ratio       memory    ms/update     images/s   most classes"]
    for one in table:
        time, speed, most = "-", "-", "-"
        if one.seconds is not None:
            time = f"{one.seconds * 1000:,.1f}"
            speed = f"{one.ranks * one.batch_size / one.seconds:,.1f}"
        if one.num_classes is not None:
            most = f"{one.num_classes:,}"
        lines.append(
            f"{one.ranks:>5}{one.batch_size:>8}{one.sample_ratio:>8g}"
            f"{one.num_bytes / 2**20:>9,.0f} MiB{time:>13}{speed:>13}{most:>15}"
        )
    return lines


def memory_as_json(items: list[Item], copy: int) -> dict[str, Any]:
    """The items of rank 0, their sum, and the copy for checkpoints."""
    listed = [{"name": one.key, "bytes": one.num_bytes, "basis": one.basis} for one in items]
    return {"items": listed, "bytes": total(items), "checkpoint_bytes": copy}


def time_as_json(durations: list[Duration]) -> dict[str, Any]:
    """The parts of an update's time, and their sum."""
    listed = [{"name": one.key, "seconds": one.seconds, "basis": one.basis} for one in durations]
    return {"items": listed, "seconds": seconds(durations)}


def row(name: str, size: int) -> str:
    """A size in words and in bytes."""
    return f"  {name:<30}{readable(size):>12}  {size:>18,}"


def readable(size: float) -> str:
    """A size in the unit that fits."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.1f} {units[0]}"
