"""Commands as users type them, given to the parsers of the programs that they start.

Data, models and hosts that a command names need not exist, and nothing is trained: launchers are
followed to the program that they start, whose own parser has to accept the whole line.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from parallel.launch.launcher import add_options, parse
from runtime import command_line, options
from runtime.command_line import Parser
from training.config import faces, images

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"train.py": faces, "classify.py": images}
# The program that a script starts on every rank, with the arguments of the script behind its own.
_STARTED = {
    **{name: "train.py" for name in ("run.sh", "config.sh", "setup-utils/slurm.sh", "train.py")},
    "classify.py": "classify.py",
}
_RUN_SH = {"--restarts"}
_VARIABLES_IN = (
    *("config.sh", "run.sh", "setup-utils/launchers/prepare.sh", "setup-utils/install.sh"),
    "runtime/environment.py",
)
_PASSED_ON = ("NCCL_", "HOROVOD_", "OMPI_MCA_", "PYTORCH", "CUDA_VISIBLE_DEVICES")
_MODULES_WITH_A_COMMAND = ("parallel.launch", "parallel.autogroup")
_MPIRUN = {"-np": 1, "-H": 1, "-bind-to": 1, "-map-by": 1, "-mca": 2, "-x": 1, "-hostfile": 1}


def check(command: str, folder: Path) -> None:
    """Fail unless the programs that a command starts accept it.

    Args:
        command: as it is typed, in one line.
        folder: empty; for the file of a ``PREFIX,EPOCH``.
    """
    command = re.sub(r" >\S+$", "", command)
    words = _without_variables(shlex.split(command))
    program = Path(words[0]).name
    if program == "make":
        _check_make(words[1:])
    elif program == "horovodrun":
        _check_horovodrun(words, folder)
    elif program == "mpirun":
        _check_mpirun(words, folder)
    elif program in ("bash", "python"):
        _check_program(words, folder)
    else:
        _check_inside(words, folder)


def names_of(program: str) -> frozenset[str]:
    """The options of train.py or classify.py."""
    return _names_of(program)


@lru_cache(maxsize=None)
def _names_of(program: str) -> frozenset[str]:
    config = PROGRAMS[program].resolve({"dataset": "synthetic"})
    return frozenset(map(options.option, [*options.values(config), "config"]))


def launch_parser() -> Parser:
    """The options of parallel.launch and parallel.autogroup."""
    parser = Parser()
    add_options(parser)
    for name in ("--groups", "--data-sharding", "--server-hosts"):
        parser.add_argument(name)
    return parser


def accept(program: str, words: Sequence[str], folder: Path) -> None:
    """Parse a command line of train.py or classify.py.

    Data need not exist, nor the servers of a ``--kv-store``.
    """
    (folder / "m-0000.params").touch()
    line = [f"{folder}/m,0" if word == "PREFIX,EPOCH" else word for word in words]
    if program == "train.py":
        data = [] if {"--dataset", "--rec"} & set(line) else ["--rec", "."]
        classes = [] if "--dataset" in line else ["--num-classes", "99"]
        faces.parse([*data, *classes, *line, "--dry-run"])
        return
    if "--dataset" not in line:
        sets = {"--data-dir": "cifar10", "--rec-train": "imagenet"}
        name = next((sets[word] for word in line if word in sets), "synthetic")
        line += ["--dataset", name]
    if "synthetic" not in line and not {"--data-dir", "--rec-train"} & set(line):
        line += ["--data-dir", "d"]
    unchecked = dataclasses.replace(images._PROGRAM, check=lambda config: None)
    command_line.parse(unchecked, line)


def _without_variables(words: list[str]) -> list[str]:
    """The words behind ``NAME=value``, which scripts, the environment's table or others know."""
    known = "".join((ROOT / name).read_text(encoding="utf-8") for name in _VARIABLES_IN)
    while re.match(r"[A-Z][A-Z_0-9a-z]*=", words[0]):
        name = words.pop(0).partition("=")[0]
        assert name.startswith(_PASSED_ON) or re.search(rf"\b{name}\b", known), name
    return words


def _check_make(words: Sequence[str]) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        name, is_variable, _ = word.partition("=")
        pattern = rf"\b{name}\b" if is_variable else rf"^{name}:"
        assert re.search(pattern, text, re.MULTILINE), word


_PRINT_WHAT_IT_STARTS = """
import runpy, sys
arguments = runpy.run_module("horovod.runner.launch")["parse_args"]()
sys.stdout.write("\\0".join([str(arguments.num_proc), arguments.hosts or "", *arguments.command]))
"""


def _check_horovodrun(words: list[str], folder: Path) -> None:
    """By Horovod's own parser, which looks for its options in the command, too."""
    if words[1:] in (["--check"], ["--check", "--verbose"]):
        return
    line = [sys.executable, "-c", _PRINT_WHAT_IT_STARTS, *words[1:]]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    ranks, hosts, *command = done.stdout.splitlines()[-1].split("\0")
    if hosts:
        slots = sum(int(host.partition(":")[2] or 1) for host in hosts.split(","))
        assert slots == int(ranks), f"{hosts} for {ranks} ranks"
    assert command and shlex.join(words).endswith(shlex.join(command))
    _check_program(command, folder)


def _check_mpirun(words: list[str], folder: Path) -> None:
    rest = words[1:]
    while rest[0].startswith("-"):
        del rest[: 1 + _MPIRUN[rest[0]]]
    _check_program(rest, folder)


def _check_program(words: list[str], folder: Path) -> None:
    """Check ``python -m MODULE ...``, ``python PROGRAM ...`` or ``bash SCRIPT ...``."""
    if words[:2] == ["python", "-m"]:
        _check_module(words[2:], folder)
        return
    name = words[1]
    assert (ROOT / name).is_file(), name
    arguments = words[2:]
    if name not in _STARTED:
        # A script of its own, which takes its choices from variables.
        assert not arguments, name
        return
    if name == "run.sh":
        while arguments and arguments[0] in _RUN_SH:
            assert arguments[1].isdecimal()
            del arguments[:2]
    if arguments == ["--help"]:
        return
    accept(_STARTED[name], arguments, folder)


def _check_module(words: list[str], folder: Path) -> None:
    module, arguments = words[0], words[1:]
    if module in _MODULES_WITH_A_COMMAND:
        _check_program(parse(launch_parser(), arguments)["command"], folder)
        return
    if module == "tests.hosts":
        _check_program(arguments, folder)
        return
    if module == "pytest":
        assert all((ROOT / word).exists() for word in arguments if not word.startswith("-"))
        return
    assert understood(module, *arguments), module


@lru_cache(maxsize=None)
def understood(module: str, *arguments: str) -> bool:
    """Whether a module takes a command line; one without a command line may have no arguments."""
    line = [sys.executable, "-m", "tests.support.only_parse", module, *arguments]
    done = subprocess.run(
        line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.endswith("understood\n") or not arguments


def _check_inside(words: Sequence[str], folder: Path) -> None:
    """Check the command that a program of others starts: a container or a task of Slurm."""
    whole = " ".join(words)
    for script in ("setup-utils/slurm.sh", "run.sh"):
        before, found, behind = whole.partition(f"bash {script}")
        if found:
            _check_program(["bash", script, *behind.split()], folder)
            return
