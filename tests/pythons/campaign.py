"""Runs the README's first command with every supported Python of the machine, from a clean copy.

    make pythons                              each Python, in one of the places
    make pythons ONLY=3.9,3.12 PLACE=space    these, in this place

Compiled packages and installers differ between Pythons: what works with one can crash with another.
A copy of this checkout in a temporary folder gets its own environment; two ranks train for some
updates, and one process imports every module. With another Python than this one, by which `make
test` runs all tests, those of ``TIER`` run: what depends on the version of Python, and needs no
launcher. Each Python is tried in another place that users have: a folder with a space and a letter
beyond ASCII in its name, a user without root, a home that cannot be written, and nothing special.
Pythons that are not found are named.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.9", "3.10", "3.11", "3.12")
# In the order in which Pythons are dealt out: not every Python can be run by every user.
PLACES = {
    "user": "as a user without root",
    "space": "in a folder with a space and a non-ASCII letter",
    "home": "with a home that cannot be written",
    "plain": "in a plain folder",
}
# Options, files and what may be in them, records, checkpoints, heads, launchers: a minute or two.
TIER = (
    *("tests/runtime", "tests/data", "tests/training/config", "tests/training/checkpoint"),
    *("tests/partial_fc/rows", "tests/partial_fc/test_head.py", "tests/setup"),
)
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
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.pythons")
    parser.add_argument("--only", default=",".join(VERSIONS), metavar="3.9,3.10")
    parser.add_argument("--place", choices=PLACES, help="of all Pythons; without it each another")
    options = parser.parse_args(argv)
    versions = options.only.split(",")
    if not set(versions) <= set(VERSIONS):
        parser.error(f"--only {options.only} is not a list of {', '.join(VERSIONS)}")
    is_root = os.geteuid() == 0
    places = [options.place] if options.place else list(PLACES)
    trials: list[Trial] = []
    if not options.place and not any(map(_of_nobody, versions)):
        print(f"{PLACES['user']}: {'no Python that could be run' if is_root else 'all of them'}")
        places = places[1:]
    for version in sorted(versions, key=lambda one: not _of_nobody(one)):
        place = places[min(len(trials), len(places) - 1)]
        user = _NOBODY if place == "user" and is_root else None
        found = candidates(version, user)
        if found:
            trials.append(Trial(version, found[0], place))
        else:
            print(f"Python {version}: not found on the PATH or among pyenv's, hence not tried")
    failed = [trial for trial in trials if not _succeeds(trial)]
    print(f"pythons: {len(trials) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not trials else 0


def _of_nobody(version: str) -> bool:
    return os.geteuid() == 0 and bool(candidates(version, _NOBODY))


def candidates(version: str, user: Optional[int] = None) -> list[str]:
    """The Pythons of a version that can make environments: on the PATH, then those of pyenv."""
    folders = [Path(folder) for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders += sorted((pyenv / "versions").glob(f"{version}.*/bin"))
    paths = (folder / f"python{version}" for folder in folders if ROOT not in folder.parents)
    usable = (str(path) for path in paths if path.is_file() and _is_usable(path, version, user))
    return list(dict.fromkeys(usable))


def _is_usable(python: Path, version: str, user: Optional[int]) -> bool:
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [python, "-c", code], cwd="/", user=user, capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


def _succeeds(trial: Trial) -> bool:
    start = time.monotonic()
    print(f"Python {trial.version}, {PLACES[trial.place]}: {trial.python}", flush=True)
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
    """Install, train and import in a copy of this checkout; returns what came out."""
    project = folder / ("my pröject" if trial.place == "space" else "project")
    _copy(project)
    home, user = folder / "home", None
    variables = {key: value for key, value in os.environ.items() if key not in _NOT_OURS}
    path = (place for place in os.get_exec_path() if ROOT not in Path(place).parents)
    variables.update(PATH=os.pathsep.join(path), PYTHON=trial.python, MAX_UPDATE=str(_UPDATES))
    if trial.place == "home":
        home.write_text("a file, in which not even root can make a folder\n")
        variables["HOME"] = str(home)
    elif trial.place == "user" and os.geteuid() == 0:
        user, variables["HOME"] = _NOBODY, str(home)
        home.mkdir()
        folder.chmod(0o755)
        for each in (home, project, *project.rglob("*")):
            os.chown(each, _NOBODY, _NOBODY)
    learned = _LEARNED.search(_output_of(project, variables, user, "make", "train"))
    if not learned:
        raise Failure("make train has not printed the accuracy on unseen identities")
    report = f"accuracy {learned[1]} -> {learned[2]} after {_UPDATES} updates"
    if trial.place == "space":
        words = "horovodrun -np 2 -H localhost:2 bash config.sh --max-update 2 --models-root other"
        line = f"source .venv/bin/activate && {words}"
        _output_of(project, variables, user, "bash", "-c", line)
        report += ", with horovodrun too"
    python = (".venv/bin/python", "-m")
    if trial.version != "{}.{}".format(*sys.version_info):
        _output_of(project, variables, user, "bash", "setup-utils/install.sh", "--dev")
        # -k knows marks, too. Another user has no part in the usual folders.
        words = "-q -x -p no:cacheprovider --basetemp=.venv/files -k 'not launcher' "
        words += "--ignore=tests/runtime/untrusted"
        line = f"source .venv/bin/activate && python -m pytest {words} {' '.join(TIER)}"
        own = {**variables, "HOME": str(project / ".venv")}
        output = _output_of(project, own, user, "bash", "-c", line)
        report += f"; {output.splitlines()[-1]}"
    imported = _output_of(project, variables, user, *python, "tests.pythons.modules")
    return f"{report}; {imported.splitlines()[-1]}"


def _copy(project: Path) -> None:
    """Lay the files of this checkout, as they are now, into a folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, project / name)


def _output_of(
    folder: Path, variables: Mapping[str, str], user: Optional[int], *command: str
) -> str:
    """Run a command to its end, as this user or another; returns what it printed."""
    process = subprocess.Popen(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="backslashreplace", start_new_session=True,
        user=user, group=user, extra_groups=None if user is None else [],
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
