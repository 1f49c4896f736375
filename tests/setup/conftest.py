"""A project folder in which the set-up scripts meet stubs instead of real programs.

Each is a small shell script that notes its call in ``calls`` and answers as the program would.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = (
    *("setup-utils", "config.sh", "run.sh", "parallel", "runtime"),
    *("requirements.txt", "requirements-dev.txt", "requirements-docs.txt"),
    *("requirements.lock", "requirements-dev.lock", "requirements-docs.lock"),
    *("requirements-single.txt", "requirements-single.lock"),
    *("requirements-bench.txt", "constraints-bench.txt"),
)
SYSTEM_TOOLS = (
    "awk bash cat cp cut dirname env getent grep hostname ln ls mkdir mktemp mv paste readlink rm "
    "sed sha256sum tail timeout touch tr"
).split()

REAL = f"""\
#!/usr/bin/env bash
[[ ${{1-}} != */setup-utils/mpirun.py ]] || exec {shlex.quote(sys.executable)} "$@"
"""
"""Begins each stub of Python: mpirun's own program is the real one."""
PYTHON = """\
#!/usr/bin/env bash
echo "python $*" >>"$CALLS"
case "$*" in
    *ensurepip*) [[ -z $STUB_UNSUPPORTED ]] && echo 3.11.7 ;;
    "-m venv"*)
        made=${@: -1}
        rm -rf "$made" && mkdir -p "$made/bin"
        cp "$STUBS"/{python,mpirun,orterun,mpicxx} "$made/bin" ;;
    *horovodrun.py*) "$STUBS/horovodrun" ;;
    *runtime.processors) echo 3 ;;
    *check_mxnet.py*) ${STUB_CHECK-true} "${@: -2}" ;;
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
HOROVODRUN = """\
#!/usr/bin/env bash
echo "    [X] MXNet" "    [X] MPI" "    [X] NCCL" "    [${STUB_GLOO-X}] Gloo" | sed 's/    /\\n/g'
"""
MPIRUN = """\
#!/usr/bin/env bash
echo "mpirun $*" >>"$CALLS"
[[ $* != *"file /proc/self/fd/3"* ]] || echo "file $(paste -sd "|" </proc/self/fd/3)" >>"$CALLS"
[[ $* != *--version ]] || echo "mpirun (Open MPI) ${STUB_MPI:-4.1.8}"
"""
SILENT = "#!/usr/bin/env bash\n"
SETTINGS = """\
#!/usr/bin/env bash
echo "python $*" >>"$CALLS"
[[ $* != "-m runtime.environment" ]] || echo "export OMP_NUM_THREADS=7"
[[ $1 != */train.py ]] || echo "OMP_NUM_THREADS=$OMP_NUM_THREADS"
"""
"""A stub of Python that tells which variables a program gets."""
LAUNCHER = "setup-utils/launchers/mpirun"


def assert_one_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Assert that a command failed with a single line on stderr that has all the words."""
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    assert [word for word in words if word not in result.stderr] == [], result.stderr


class Sandbox:
    """A copy of the scripts, with a PATH on which there are only the stubs and simple tools.

    What the scripts expect in /usr, they look for in ``system``, which does not exist.
    """

    def __init__(self, folder: Path, name: str = "project") -> None:
        self.folder = folder / name
        self.stubs = folder / "stubs"
        self.calls_file = folder / "calls"
        self.system = folder / "the system"
        self.folder.mkdir()
        self.stubs.mkdir()
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, self.folder / name)
        cuda = self.folder / "setup-utils/cuda.sh"
        # This machine may have CUDA.
        cuda.write_text(cuda.read_text().replace("\nsystem=/usr\n", f"\nsystem='{self.system}'\n"))
        for tool in SYSTEM_TOOLS:
            if found := shutil.which(tool):
                (self.stubs / tool).symlink_to(found)
        for name in ("c++", "make", "mpicxx"):
            self.stub(name, SILENT)
        self.stub("cmake", '#!/usr/bin/env bash\necho "cmake $*" >>"$CALLS"\n')
        self.stub("python3", PYTHON)
        self.stub("python", PYTHON)
        self.stub("horovodrun", HOROVODRUN)
        for name in ("mpirun", "orterun"):
            self.stub(name, MPIRUN)
        self.stub("ssh", SILENT)

    def stub(self, name: str, text: str) -> None:
        """Put a program on the PATH, or replace it."""
        if name == "python":
            text = text.replace(SILENT, REAL, 1)
        (self.stubs / name).write_text(text)
        (self.stubs / name).chmod(0o755)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project folder, with nothing but these variables."""
        self.calls_file.write_text("")
        own = {"PATH": str(self.stubs), "STUBS": str(self.stubs), "CALLS": str(self.calls_file)}
        return subprocess.run(
            command, cwd=self.folder, env={"HOME": os.environ.get("HOME", "/"), **own, **variables},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def install(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the installer."""
        return self.run("bash", "setup-utils/install.sh", *arguments, **variables)

    def build_settings(self) -> dict[str, str]:
        """The environment of the last build of Horovod."""
        variables = Path(f"{self.calls_file}.build").read_text().split("\0")
        return {name: value for name, _, value in (text.partition("=") for text in variables)}

    @property
    def calls(self) -> str:
        """The calls of the stubs during the last command, one per line."""
        return self.calls_file.read_text()


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    """Return a fresh sandbox."""
    return Sandbox(tmp_path)
