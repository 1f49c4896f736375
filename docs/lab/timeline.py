"""Adds up timeline.json, which Horovod has written into this folder: what collectives waited for.

    python docs/lab/timeline.py

Exercise 8 of the lab. A timeline is a list of events. Each collective has a "process" (pid) of its
own, in it a begin ("B") and an end ("E") of each phase, and while ranks are waited for a mark ("X")
with the number of each that has come; times are microseconds. Perfetto draws it, this adds it up.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path("timeline.json")
# What came less often belongs to the start or the end of a run.
OFTEN = 10
# backbone.gradient.17 belongs to backbone.gradient; Horovod puts the kind before it.
_PLAIN = re.compile(r"^horovod_\w+\.|\.\d+$")


class Collective(NamedTuple):
    """All collectives of one name."""

    milliseconds: Counter[str]
    """By phase."""
    last: Counter[str]
    """How often each rank came last."""


def events(text: str) -> list[dict[str, Any]]:
    """The events of a timeline; a run that was killed has written no end."""
    body = text.strip().rstrip("]").rstrip().rstrip(",")
    return [event for event in json.loads(f"{body}]") if event]


def collectives(found: Iterable[dict[str, Any]]) -> dict[str, Collective]:
    """What each waited for and how long it ran, by its name."""
    names: dict[int, str] = {}
    running: dict[int, list[tuple[str, float]]] = defaultdict(list)
    came: dict[int, str] = {}
    added: dict[str, Collective] = defaultdict(lambda: Collective(Counter(), Counter()))
    for event in found:
        process, kind = event["pid"], event["ph"]
        if kind == "M":
            if "name" in event["args"]:
                names[process] = _PLAIN.sub("", event["args"]["name"])
        elif kind == "B":
            running[process].append((event["name"], event["ts"]))
        elif kind == "X":
            came[process] = event["name"]
        elif kind == "E" and running[process]:
            phase, since = running[process].pop()
            one = added[names[process]]
            one.milliseconds[phase] += (event["ts"] - since) / 1e3
            if phase.startswith("NEGOTIATE"):
                one.last[came[process]] += 1
    return added


def main() -> None:
    """Print a row for each name that comes often: who came last, and where the time went."""
    print("collective                count  rank 1 last   waited, ms   ran, ms   copied, ms")
    for name, one in sorted(collectives(events(FILE.read_text(encoding="utf-8"))).items()):
        spent = one.milliseconds
        waited = sum(ms for phase, ms in spent.items() if phase.startswith("NEGOTIATE"))
        ran = spent["ALLREDUCE"] + spent["ALLGATHER"]
        copied = sum(ms for phase, ms in spent.items() if phase.startswith("MEMCPY"))
        count, late = sum(one.last.values()), one.last["1"]
        if count < OFTEN:
            continue
        print(f"{name:24} {count:6} {late:12} {waited:12.1f} {ran:9.1f} {copied:12.1f}")


if __name__ == "__main__":
    main()
