"""A project folder in which the set-up scripts meet stubs instead of real programs.

Each is a small shell script that notes its call in ``calls`` and answers as the program would.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import pytest

from tests.support.launch import ROOT, write_program

_SYSTEM_TOOLS = (
    "awk bash cat cp cut dirname env getent grep hostname ln ls mkdir mktemp mv paste readlink rm "
    "sed sha256sum tail timeout touch tr"
).split()
# Begins each stub of Python: mpirun's own program is the real one.
_REAL_PYTHON = f'[[ ${{1-}} != */mpirun.py ]] || exec {shlex.quote(sys.executable)} "$@"\n'
_PYTHON = """\
echo "python $*" >>"$CALLS"
case "$*" in
    *ensurepip*) [[ -z $STUB_UNSUPPORTED ]] && echo 3.11.7 ;;
    "-m venv"*)
        made=${@: -1}
        rm -rf "$made" && mkdir -p "$made/bin"
        for name in python mpirun orterun mpicxx; do
            cp "$STUBS/$name" "$made/bin"
        done ;;
    *"check_libraries.py horovod") [[ -e ${0%/*}/horovodrun ]] && "$STUBS/horovodrun" ;;
    *horovodrun.py*) "$STUBS/horovodrun" ;;
    *runtime.processors) echo 3 ;;
    *"check_libraries.py mxnet "*) ${STUB_CHECK-true} "${@: -3}" ;;
    *"pip wheel"*horovod.lock)
        cp "${@: -1}" "$CALLS.lock"
        if [[ -n $STUB_BROKEN_BUILD ]]; then
            printf '%s\\n' "$STUB_BROKEN_BUILD" "note: this is no problem with pip"
            exit 1
        fi
        echo "build $0 $MAKEFLAGS ${HOROVOD_CMAKE-} $TMPDIR" >>"$CALLS"
        env -0 >"$CALLS.build"
        ${HOROVOD_CMAKE-true} -S .
        touch "$TMPDIR/horovod-0.28.1.whl" ;;
    *"pip install"*horovod-0.28.1.whl)
        cp --remove-destination "$STUBS/horovodrun" "$(dirname "$0")" ;;
esac
"""
_HOROVODRUN = 'printf "    [X] %s\\n" MXNet MPI NCCL; echo "    [${STUB_GLOO-X}] Gloo"\n'
_MPIRUN = """\
echo "mpirun $*" >>"$CALLS"
[[ $* != *--version ]] || echo "mpirun (Open MPI) ${STUB_MPI:-4.1.8}"
"""


def loaded(name: str) -> ModuleType:
    """Return a program of setup-utils as a module."""
    module = ModuleType(name)
    module.__file__ = str(ROOT / f"setup-utils/{name}.py")
    SourceFileLoader(name, module.__file__).exec_module(module)
    return module


class Sandbox:
    """A copy of the scripts, with a PATH of stubs and simple tools; ``system`` replaces /usr."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder / "project", folder / "project/.venv/bin"
        self.stubs, self.system = folder / "stubs", folder / "the system"
        self.calls_file = folder / "calls"
        self.stubs.mkdir()
        for copied in ("setup-utils", "parallel", "runtime"):
            shutil.copytree(ROOT / copied, self.folder / copied)
        for pattern in ("*.sh", "requirements*", "constraints*"):
            for file in ROOT.glob(pattern):
                shutil.copy(file, self.folder)
        cuda = self.folder / "setup-utils/cuda.sh"
        # This machine may have CUDA.
        cuda.write_text(cuda.read_text().replace("\nsystem=/usr\n", f"\nsystem='{self.system}'\n"))
        for tool in _SYSTEM_TOOLS:
            if found := shutil.which(tool):
                (self.stubs / tool).symlink_to(found)
        self.stub("c++ make mpicxx ssh", "")
        self.stub("cmake", 'echo "cmake $*" >>"$CALLS"\n')
        self.stub("python python3", _PYTHON)
        self.stub("horovodrun", _HOROVODRUN)
        self.stub("mpirun orterun", _MPIRUN)

    def stub(self, names: str, script: str) -> None:
        for name in names.split():
            write_program(self.stubs / name, _REAL_PYTHON * (name == "python") + script)

    def run(self, *words: str, status: Optional[int] = 0, **variables: object):
        """Run a script in the project folder, with nothing but these variables."""
        self.calls_file.write_text("")
        given = {"PATH": self.stubs, "STUBS": self.stubs, "CALLS": self.calls_file, **variables}
        given.setdefault("HOME", os.environ.get("HOME", "/"))
        done = subprocess.run(
            ["bash", *words], env={name: str(value) for name, value in given.items()},
            cwd=self.folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert status in (None, done.returncode), done.stderr
        return done

    def install(self, *words: str, **variables: Any) -> str:
        return self.run("setup-utils/install.sh", *words, **variables).stdout

    def refusal(self, *words: str, **variables: Any) -> str:
        """Run a script, by default the installer, that ends with one line; returns the line."""
        said = self.run(*words or ["setup-utils/install.sh"], status=2, **variables).stderr
        assert said.startswith("error: ") and said.count("\n") == 1, said
        return said.rstrip("\n")

    @property
    def calls(self) -> str:
        """Return the calls of the stubs during the last command, one per line."""
        return self.calls_file.read_text()

    def calls_with(self, word: str) -> list[str]:
        return [line for line in self.calls.splitlines() if word in line]

    def build_settings(self) -> dict[str, str]:
        """Return the environment of the last build of Horovod."""
        variables = Path(f"{self.calls_file}.build").read_text().split("\0")
        return {name: value for name, _, value in (text.partition("=") for text in variables)}


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)
