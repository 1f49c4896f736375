"""Changes the product at random places, which its tests must detect.

    python -m tests.mutants --count 200 --seed 1,2,3
    python -m tests.mutants --count 50 --only data,training/log/run_log.py

Every mutant is one change at one place (``sites``), made in its own copy of the project. The tests
of the file (``selection``) run there until one fails, and then those of the files that use it, in a
fork of a process that has imported the libraries (``worker``). A mutant is killed if they fail,
crash or hang. They first run without a change: one that fails by itself would kill every mutant.

Changed code may remove any folder, or send a signal to any process. Where the system permits it
(namespaces of processes and mounts), mutants see only their own processes and write only to their
own folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Optional

from tests.mutants.selection import Selection
from tests.mutants.sites import Mutant, Site, choose, find

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("partial_fc", "training", "parallel", "data", "backbones", "runtime")
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__")
# All tests of a file may take so many times what they took without the change, and some more.
_TIMES, _MORE_SECONDS = 4, 60.0
# The first process to see a tree compiles everything; later ones the kernels that have changed.
_BASELINE_SECONDS, _COMPILE_SECONDS = 1200.0, 60.0
# A mutant that hangs is killed after this, which no test reaches on a busy machine.
_TEST_SECONDS = 15.0
_ENOUGH = 0.85
_PROCESSES = 2


class Outcome(NamedTuple):
    """The result of a mutant."""

    text: str
    how: str
    """ "failed", "died" and "hung" are detected, "passed" and "no test" not."""
    by: str = ""
    """The tests that failed."""

    @property
    def is_killed(self) -> bool:
        return self.how not in ("passed", "no test")


def _start_worker(prefix: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """Start a process that runs tests, one job at a time, and can write to one folder only."""
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder), "TMPDIR": str(folder),
        "PYTHONPATH": "", "PYTHONHASHSEED": "0",
    }  # fmt: skip
    # The system kills it when this process ends.
    words = ["setpriv", "--pdeathsig", "KILL", *prefix]
    with (folder / "workers").open("a") as errors:
        return subprocess.Popen(
            [*words, sys.executable, "-m", "tests.mutants.worker"],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=errors, text=True,
        )  # fmt: skip


def _isolation(folder: Path) -> list[str]:
    """Return words before a command that let it write to a folder alone, if there are any."""
    script = (
        'mount --bind "$1" "$1" && mount -o remount,ro,bind / && '
        'mount --bind "$2" "$2" && mount -o remount,ro,bind "$2" && shift 2 && exec "$@"'
    )
    inside = ["sh", "-c", script, "sh", str(folder), str(ROOT)]
    spaces = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
    for command in ([*spaces, *inside], [*spaces, "--user", "--map-root-user", *inside]):
        with suppress(OSError):
            if subprocess.run([*command, "true"], capture_output=True, cwd=folder).returncode == 0:
                return command
    return []


@contextmanager
def _temporary_folder(parent: Optional[Path] = None) -> Iterator[Path]:
    """A folder that may still be written to while it is removed."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def all_sites(root: Path, folders: Iterable[str], only: Sequence[str] = ("",)) -> list[Site]:
    """Return the places in the files of the folders whose paths begin with one of ``only``."""
    files = (path for folder in folders for path in (root / folder).rglob("*.py"))
    paths = sorted(path.relative_to(root).as_posix() for path in files)
    chosen = (path for path in paths if path.startswith(tuple(only)))
    return [site for path in chosen for site in find(path, (root / path).read_bytes())]


class Campaign:
    """A copy of a project, and the tests that have been seen passing in it."""

    def __init__(
        self, root: Path, folder: Path, folders: Sequence[str], test_seconds: float = _TEST_SECONDS
    ) -> None:
        self._folder, self._test_seconds = folder, test_seconds
        self._tree = folder / "tree"
        shutil.copytree(root, self._tree, ignore=_NOT_COPIED, symlinks=True)
        self._selection = Selection(self._tree, folders)
        prefix = _isolation(folder)
        self.is_isolated = bool(prefix)
        self._free: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        for _ in range(_PROCESSES):
            self._free.put(_start_worker(prefix, folder))
        self._pool = ThreadPoolExecutor(_PROCESSES)
        self._durations: dict[str, float] = {}
        self._passing: set[str] = set()

    def close(self) -> None:
        """End the workers, all of which are free once the pool is shut down."""
        self._pool.shutdown(cancel_futures=True)
        while not self._free.empty():
            # Closes its input, and waits.
            with self._free.get():
                pass

    def check(self, mutants: Sequence[Mutant]) -> list[str]:
        """Run the tests of all mutants without a change; return those that fail, twice."""
        paths = {one.site.path for one in mutants}
        groups = (group for path in paths for group in self._selection.tests_of(path))
        tests = set(chain.from_iterable(groups))
        found = self._pool.map(self._check, sorted(tests - self._passing))
        failed = list(chain.from_iterable(found))
        if not failed:
            self._passing |= tests
        return failed

    def _check(self, test: str) -> list[str]:
        """Run a test module, and again if something fails, because the machine may be busy."""
        for _ in range(2):
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            result = self._work(self._tree, folder, [test], _BASELINE_SECONDS)
            self._durations.update(result["durations"])
            if result["status"] == "passed":
                shutil.rmtree(folder, ignore_errors=True)
                return []
        return result["failed"] or [f"{test}: {result['status']}, see {folder}/output"]

    def _work(
        self, root: Path, folder: Path, tests: list[str], seconds: float, compiling: float = 0.0
    ) -> dict[str, Any]:
        job = {
            "root": str(root), "folder": str(folder), "tests": tests, "seconds": seconds,
            "is_changed": root != self._tree, "durations": dict(self._durations),
            "test_seconds": self._test_seconds + compiling,
        }  # fmt: skip
        process = self._free.get()
        try:
            print(json.dumps(job), file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, f"a worker has ended, see {self._folder}/workers"
            return dict(json.loads(answer))
        finally:
            self._free.put(process)

    def run(self, mutants: Iterable[Mutant]) -> Iterable[Outcome]:
        """Yield what becomes of the mutants, in their order."""
        return self._pool.map(self._run, mutants)

    def _run(self, mutant: Mutant) -> Outcome:
        path = mutant.site.path
        text = mutant.describe((self._tree / path).read_bytes())
        outcome = Outcome(text, "no test")
        for tests in filter(None, self._selection.tests_of(path)):
            with _temporary_folder(self._folder) as folder:
                compiling = _COMPILE_SECONDS if self._make(mutant, folder / "tree") else 0.0
                known = self._durations.items()
                usual = sum(seconds for test, seconds in known if test.split("::")[0] in tests)
                most = _TIMES * usual + _MORE_SECONDS + compiling
                result = self._work(folder / "tree", folder, tests, most, compiling)
            outcome = Outcome(text, result["status"], ", ".join(result["failed"]))
            if outcome.is_killed:
                break
        return outcome

    def _make(self, mutant: Mutant, tree: Path) -> bool:
        """Write a mutant's tree; return True if kernels have to be compiled for it."""
        shutil.copytree(self._tree, tree, symlinks=True)
        path = tree / mutant.site.path
        # What was compiled is known by time and size of the source: never by those of the original.
        later = path.stat().st_mtime_ns + 10**10
        path.write_bytes(mutant.apply(path.read_bytes()))
        os.utime(path, ns=(later, later))
        kernels = self._selection.compiled_users(mutant.site.path)
        for file in (tree / user for user in kernels):
            for kept in (file.parent / "__pycache__").glob(f"{file.stem}.*.nb?"):
                kept.unlink()
        return bool(kernels)


def report(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Return the survivors and the share killed."""
    lines = sorted(f"survived: {one.text}" for one in outcomes if not one.is_killed)
    how = Counter(one.how for one in outcomes if one.is_killed)
    kinds = ", ".join(f"{number} {name}" for name, number in how.most_common())
    killed = f"killed {sum(how.values())} of {len(outcomes)}: {100 * _killed(outcomes):.1f} %"
    return "\n".join([*lines, f"{killed} ({kinds}), {seconds:.0f} s"])


def _killed(outcomes: Sequence[Outcome]) -> float:
    return sum(one.is_killed for one in outcomes) / max(1, len(outcomes))


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run campaigns; return 0 if each kills at least 85 %, 1 if not, 2 if tests fail anyway."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", default="1", metavar="SEED,SEED", help="one campaign with each")
    parser.add_argument("--only", default="", metavar="PATH,PATH", help="what paths begin with")
    options = parser.parse_args(argv)
    sites = all_sites(ROOT, FOLDERS, options.only.split(","))
    status = 0
    with _temporary_folder() as folder, closing(Campaign(ROOT, folder, FOLDERS)) as campaign:
        for seed in map(int, options.seed.split(",")):
            mutants = sorted(choose(sites, options.count, seed))
            print(f"seed {seed}: {len(mutants)} of {len(sites)} places", flush=True)
            status = max(status, _run(campaign, mutants))
    return status


def _run(campaign: Campaign, mutants: Sequence[Mutant]) -> int:
    if not campaign.is_isolated:
        print("no namespaces here: what a mutant does can reach other files and processes")
    began = time.monotonic()
    if failed := campaign.check(mutants):
        print("these tests fail without a change, so mutants cannot be judged by them:", *failed)
        return 2
    print(f"the tests pass without a change, {time.monotonic() - began:.0f} s", flush=True)
    outcomes = []
    for number, outcome in enumerate(campaign.run(mutants), 1):
        outcomes.append(outcome)
        result = outcome.how if outcome.is_killed else "SURVIVED"
        print(f"{number:4} {result:9} {outcome.text} {outcome.by}", flush=True)
    print(report(outcomes, time.monotonic() - began))
    return 0 if _killed(outcomes) >= _ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
