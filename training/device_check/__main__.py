"""One part of ``python -m runtime.gpu_check``, which starts this and reads what it prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from runtime import installed
from runtime.errors import run_program
from runtime.gpu_check import NOT_RUN, line
from training.device_check import builds, ranks


def main() -> int:
    """Print the lines of a part: its name, then the names of contexts; without any, all GPUs."""
    part, given = sys.argv[1], sys.argv[2:]
    names = given or [f"gpu({index})" for index in range(len(installed.gpus()))]
    if part == "ranks":
        return ranks.launch(names)
    for text in builds.lines(given) if part == "builds" else _on_devices(part, names):
        print(text, flush=True)
    return 0


def _on_devices(part: str, names: Sequence[str]) -> Iterator[str]:
    from parallel.world import HorovodWorld
    from training.device_check import collectives, contexts, speed, updates

    devices = [contexts.parse(name) for name in names]
    if part == "contexts":
        for device in devices:
            yield from contexts.lines(device)
    elif part == "updates":
        yield from updates.lines(devices[0], (updates.FLOAT32, updates.FLOAT16))
    elif part == "tf32":
        refusal = builds.tf32_refusal(names[0])
        if refusal is None:
            yield from updates.lines(devices[0], (updates.TF32,))
        else:
            yield line(NOT_RUN, "updates TF32", refusal)
    elif part == "speed":
        yield from speed.lines(devices[0])
    else:
        assert part == "rank", part
        world = HorovodWorld()
        for text in collectives.lines(world, devices[world.rank]):
            if world.rank == 0:
                yield text


if __name__ == "__main__":
    run_program(main)
