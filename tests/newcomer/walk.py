"""Runs all commands of the README, in their order, in a fresh clone, as a newcomer does.

    python -m tests.newcomer --python python3.9 --data ../shared/data [--sessions FILE]
    python -m tests.newcomer --prompts --skip "make test" --sessions docs/results/walk.txt

They are run in one clone, one after the other, because a command often fails by files that an
earlier one has left: in an environment that has only the PATH of the developer's and pip's
variables, without options that the README does not have (but see ``commands``). What the README
says a command prints is looked for in what it has printed; where the README has Ctrl-C, so has the
walk, once updates are reported. With ``--sessions`` these commands go into a file, with the lines
that they have printed; with ``--prompts`` no other commands are run. About an hour on two cores, or
a quarter of one.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import file_to_write
from tests.newcomer import commands
from tests.newcomer.commands import Plan, Typed
from tests.support.signals import keep_ignored_signals_from_children

ROOT = Path(__file__).resolve().parents[2]
_ACTIVATE = "source .venv/bin/activate"
# Of a verification or of a validation; those of training tell less.
_ACCURACY = re.compile(r"verification .*accuracy|validation loss|accuracy .* ± ")
# Trains: from here on Ctrl-C leaves a checkpoint.
_UPDATE = re.compile(r"update \d+/\d+ ")
_STATUS_OF_CTRL_C, _STATUS_OF_A_TIMEOUT = 130, 124
_SECONDS_TO_END = 30
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
_KEPT = ("PATH", "LANG", "PIP_", "SSL_CERT_", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")


def main() -> int:
    """Walk; returns 0 if every command has ended as the README says."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.newcomer")
    own = os.path.realpath(sys.executable)
    parser.add_argument("--python", default=own, help="the Python to install with (this one)")
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLKIT_DATA"))
    parser.add_argument("--folder", type=Path, help="an empty folder to work in, which stays")
    parser.add_argument("--skip", default="", help="commands to leave out: make test,make train")
    parser.add_argument("--prompts", action="store_true", help="only what stands after a prompt")
    parser.add_argument("--sessions", type=file_to_write, help="write what prompts printed")
    options = parser.parse_args()
    # Else Ctrl-C has no effect on what is run by a walk in the background.
    keep_ignored_signals_from_children()
    if options.data is None:
        parser.error("--data: needs the folder of real data, or TOOLKIT_DATA")
    with tempfile.TemporaryDirectory(prefix="newcomer-") as temporary:
        folder = options.folder or Path(temporary)
        found = walk(folder.resolve(), options)
    # As it was, if not everything went as README says.
    if options.sessions is not None and not found.failures:
        options.sessions.write_text("".join(found.sessions), encoding="utf-8")
    print(f"{found.failures} commands failed")
    return min(found.failures, 1)


class Walked(NamedTuple):
    """How many commands have failed, and the sessions of those whose output the README has."""

    failures: int
    sessions: Sequence[str]


def walk(folder: Path, options: argparse.Namespace) -> Walked:
    """Run the commands in a clone in ``folder``."""
    clone, home = folder / "toolkit", folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    if not clone.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    # Of the developer's environment only what a newcomer's machine would have, too.
    environment = {name: value for name, value in os.environ.items() if name.startswith(_KEPT)}
    places = environment["PATH"].split(os.pathsep)
    environment["PATH"] = os.pathsep.join(place for place in places if ".venv" not in place)
    environment.update(HOME=str(home), PYTHON=options.python)
    failures, is_active = 0, False
    sessions: list[str] = []
    for typed in commands.read((clone / "README.md").read_text(encoding="utf-8")):
        plan = commands.plan_of(typed.text)
        if plan.left_out:
            print(f"left out  {typed.text}  ({plan.left_out})", flush=True)
            continue
        if typed.text == _ACTIVATE:
            if not is_active:
                making = f"python -m tests.newcomer.files . '{options.data.resolve()}'"
                words = ["bash", "-c", f"{_ACTIVATE} && {making}"]
                subprocess.run(words, cwd=clone, env=environment, check=True)
            is_active = True
            continue
        if typed.text in options.skip.split(",") or (options.prompts and not typed.prompted):
            continue
        failures += not _run(typed, plan, clone, environment, is_active)
        if typed.output:
            sessions.append(typed.session(_lines(clone)))
    return Walked(failures, sessions)


def _run(
    typed: Typed, plan: Plan, clone: Path, environment: Mapping[str, str], is_active: bool
) -> bool:
    """Run a command and report what came of it; returns True if it was what the README says."""
    text = f"{typed.text} {plan.options}".strip()
    line = f"{_ACTIVATE} && {text}" if is_active else text
    started = time.monotonic()
    status = wait(line, plan, clone, environment, typed.interrupted)
    print(f"status {status:3d}  {time.monotonic() - started:5.0f} s  {text}", flush=True)
    lines = _lines(clone)
    missing = typed.missing(lines)
    is_well = status == (_STATUS_OF_CTRL_C if typed.interrupted else 0) and missing is None
    # The first and the last accuracy that it has reported.
    stated = [said for said in lines if _ACCURACY.search(said)]
    told = stated[:1] + stated[1:][-1:] if is_well else lines[-30:]
    if missing is not None:
        told.append(f"not printed: {missing}")
    elif typed.output:
        told.append(f"as the README says: {len(typed.output)} lines")
    print("".join(f"    {said}\n" for said in told), end="", flush=True)
    return is_well


def _log(clone: Path) -> Path:
    """What the last command has printed."""
    return clone.parent / "log.txt"


def _lines(clone: Path) -> list[str]:
    """The same, without the times of a log."""
    return [_TIME.sub("", line) for line in _log(clone).read_text(encoding="utf-8").splitlines()]


def wait(
    line: str, plan: Plan, clone: Path, environment: Mapping[str, str], interrupted: bool
) -> int:
    """The status of a command; Ctrl-C is pressed, if it is, when it reports an update."""
    log = _log(clone)
    with log.open("w", encoding="utf-8") as output:
        # A process group, as that of a job of a shell, which is what a terminal sends Ctrl-C to.
        process = subprocess.Popen(
            ["bash", "-c", line], cwd=clone, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        if interrupted:
            while process.poll() is None and not _UPDATE.search(log.read_text()):
                time.sleep(0.5)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        return process.wait(plan.minutes * 60)
    except subprocess.TimeoutExpired:
        print(f"    not over after {plan.minutes} minutes", flush=True)
        return _STATUS_OF_A_TIMEOUT
    finally:
        # Everything that it has started and left.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
