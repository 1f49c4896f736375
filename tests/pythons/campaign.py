"""Runs the README's first command with every supported Python of the machine, from a clean copy.

    make pythons                              each Python, in one of the places
    make pythons ONLY=3.9,3.12 PLACE=space    these, in this place

Compiled packages and installers differ between Pythons: what works with one can crash with another.
A copy of this checkout in a temporary folder gets its own environment; two ranks train for some
updates, and one process imports every module. Each Python is tried in another place that users
have: a folder with a space and a letter beyond ASCII in its name, a user without root, a home that
cannot be written, and nothing special. Pythons that are not found are named.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.9", "3.10", "3.11", "3.12")
# In the order in which Pythons are dealt out: not every Python can be run by every user.
PLACES = ("user", "space", "home", "plain")
_ABOUT = {
    "user": "as a user without root",
    "space": "in a folder with a space and a non-ASCII letter",
    "home": "with a home that cannot be written",
    "plain": "in a plain folder",
}
_NOBODY = 65534
_UPDATES = 20
_LIMIT_SECONDS = 1800
# What an outer make, and the environment that this process runs in, leave.
_NOT_OURS = ("VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON", "PYTHONPATH", "NP")
_LEARNED = re.compile(r"verification unseen: accuracy untrained ([\d.]+), trained ([\d.]+)")


class Failure(Exception):
    """A step of a trial that failed; the message is the end of its output."""


class Trial(NamedTuple):
    """A Python in a place."""

    version: str
    python: str
    place: str


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Try the Pythons one after the other; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m tests.pythons", description=__doc__
    )
    parser.add_argument("--only", type=_versions, default=VERSIONS, metavar="3.9,3.10")
    parser.add_argument("--place", choices=PLACES, help="of all Pythons; without it each another")
    options = parser.parse_args(argv)
    found = {version: candidates(version) for version in options.only}
    for version in (version for version, pythons in found.items() if not pythons):
        print(f"Python {version}: not found on the PATH or among pyenv's, hence not tried")
    is_root = os.geteuid() == 0
    if options.place:
        choose = _runnable_by_nobody if options.place == "user" and is_root else _first
        trials = [Trial(*chosen, options.place) for chosen in choose(found)]
    else:
        trials = deal_out(found, can_switch_user=is_root)
    if not is_root:
        print(f"all of them run {_ABOUT['user']}, as this one does")
    elif not options.place:
        for place in (place for place in PLACES if place not in {t.place for t in trials}):
            print(f"{_ABOUT[place]}: not tried, since every Python is tried in another place")
    failed = [trial for trial in trials if not _succeeds(trial)]
    print(f"pythons: {len(trials) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not trials else 0


def _versions(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(VERSIONS):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of {', '.join(VERSIONS)}")
    return chosen


def candidates(version: str) -> list[str]:
    """The Pythons of a version that can make environments: on the PATH, then those of pyenv."""
    name = f"python{version}"
    folders = [Path(folder) for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders += sorted((pyenv / "versions").glob(f"{version}.*/bin"))
    found = []
    for path in (folder / name for folder in folders if ROOT not in folder.parents):
        if path.is_file() and str(path) not in found and _is_usable(str(path), version):
            found.append(str(path))
    return found


def _is_usable(python: str, version: str, user: Optional[int] = None) -> bool:
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [python, "-c", code], cwd="/", user=user, capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


def _first(found: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(version, pythons[0]) for version, pythons in found.items() if pythons]


def deal_out(found: dict[str, list[str]], can_switch_user: bool) -> list[Trial]:
    """Give each Python a place of its own; more Pythons than places take the last place."""
    left = {version: pythons for version, pythons in found.items() if pythons}
    trials = []
    if can_switch_user:
        for version, python in _runnable_by_nobody(left)[:1]:
            trials.append(Trial(version, python, PLACES[0]))
            del left[version]
    places = PLACES[1:]
    for number, (version, python) in enumerate(_first(left)):
        trials.append(Trial(version, python, places[min(number, len(places) - 1)]))
    return sorted(trials, key=lambda trial: VERSIONS.index(trial.version))


def _runnable_by_nobody(found: dict[str, list[str]]) -> list[tuple[str, str]]:
    runnable = {
        version: [python for python in pythons if _is_usable(python, version, user=_NOBODY)]
        for version, pythons in found.items()
    }
    return _first(runnable)


def _succeeds(trial: Trial) -> bool:
    start = time.monotonic()
    print(f"Python {trial.version}, {_ABOUT[trial.place]}: {trial.python}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"python-{trial.version}-"))
    try:
        report = run(trial, folder)
    except Failure as failure:
        print(f"Python {trial.version}: FAILED in {folder}\n{failure}", flush=True)
        return False
    print(f"Python {trial.version}: {report}; {time.monotonic() - start:.0f} s", flush=True)
    shutil.rmtree(folder)
    return True


def run(trial: Trial, folder: Path) -> str:
    """Install, train and import in a copy of this checkout; returns what came out.

    Raises:
        Failure: one of the three failed.
    """
    project = folder / ("my pröject" if trial.place == "space" else "project")
    _copy(project)
    home, user = str(folder / "home"), None
    if trial.place == "home":
        (folder / "home").write_text("a file, in which not even root can make a folder\n")
    elif trial.place == "user" and os.geteuid() == 0:
        user = _NOBODY
        (folder / "home").mkdir()
        folder.chmod(0o755)
        for path in (folder / "home", project, *project.rglob("*")):
            os.chown(path, _NOBODY, _NOBODY)
    variables = {key: value for key, value in os.environ.items() if key not in _NOT_OURS}
    variables["PATH"] = os.pathsep.join(
        path for path in os.get_exec_path() if ROOT not in Path(path).parents
    )
    if trial.place == "home" or user is not None:
        variables["HOME"] = home
    variables.update(PYTHON=trial.python, MAX_UPDATE=str(_UPDATES))
    shell = _Shell(project, variables, user)
    learned = _LEARNED.search(shell.output_of("make", "train"))
    if not learned:
        raise Failure("make train has not printed the accuracy on unseen identities")
    report = f"accuracy {learned[1]} -> {learned[2]} after {_UPDATES} updates"
    if trial.place == "space":
        words = "horovodrun -np 2 -H localhost:2 bash config.sh --max-update 2 --models-root other"
        shell.output_of("bash", "-c", f"source .venv/bin/activate && {words}")
        report += ", with horovodrun too"
    imported = shell.output_of(".venv/bin/python", "-m", "tests.pythons.modules").splitlines()
    return f"{report}; {imported[-1]}"


def _copy(project: Path) -> None:
    """Lay the files of this checkout, as they are now, into a folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, project / name)


class _Shell(NamedTuple):
    """Where and as whom the commands of a trial run."""

    folder: Path
    variables: dict[str, str]
    user: Optional[int]

    def output_of(self, *command: str) -> str:
        """Run a command to its end; returns what it printed."""
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="backslashreplace",
            start_new_session=True, user=self.user, group=self.user,
            extra_groups=None if self.user is None else [],
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=_LIMIT_SECONDS)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failure(f"{command} did not end within {_LIMIT_SECONDS} s") from None
            raise
        if process.returncode != 0:
            end = "\n".join(output.splitlines()[-25:])
            raise Failure(f"{' '.join(command)} ended with status {process.returncode}:\n{end}")
        return output
