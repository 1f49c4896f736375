"""Commands as users type them, given to the parsers of the programs that they start.

Data, models and hosts that a command names need not exist, and nothing is trained: launchers are
followed to the program that they start, whose own parser has to accept the whole line.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

from parallel.launch.options import parse
from runtime import options
from tests.support.launch import ROOT
from training.config import faces, images

PROGRAMS = {"train.py": faces, "classify.py": images}
# The program that a script starts on every rank, with the arguments of the script after its own.
_STARTED = dict.fromkeys(("run.sh", "config.sh", "setup-utils/slurm.sh", "train.py"), "train.py")
_STARTED["classify.py"] = "classify.py"
_VARIABLES_IN = (
    *("config.sh", "run.sh", "setup-utils/launchers/prepare.sh", "setup-utils/install.sh"),
    "runtime/environment.py",
)
_PASSED_ON = ("NCCL_", "HOROVOD_", "OMPI_MCA_", "PYTORCH", "CUDA_VISIBLE_DEVICES")
# Options of launchers and the number of their values.
_LAUNCHERS = {
    "mpirun": {"-np": 1, "-H": 1, "-bind-to": 1, "-map-by": 1, "-mca": 2, "-x": 1, "-hostfile": 1},
    "horovodrun": {
        **dict.fromkeys(("-np", "-H", "--hostfile", "--output-filename", "-p", "-i"), 1),
        **dict.fromkeys(("--network-interface", "--config-file", "--timeline-filename"), 1),
        **dict.fromkeys(("--gloo", "--mpi", "--check", "--verbose"), 0),
    },
}

# Runs a module up to the point at which its own parser has understood the command line.
_ONLY_PARSE = """\
import argparse, os, runpy, sys
parse_args = argparse.ArgumentParser.parse_args
def only(*arguments, **options):
    parse_args(*arguments, **options)
    os.write(1, b"understood")
    os._exit(0)
argparse.ArgumentParser.parse_args = only
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def check(command: str, folder: Path) -> None:
    """Fail unless the programs that a command of one line starts accept it.

    The folder, which is empty, gets the file of a ``PREFIX,EPOCH``.
    """
    words = _without_variables(shlex.split(re.sub(r" >\S+$", "", command)))
    program, *rest = Path(words[0]).name, *words[1:]
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for word in rest:
            name, is_variable, _ = word.partition("=")
            pattern = rf"\b{name}\b" if is_variable else rf"^{name}:"
            assert re.search(pattern, makefile, re.MULTILINE), word
    elif program in _LAUNCHERS:
        given = {}
        while rest and rest[0].startswith("-"):
            count = 1 + _LAUNCHERS[program][rest[0]]
            given[rest[0]] = rest[count - 1]
            del rest[:count]
        slots = [int(host.partition(":")[2] or 1) for host in given.get("-H", "").split(",")]
        assert "-H" not in given or sum(slots) == int(given["-np"]), given
        if "--check" not in given:
            _check_program(rest, folder)
    elif program in ("bash", "python"):
        _check_program(words, folder)
    else:
        # A program of others starts it, such as a container or a task of Slurm.
        if found := re.search(r"bash (setup-utils/slurm\.sh|run\.sh)(.*)", " ".join(words)):
            _check_program(["bash", found[1], *found[2].split()], folder)


@lru_cache(maxsize=None)
def names_of(program: str) -> frozenset[str]:
    config = PROGRAMS[program].resolve({"dataset": "synthetic"})
    return frozenset(map(options.option, [*options.values(config), "config"]))


def accept(program: str, words: Sequence[str], folder: Path) -> None:
    """Parse a command line of train.py or classify.py; see ``check``."""
    (folder / "m-0000.params").touch()
    line = [f"{folder}/m,0" if word == "PREFIX,EPOCH" else word for word in words]
    if program == "train.py":
        data = [] if {"--dataset", "--rec"} & set(line) else ["--rec", "."]
        classes = [] if "--dataset" in line else ["--num-classes", "99"]
        faces.parse([*data, *classes, *line, "--dry-run"])
        return
    sets = {"--data-dir": "cifar10", "--rec-train": "imagenet"}
    if "--dataset" not in line:
        line += ["--dataset", next((sets[word] for word in line if word in sets), "synthetic")]
    if "synthetic" not in line and not {*sets} & {*line}:
        line += ["--data-dir", "d"]
    with mock.patch.object(images, "check"):
        images.parse(line)


def _without_variables(words: list[str]) -> list[str]:
    """The words after ``NAME=value``, which scripts, the environment's table or others know."""
    known = "".join((ROOT / name).read_text(encoding="utf-8") for name in _VARIABLES_IN)
    while re.match(r"[A-Z][A-Z_0-9a-z]*=", words[0]):
        name = words.pop(0).partition("=")[0]
        assert name.startswith(_PASSED_ON) or re.search(rf"\b{name}\b", known), name
    return words


def _check_program(words: list[str], folder: Path) -> None:
    """Check ``python -m MODULE ...``, ``python PROGRAM ...`` or ``bash SCRIPT ...``."""
    _, name, *arguments = words
    if name == "-m":
        module, *arguments = arguments
        if module in ("parallel.launch", "parallel.autogroup"):
            _check_program(list(parse(module, "", arguments).command), folder)
        elif module == "tests.hosts":
            _check_program(arguments, folder)
        elif module == "pytest":
            assert all((ROOT / word).exists() for word in arguments if not word.startswith("-"))
        else:
            assert understood(module, *arguments), module
        return
    assert (ROOT / name).is_file(), name
    if name not in _STARTED:
        # A script of its own, which takes its choices from variables.
        assert not arguments, name
        return
    while name == "run.sh" and arguments[:1] == ["--restarts"]:
        assert arguments[1].isdecimal()
        del arguments[:2]
    if arguments != ["--help"]:
        accept(_STARTED[name], arguments, folder)


@lru_cache(maxsize=None)
def understood(module: str, *arguments: str) -> bool:
    """True if a module takes a command line; one without a command line may have no arguments."""
    line = [sys.executable, "-c", _ONLY_PARSE, module, *arguments]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.endswith("understood") or not arguments


def replaced(config: Any, **changes: Any) -> Any:
    """A configuration with other values, by the names of the fields of its groups."""
    return options.compose(type(config), {**options.values(config), **changes})
