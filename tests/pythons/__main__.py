"""Runs the README's first command with every supported Python of the machine, from a clean copy.

    make pythons ONLY=3.9,3.12

A copy of this checkout gets its own environment, in a folder with a space and a letter beyond ASCII
in its name, with a home that cannot be written. There `make train` and two ranks under horovodrun
train for some updates, and one process imports every module. With another Python than this one, by
which `make test` runs all tests, those of ``TIER`` run: what depends on the version, and needs no
launcher.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from runtime.errors import run_stoppable

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = "runtime data backbones evaluation parallel partial_fc training benchmarks".split()
VERSIONS = ("3.9", "3.10", "3.11", "3.12")
# Options, files and what may be in them, records, checkpoints, launchers: a minute.
TIER = (
    *("tests/runtime", "tests/data", "tests/training/config", "tests/setup"),
    "tests/training/checkpoint/test_files.py",
)
_UPDATES = 5
_LIMIT_SECONDS = 1800
# What an outer make, and the environment that this process runs in, leave.
_NOT_OURS = ("VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON", "PYTHONPATH", "NP")
_LEARNED = re.compile(r"verification unseen: accuracy untrained ([\d.]+), trained ([\d.]+)")


class Failure(Exception):
    """A step of a trial that failed; the message is the end of its output."""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Try the Pythons one after the other; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.pythons")
    parser.add_argument("--only", default=",".join(VERSIONS), metavar="3.9,3.10")
    parser.add_argument("--import-all", action="store_true", help="only import, with this Python")
    options = parser.parse_args(argv)
    if options.import_all:
        return import_all()
    versions = options.only.split(",")
    if not set(versions) <= set(VERSIONS):
        parser.error(f"--only {','.join(versions)} is not a list of {', '.join(VERSIONS)}")
    passed = tried = 0
    for version in versions:
        if python := find(version):
            tried += 1
            passed += _succeeds(version, python)
        else:
            print(f"Python {version}: not found on the PATH or among pyenv's, hence not tried")
    print(f"pythons: {passed} passed, {tried - passed} failed")
    return 0 if tried and passed == tried else 1


def import_all() -> int:
    """Import the product and benchmarks in this process, and compare the packages with the pins.

    The compiled libraries that all of them bring (MXNet's, Horovod's, OpenCV's, LLVM's,
    protobuf's) have to bear each other.
    """
    # It needs packages. The trials themselves run with a Python that has none.
    from tests.support import pins

    # The last ones are what only functions import.
    names = ["train", "classify", "horovod.mxnet", "mxboard", "sklearn.cluster"]
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names += [name.removesuffix(".__init__")] if "pytorch" not in name else []
    for name in names:
        importlib.import_module(name)
    wrong = pins.unpinned()
    for package in wrong:
        print(f"not pinned: {package}")
    print(f"{len(names)} modules imported, {len(wrong)} packages that are not pinned")
    return 1 if wrong else 0


def find(version: str) -> Optional[str]:
    """Return a Python that can make environments: on the PATH, or else one of pyenv."""
    folders = [Path(folder) for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders += sorted((pyenv / "versions").glob(f"{version}.*/bin"))
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for path in (folder / f"python{version}" for folder in folders if ROOT not in folder.parents):
        if path.is_file():
            command = [str(path), "-c", code]
            answer = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
            if answer.stdout.strip() == version:
                return str(path)
    return None


def _succeeds(version: str, python: str) -> bool:
    start = time.monotonic()
    print(f"Python {version}: {python}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"python-{version}-"))
    try:
        report = run(version, python, folder)
    except Failure as failure:
        print(f"Python {version}: FAILED in {folder}\n{failure}", flush=True)
        return False
    print(f"Python {version}: {report}; {time.monotonic() - start:.0f} s", flush=True)
    shutil.rmtree(folder)
    return True


def run(version: str, python: str, folder: Path) -> str:
    """Install, train, test and import in a copy of this checkout; return what came out."""
    project, home = folder / "my pröject", folder / "home"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, project / name)
    home.write_text("a file, in which not even root can make a folder\n")
    variables = {key: value for key, value in os.environ.items() if key not in _NOT_OURS}
    path = (place for place in os.get_exec_path() if ROOT not in Path(place).parents)
    variables.update(PATH=os.pathsep.join(path), PYTHON=python, MAX_UPDATE=str(_UPDATES))
    variables["HOME"] = str(home)

    def output_of(command: str, **more: str) -> str:
        return _output_of(project, {**variables, **more}, f"source .venv/bin/activate && {command}")

    said = []
    if version != "{}.{}".format(*sys.version_info):
        _output_of(project, variables, "bash setup-utils/install.sh --dev")
        # -k knows marks, too.
        words = f"-q -x -p no:cacheprovider -k 'not launcher and not untrusted' {' '.join(TIER)}"
        tested = output_of(f"python -m pytest {words}", HOME=str(project / ".venv"))
        said += tested.splitlines()[-1:]
    drawn = ROOT / "datasets" / "synthetic"
    if drawn.is_dir():
        # Drawing them takes half a minute; tests/data/drawn has drawn some with this Python.
        shutil.copytree(drawn, project / "datasets" / "synthetic")
    # One rank, since two would compile the same kernels at the same time; horovodrun starts two.
    learned = _LEARNED.search(_output_of(project, {**variables, "NP": "1"}, "make train"))
    if not learned:
        raise Failure("make train has not printed the accuracy on unseen identities")
    said.append(f"accuracy {learned[1]} -> {learned[2]} after {_UPDATES} updates")
    # With made-up images, since real ones have been trained on and verified.
    made_up = "--dataset 100w --num-classes 1000 --network tiny --batch-size 8 --max-update 2"
    output_of(f"horovodrun -np 2 -H localhost:2 bash config.sh {made_up} --models-root other")
    return "; ".join([*said, output_of("python -m tests.pythons --import-all").splitlines()[-1]])


def _output_of(folder: Path, variables: dict[str, str], command: str) -> str:
    """Run a command to its end; return what it printed."""
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="backslashreplace",
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=_LIMIT_SECONDS)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failure(f"{command} did not end within {_LIMIT_SECONDS} s") from None
            raise
    if process.returncode:
        end = "\n".join(output.splitlines()[-25:])
        raise Failure(f"{command} ended with status {process.returncode}:\n{end}")
    return output


if __name__ == "__main__":
    run_stoppable(main)
