"""Runs all commands of the README, in their order, in a fresh clone, as a newcomer does.

    python -m tests.newcomer --python python3.9 --data ../shared/data
    python -m tests.newcomer --prompts

A command is a line of a fenced block that begins with the name of a program. All run in one clone,
because a command often fails by files that an earlier one has left, with no variables of the
developer's but PATH and pip's. ``PLANS`` says how commands run that would take days on two cores.

In a block with prompts (``$``), the lines after a command are what it prints, among others
(``tests.support.printed``), and ``^C`` is where the reader presses Ctrl-C; so does this program,
once updates are reported. With ``--prompts`` no other commands run, a quarter of an hour.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Optional

import cv2

from data.images.image_set import DrawnImages
from data.records.writer import RecordWriter
from runtime.errors import run_stoppable
from tests.support.foreign_records import write_cifar
from tests.support.launch import ROOT, keep_ignored_signals_from_children
from tests.support.printed import is_same, lines_of

_ACTIVATE = "source .venv/bin/activate"
_PROGRAMS = ("make", "source", "python", "horovodrun", "bash", "mpirun")
_FENCE = re.compile(r"^```[a-z]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT, _CTRL_C, _ELLIPSIS = "$ ", "^C", "…"
# Trains: from here on Ctrl-C leaves a checkpoint.
_UPDATE = re.compile(r"update \d+/\d+ ")
_STATUS_OF_CTRL_C, _STATUS_OF_A_TIMEOUT = 130, 124
_SECONDS, _SECONDS_TO_END = 2400, 30
_KEPT = ("PATH", "LANG", "PIP_", "SSL_CERT_", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")


class Typed(NamedTuple):
    """A command as it is typed, in one line without its comment."""

    text: str
    output: tuple[str, ...] = ()
    """Lines that it prints, in this order, among others."""
    interrupted: bool = False
    """True if Ctrl-C ends it, so that numbers say when the reader pressed it."""
    prompted: bool = False

    def said(self, printed: str) -> list[str]:
        """Return the lines that were printed as expected, until the first that was not."""
        rest, found = iter(lines_of(printed)), []
        for expected in self.output:
            line = next((line for line in rest if is_same(line, expected, self.interrupted)), None)
            if line is None:
                break
            found.append(line)
        return found


class Plan(NamedTuple):
    """How a command is run: with options that make it short, or not at all."""

    options: str = ""
    left_out: bool = False


# By the words that a command begins with.
PLANS: dict[str, Plan] = {
    # Needs two hosts.
    "horovodrun -np 16 -H ip1:8,ip2:8 bash config.sh": Plan(left_out=True),
    # Two hundred epochs of 50,000 images.
    "horovodrun -np 8 python classify.py --dataset cifar10": Plan(
        "--epochs 1 --num-examples 256 --batch-size 8"
    ),
    # Ninety epochs, 224 x 224 pixels.
    "horovodrun -np 8 python classify.py --dataset imagenet": Plan(
        "--epochs 1 --num-examples 32 --batch-size 2"
    ),
}
_CLASSES = 8


def read(readme: str) -> Iterator[Typed]:
    """Yield the commands of a README."""
    for block in _FENCE.findall(readme):
        for typed in commands(block):
            if typed.prompted or program_of(typed.text) in _PROGRAMS:
                yield typed


def commands(block: str) -> Iterator[Typed]:
    """Yield the lines of a block; if it has prompts, those after one, with what they print."""
    lines = block.replace("\\\n", " ").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(_PROMPT)]
    for start, stop in zip(starts, [*starts[1:], len(lines)]):
        told = lines[start + 1 : stop]
        output = [line for line in told if line.strip() and line not in (_CTRL_C, _ELLIPSIS)]
        text = _without_comment(lines[start][len(_PROMPT) :])
        yield Typed(text, tuple(output), interrupted=_CTRL_C in told, prompted=True)
    for line in () if starts else lines:
        yield Typed(_without_comment(line))


def program_of(text: str) -> str:
    """Return the first word of a command that is not a variable."""
    words = (word for word in text.split() if not re.match(r"[A-Z][A-Z_0-9a-z]*=", word))
    return next(words, "")


def _without_comment(line: str) -> str:
    return " ".join(re.split(r"(?:^|\s)#", line)[0].split())


def main() -> int:
    """Walk; return 0 if every command has ended as the README says."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.newcomer")
    own = os.path.realpath(sys.executable)
    parser.add_argument("--python", default=own, help="the Python to install with (this one)")
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLKIT_DATA"))
    parser.add_argument("--prompts", action="store_true", help="only what stands after a prompt")
    options = parser.parse_args()
    # Else Ctrl-C has no effect on what is run by a walk in the background.
    keep_ignored_signals_from_children()
    if options.data is None:
        parser.error("--data: needs the folder of real data, or TOOLKIT_DATA")
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), f"{folder}/toolkit"], check=True)
        failures = walk(Path(folder).resolve(), options)
    print(f"{failures} commands failed")
    return min(failures, 1)


def write_files(folder: Path, real: Path) -> None:
    """Write the files of the README: real faces and MNIST, drawn images of CIFAR-10, ImageNet."""
    unpacked = folder / "lfw.part"
    shutil.unpack_archive(real / "lfw_112x112.tar.gz", unpacked)
    (lfw,) = unpacked.iterdir()
    lfw.rename(folder / "FACES")
    unpacked.rmdir()
    (folder / "LFW_FOLDER").symlink_to("FACES")
    shutil.copy(real / "lfw_pairs.txt", folder / "pairs.txt")
    shutil.copytree(real / "mnist", folder / "mnist")
    write_cifar(folder / "cifar-10", training=512, validation=64)
    for name, count in (("train.rec", 64), ("val.rec", 16)):
        _write_records(folder / name, count)


def _write_records(path: Path, count: int) -> None:
    """Write a record file of the first few classes: all 1,000 would take long to draw."""
    shape = (256, 256, 3)
    drawn = DrawnImages("training", num_classes=_CLASSES, count=count, shape=shape, seed=1)
    with RecordWriter(path, image_size=shape[:2]) as writer:
        for index in sorted(range(count), key=lambda index: index % _CLASSES):
            encoded = cv2.imencode(".jpg", drawn.decoded(index)[0])[1].tobytes()
            writer.write(encoded, index % _CLASSES)
    path.with_name("property").unlink(missing_ok=True)


def walk(folder: Path, options: argparse.Namespace) -> int:
    """Run the commands of the clone in ``folder``; return how many have failed."""
    clone, home = folder / "toolkit", folder / "home"
    home.mkdir()
    write_files(clone, options.data)
    # Of the developer's environment only what a newcomer's machine would have, too.
    environment = {name: value for name, value in os.environ.items() if name.startswith(_KEPT)}
    places = environment["PATH"].split(os.pathsep)
    environment["PATH"] = os.pathsep.join(place for place in places if ".venv" not in place)
    environment.update(HOME=str(home), PYTHON=options.python)
    failures, activation = 0, ""
    for typed in read((clone / "README.md").read_text(encoding="utf-8")):
        begun = (plan for begin, plan in PLANS.items() if f"{typed.text} ".startswith(f"{begin} "))
        plan = next(begun, Plan())
        if typed.text == _ACTIVATE:
            activation = f"{_ACTIVATE} && "
        elif not (plan.left_out or (options.prompts and not typed.prompted)):
            failures += not _run(typed, plan, clone, environment, activation)
    return failures


def _run(
    typed: Typed, plan: Plan, clone: Path, environment: Mapping[str, str], activation: str
) -> bool:
    """Run a command and report its result; return True if it is what the README says."""
    started, log = time.monotonic(), clone.parent / "log.txt"
    line = f"{typed.text} {plan.options}".strip()
    with log.open("w", encoding="utf-8") as output:
        # A process group, as that of a job of a shell, which is what a terminal sends Ctrl-C to.
        process = subprocess.Popen(
            ["bash", "-c", activation + line], cwd=clone, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    status = _wait(process, log if typed.interrupted else None)
    printed = log.read_text(encoding="utf-8")
    said = typed.said(printed)
    print(_PROMPT + line, *[_CTRL_C] * typed.interrupted, *said, sep="\n")
    print(f"status {status}, {time.monotonic() - started:.0f} s", flush=True)
    if status != (_STATUS_OF_CTRL_C if typed.interrupted else 0):
        print("".join(f"    {line}\n" for line in printed.splitlines()[-30:]), flush=True)
        return False
    missing = typed.output[len(said) :]
    if missing:
        print(f"not printed: {missing[0]}", flush=True)
    return not missing


def _wait(process: subprocess.Popen[bytes], log: Optional[Path]) -> int:
    """Return the status of a command; with a log, send Ctrl-C when an update is in there."""
    try:
        while log and process.poll() is None and not _UPDATE.search(log.read_text()):
            time.sleep(0.5)
        if log and process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        return process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"    not over after {_SECONDS} s", flush=True)
        return _STATUS_OF_A_TIMEOUT
    finally:
        # Everything that it has started and left.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)


if __name__ == "__main__":
    run_stoppable(main)
