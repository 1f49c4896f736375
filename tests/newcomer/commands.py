"""The commands of the README, in their order, and how a machine without GPUs and data runs each.

A command is a line of a fenced block that begins with the name of a program. Most are run as they
are. Those that would take days on two cores get further options that shorten them; those that need
several hosts are left out. ``PLANS`` lists both, and a test fails for a command without a plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Optional

_PROGRAMS = ("make", "source", "python", "horovodrun", "bash", "mpirun")
_FENCE = re.compile(r"^```[a-z]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MINUTE = 60


class Plan(NamedTuple):
    """How a command is run.

    Attributes:
        options: what is put behind it to make it short.
        minutes: the time limit.
        left_out: why it is not run here; None for one that is.
    """

    options: str = ""
    minutes: int = 15
    left_out: Optional[str] = None

    @property
    def seconds(self) -> int:
        """The time limit."""
        return self.minutes * _MINUTE


TO_THE_LETTER = Plan()

# By the words that a command begins with; the first that fits counts.
PLANS: dict[str, Plan] = {
    "make train": Plan(minutes=30),
    "make test": Plan(minutes=40),
    "source .venv/bin/activate": TO_THE_LETTER,
    "horovodrun -np 8 -H localhost:8 bash config.sh": TO_THE_LETTER,
    "horovodrun -np 16 -H ip1:8,ip2:8 bash config.sh": Plan(left_out="needs two hosts"),
    "bash run.sh": TO_THE_LETTER,
    "python train.py": TO_THE_LETTER,
    "python -m data.pack": TO_THE_LETTER,
    "NETWORK=tiny bash run.sh --rec": Plan(minutes=30),
    "python classify.py": TO_THE_LETTER,
    "horovodrun -np 2 python classify.py --dataset mnist": Plan(minutes=30),
    # Two hundred epochs of 50,000 images.
    "horovodrun -np 8 python classify.py --dataset cifar10": Plan(
        "--epochs 1 --num-examples 256 --batch-size 8", minutes=30
    ),
    # Ninety epochs, 224 x 224 pixels.
    "horovodrun -np 8 python classify.py --dataset imagenet": Plan(
        "--epochs 1 --num-examples 32 --batch-size 2", minutes=30
    ),
    "python -m parallel.autogroup": Plan(minutes=30),
    "python -m parallel.launch": Plan(minutes=30),
    "python -m evaluation.verification": TO_THE_LETTER,
    "python -m evaluation.export": TO_THE_LETTER,
}


def read(readme: str) -> Iterator[str]:
    """The commands of a README, each in one line and without its comment."""
    for block in _FENCE.findall(readme):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.partition(" #")[0].split()
            program = next((word for word in words if not re.match(r"[A-Z_]+=", word)), "")
            if program in _PROGRAMS:
                yield " ".join(words)


def plan_of(command: str) -> Plan:
    """How a command is run.

    Raises:
        LookupError: there is no plan for it.
    """
    for beginning, plan in PLANS.items():
        if f"{command} ".startswith(f"{beginning} "):
            return plan
    raise LookupError(f"no plan for {command!r}: add it to PLANS in {__name__}")
