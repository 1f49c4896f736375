"""The commands of the README, in their order, and how a machine without GPUs and data runs each.

A command is a line of a fenced block that begins with the name of a program. Most are run as they
are. Those that would take days on two cores get further options that shorten them; those that need
several hosts are left out. ``PLANS`` lists both, and a test fails for a command without a plan.

In a block with prompts (``$``), the lines after a command are what it prints, and ``^C`` is where
the reader presses Ctrl-C. An ellipsis stands for what differs each time; a line of its own, for
lines that are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

_PROGRAMS = ("make", "source", "python", "horovodrun", "bash", "mpirun")
_FENCE = re.compile(r"^```[a-z]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT, _CTRL_C, _ELLIPSIS = "$ ", "^C", "…"
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
# Other processors round otherwise, which a training run makes larger.
_TOLERANCE = 0.03


class Typed(NamedTuple):
    """A command as it is typed, in one line without its comment."""

    text: str
    output: tuple[str, ...] = ()
    """Lines that it prints, in this order, among others."""
    interrupted: bool = False
    """True if Ctrl-C ends it."""
    prompted: bool = False
    """True if it stands in a block with prompts."""

    def said(self, printed: Sequence[str]) -> list[str]:
        """The lines that were printed as they were to be, until the first that was not.

        A number with a decimal point may differ a little. Of a command that Ctrl-C ends, whole
        numbers may be any: they say when the reader pressed it.
        """
        rest, found = iter(printed), []
        for expected in self.output:
            line = next((line for line in rest if _says(line, expected, self.interrupted)), None)
            if line is None:
                break
            found.append(line)
        return found

    def missing(self, printed: Sequence[str]) -> Optional[str]:
        """The first line that was to be printed and was not; None if there is none."""
        return next(iter(self.output[len(self.said(printed)) :]), None)

    def session(self, printed: Sequence[str]) -> str:
        """The command as in a block with prompts, with what it has printed of that."""
        lines = [_PROMPT + self.text, *[_CTRL_C] * self.interrupted, *self.said(printed)]
        return "".join(f"{line}\n" for line in lines)


def _says(line: str, expected: str, interrupted: bool) -> bool:
    """True if a line contains what is expected."""
    parts = (re.escape(part).replace(_ELLIPSIS, ".*") for part in _NUMBER.split(expected))
    found = re.search(f"({_NUMBER.pattern})".join(parts), line)
    if not found:
        return False
    for wanted, number in zip(_NUMBER.findall(expected), found.groups()):
        difference = abs(float(wanted.replace(",", "")) - float(number.replace(",", "")))
        if difference > _TOLERANCE if "." in wanted else wanted != number and not interrupted:
            return False
    return True


class Plan(NamedTuple):
    """How a command is run: with options that make it short, in a time, or not at all."""

    options: str = ""
    minutes: float = 15
    left_out: Optional[str] = None
    """Why it is not run here."""


# By the words that a command begins with; the first that fits counts.
PLANS: dict[str, Plan] = {
    "make train": Plan(minutes=30),
    "make test": Plan(minutes=40),
    "source .venv/bin/activate": Plan(),
    "horovodrun -np 8 -H localhost:8 bash config.sh": Plan(),
    "horovodrun -np 16 -H ip1:8,ip2:8 bash config.sh": Plan(left_out="needs two hosts"),
    "bash run.sh": Plan(),
    "NP=3 bash run.sh": Plan(),
    "python train.py": Plan(),
    "python -m data.pack": Plan(),
    "NETWORK=tiny bash run.sh --rec": Plan(minutes=30),
    "python classify.py": Plan(),
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
    "python -m evaluation.verification": Plan(),
    "python -m evaluation.export": Plan(),
}


def read(readme: str) -> Iterator[Typed]:
    """The commands of a README."""
    for block in _FENCE.findall(readme):
        lines = block.replace("\\\n", " ").splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith(_PROMPT)]
        for start, stop in zip(starts, [*starts[1:], len(lines)]):
            told = lines[start + 1 : stop]
            yield Typed(
                _without_comment(lines[start][len(_PROMPT) :]),
                tuple(line for line in told if line.strip() and line not in (_CTRL_C, _ELLIPSIS)),
                interrupted=_CTRL_C in told,
                prompted=True,
            )
        for text in () if starts else map(_without_comment, lines):
            program = next((word for word in text.split() if not re.match(r"[A-Z_]+=", word)), "")
            if program in _PROGRAMS:
                yield Typed(text)


def _without_comment(line: str) -> str:
    return " ".join(line.partition(" #")[0].split())


def plan_of(command: str) -> Plan:
    """How a command is run; a ``LookupError`` if there is no plan for it."""
    for beginning, plan in PLANS.items():
        if f"{command} ".startswith(f"{beginning} "):
            return plan
    raise LookupError(f"no plan for {command!r}: add it to PLANS in {__name__}")
