"""The installer of a GPU build, with stubs of the CUDA toolkit, NCCL, cuDNN and MXNet.

Each row of a table is a machine that users have. The build of Horovod is a stub that notes its
environment.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any, Optional

import pytest

from tests.setup.conftest import Sandbox
from tests.support.launch import write_program

pytestmark = pytest.mark.thorough

NVCC = r"""[[ $1 != --dryrun ]] || echo "#\$ TOP=$(dirname "$0")/.." >&2
echo "Cuda compilation tools, release {version}, V{version}.152"
"""
HEADER = "#ifndef NCCL_H_\n#define NCCL_MAJOR {}\n#define NCCL_MINOR {}\n#define NCCL_PATCH {}\n"


def toolkit(
    folder: Path, version: str = "11.2", header: str = "2.8.4", nccl: str = "2.8.4+cuda11.2"
) -> Path:
    """A folder as NVIDIA's installers make it, with NCCL in it; nothing is written for ""."""
    for name in ("bin", "include", "lib64"):
        (folder / name).mkdir(parents=True)
    write_program(folder / "bin/nvcc", NVCC.format(version=version))
    if header:
        (folder / "include/nccl.h").write_text(HEADER.format(*header.split(".")))
    if nccl:
        (folder / "lib64/libnccl.so").write_bytes(b"\x7fELF\0NCCL version %s\0" % nccl.encode())
    return folder


def show(sandbox: Sandbox, folder: Path) -> None:
    """Put a toolkit's compiler on the PATH, by a script elsewhere."""
    sandbox.stub("nvcc", f'exec "{folder}/bin/nvcc" "$@"\n')


def built(sandbox: Sandbox, package: int = 112, /, **variables: Any) -> dict[str, str]:
    """Install a package for GPUs; returns the environment of Horovod's build."""
    sandbox.install(MXNET_PACKAGE=f"mxnet-cu{package}", **variables)
    return sandbox.build_settings()


def refused(sandbox: Sandbox, package: int = 112, /, **variables: Any) -> str:
    """Return the line with which a package for GPUs is refused before anything is installed."""
    said = sandbox.refusal(MXNET_PACKAGE=f"mxnet-cu{package}", **variables)
    assert not (sandbox.folder / ".venv").exists()
    return said


@pytest.mark.parametrize("way", ["HOROVOD_CUDA_HOME", "CUDA_HOME", "PATH"])
def test_the_build_gets_one_toolkit_by_all_names(
    sandbox: Sandbox, tmp_path: Path, way: str
) -> None:
    """Although another one is on the PATH, and other names lead to it."""
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


@pytest.mark.parametrize(
    ("way", "version"),
    [
        ("HOROVOD_CUDA_HOME", "11.1"),
        ("CUDA_HOME", "11.20"),
        ("CUDA_HOME", "of unknown version"),
        ("PATH", "1.2"),
    ],
)
def test_a_toolkit_of_another_version_is_refused_before_anything_is_installed(
    sandbox: Sandbox, tmp_path: Path, way: str, version: str
) -> None:
    home = toolkit(tmp_path / "cuda", version)
    if version.startswith("of"):
        write_program(home / "bin/nvcc", "exit 1\n")
    if way == "PATH":
        show(sandbox, home)
    said = refused(sandbox, **({} if way == "PATH" else {way: home}))
    needs = "mxnet-cu112 needs the compiler of CUDA 11.2, and there is CUDA "
    assert f"{needs}{version} in {home}: " in said and "set HOROVOD_CUDA_HOME" in said


def test_horovods_own_installer_takes_the_package_of_the_environment(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """As InsightFace's users start it: by itself, without a word about the package."""
    home = toolkit(tmp_path / "11.2")
    built(sandbox, CUDA_HOME=home)
    (sandbox.programs / "horovodrun").unlink()
    alone = "setup-utils/install-horovod.sh"
    show(sandbox, toolkit(tmp_path / "12.1", "12.1"))
    said = sandbox.refusal(alone)
    assert "mxnet-cu112 needs the compiler of CUDA 11.2, and there is CUDA 12.1" in said
    assert not sandbox.calls_with("build ")
    said = sandbox.refusal(alone, MXNET_PACKAGE="mxnet-cu117")
    assert re.search("MXNET_PACKAGE=mxnet-cu117, but .* has mxnet-cu112: run .*make env", said)
    sandbox.run(alone, CUDA_HOME=home)
    assert sandbox.build_settings()["HOROVOD_CUDA_HOME"] == str(home)


def test_where_toolkits_are_found(sandbox: Sandbox, tmp_path: Path) -> None:
    """In NVIDIA's folder, beside a newer one of PATH and CUDA_HOME; NCCL is where Debian has it."""
    said = refused(sandbox, 117)
    assert "needs the compiler of CUDA 11.7, and there is none: install the CUDA" in said
    newer = toolkit(tmp_path / "12.1", "12.1")
    show(sandbox, newer)
    debian = toolkit(sandbox.system)
    (debian / "lib").mkdir()
    libraries = (debian / "lib64").rename(debian / "lib/x86_64-linux-gnu")
    for place in ("local/cuda", "local/cuda-11.2"):
        home = toolkit(sandbox.system / place, header="", nccl="")
        found = built(sandbox, CUDA_HOME=newer)
        assert found["HOROVOD_CUDA_HOME"] == str(home)
        assert found["HOROVOD_NCCL_INCLUDE"] == f"{debian}/include"
        assert found["HOROVOD_NCCL_LIB"] == str(libraries)
        shutil.rmtree(sandbox.folder / ".venv")
    # The named one decides even if another would fit.
    said = refused(sandbox, HOROVOD_CUDA_HOME="/nowhere")
    assert "there is no bin/nvcc in HOROVOD_CUDA_HOME=/nowhere: " in said


@pytest.mark.parametrize(
    ("package", "header", "nccl", "refusal"),
    [
        (112, "", "2.8.4+cuda11.2", "no nccl.h for mxnet-cu112 in "),
        (112, "2.8.4", "", "no libnccl.so for mxnet-cu112 in "),
        (112, "2.8.4", "2.8.3+cuda11.2", "nccl.h is of NCCL 2.8.4, but "),
        (112, "2.18.3", "2.18.3+cuda12.1", "NCCL 2.18.3+cuda12.1, but mxnet-cu112 needs one for"),
        (102, "2.8.4", "2.8.4+cuda10.1", "NCCL 2.8.4+cuda10.1, but mxnet-cu102 needs one for CUDA"),
        (112, "2.14.3", "2.14.3+cuda11.7", None),
        (102, "2.8.4", "2.8.4+cuda10.2", None),
        (117, "2.8.4", "unknown", None),
    ],
)
def test_nccl_has_header_and_library_for_the_package(
    sandbox: Sandbox, tmp_path: Path, package: int, header: str, nccl: str, refusal: Optional[str]
) -> None:
    home = toolkit(tmp_path / "cuda", f"{package // 10}.{package % 10}", header, nccl)
    if refusal is None:
        assert built(sandbox, package, CUDA_HOME=home)["HOROVOD_CUDA_HOME"] == str(home)
    else:
        said = refused(sandbox, package, CUDA_HOME=home)
        assert refusal in said and "set HOROVOD_NCCL_HOME to its folder" in said


def test_a_named_nccl_is_taken_instead_of_the_toolkits(sandbox: Sandbox, tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda")
    other = toolkit(tmp_path / "my nccl", header="2.9.6", nccl="2.9.6+cuda11.2")
    folders = {"HOROVOD_NCCL_INCLUDE": f"{other}/include", "HOROVOD_NCCL_LIB": f"{other}/lib64"}
    for named in ({"HOROVOD_NCCL_HOME": f"{other}"}, folders):
        assert folders.items() <= built(sandbox, CUDA_HOME=home, **named).items()
        shutil.rmtree(sandbox.folder / ".venv")
    (other / "lib64/libnccl.so").unlink()
    said = refused(sandbox, CUDA_HOME=home, **named)
    assert re.search("no libnccl.so for mxnet-cu112.*my nccl/", said)


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
