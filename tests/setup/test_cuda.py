"""The installer of a GPU build, with stubs of the CUDA toolkit, NCCL, cuDNN and MXNet.

Each row of a table is a machine that users have. The build of Horovod is a stub that notes its
environment; what MXNet loads are libraries of a few functions, compiled here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

import pytest

from tests.setup.conftest import Sandbox, assert_one_line

NVCC = r"""#!/usr/bin/env bash
[[ $1 != --dryrun ]] || echo "#\$ TOP=$(dirname "$0")/.." >&2
echo "Cuda compilation tools, release {version}, V{version}.152"
"""
HEADER = "#ifndef NCCL_H_\n#define NCCL_MAJOR {}\n#define NCCL_MINOR {}\n#define NCCL_PATCH {}\n"
LIBRARY = b"\x7fELF\0NCCL version %s\0"


@dataclass(frozen=True)
class Toolkit:
    """A folder as NVIDIA's installers make it, with NCCL in it."""

    folder: Path
    version: str = "11.2"
    header: Optional[str] = "2.8.4"
    nccl: Optional[str] = "2.8.4+cuda11.2"

    def make(self) -> Path:
        """Write the files that are not None."""
        for name in ("bin", "include", "lib64"):
            (self.folder / name).mkdir(parents=True)
        nvcc = self.folder / "bin/nvcc"
        nvcc.write_text(NVCC.format(version=self.version))
        nvcc.chmod(0o755)
        if self.header:
            text = HEADER.format(*self.header.split("."))
            (self.folder / "include/nccl.h").write_text(text)
        if self.nccl:
            (self.folder / "lib64/libnccl.so").write_bytes(LIBRARY % self.nccl.encode())
        return self.folder


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    """CUDA 11.2 in a folder with a space; nothing of it exists yet."""
    return Toolkit(tmp_path / "cuda toolkits/11.2")


def show(sandbox: Sandbox, folder: Path) -> None:
    """Put a toolkit's compiler on the PATH, by a script elsewhere."""
    sandbox.stub("nvcc", f'#!/usr/bin/env bash\nexec "{folder}/bin/nvcc" "$@"\n')


@pytest.mark.parametrize("way", ["HOROVOD_CUDA_HOME", "CUDA_HOME", "PATH"])
def test_the_build_gets_one_toolkit_by_all_names(
    sandbox: Sandbox, toolkit: Toolkit, way: str
) -> None:
    """Although another one is on the PATH, and other names lead to it."""
    assert sandbox.install().returncode == 0
    home = toolkit.make()
    other = replace(toolkit, folder=toolkit.folder.with_name("12.1"), version="12.1").make()
    names = ("CUDAToolkit_ROOT", "CUDA_PATH", "NCCL_ROOT", "CMAKE_PREFIX_PATH")
    misleading = {**dict.fromkeys(names, f"{other}"), "HOROVOD_NCCL_LINK": "STATIC"}
    show(sandbox, home if way == "PATH" else other)
    if way != "PATH":
        misleading = {**misleading, "CUDA_HOME": f"{other}", way: f"{home}/"}
    result = sandbox.install(MXNET_PACKAGE="mxnet-cu112", **misleading)
    assert result.returncode == 0, result.stderr
    assert "-m venv --clear" in sandbox.calls, "another package, another environment"
    built = sandbox.build_settings()
    for name in ("HOROVOD_CUDA_HOME", "CUDAToolkit_ROOT", "CUDA_PATH"):
        assert built[name] == str(home)
    assert shutil.which("nvcc", path=built["PATH"]) == f"{home}/bin/nvcc"
    assert built["HOROVOD_NCCL_INCLUDE"] == f"{home}/include"
    assert built["HOROVOD_NCCL_LIB"] == f"{home}/lib64"
    assert built["NCCL_ROOT"] == built["CMAKE_PREFIX_PATH"] == built["HOROVOD_NCCL_HOME"] == ""
    assert (built["HOROVOD_GPU"], built["HOROVOD_GPU_OPERATIONS"]) == ("CUDA", "NCCL")
    assert built["HOROVOD_NCCL_LINK"] == "SHARED"
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
    sandbox: Sandbox, toolkit: Toolkit, way: str, version: str
) -> None:
    home = replace(toolkit, version=version).make()
    if version.startswith("of"):
        (home / "bin/nvcc").write_text("#!/usr/bin/env bash\nexit 1\n")
    if way == "PATH":
        show(sandbox, home)
    variables = {} if way == "PATH" else {way: str(home)}
    result = sandbox.install(MXNET_PACKAGE="mxnet-cu112", **variables)
    needs = "mxnet-cu112 needs the compiler of CUDA 11.2, and there is CUDA "
    assert_one_line(result, f"{needs}{version} in {home}: ", "set HOROVOD_CUDA_HOME")
    assert not (sandbox.folder / ".venv").exists()


def test_horovods_own_installer_takes_the_package_of_the_environment(
    sandbox: Sandbox, toolkit: Toolkit
) -> None:
    """As InsightFace's users start it: by itself, without a word about the package."""
    home = {"CUDA_HOME": str(toolkit.make())}
    assert sandbox.install(MXNET_PACKAGE="mxnet-cu112", **home).returncode == 0
    (sandbox.folder / ".venv/bin/horovodrun").unlink()
    alone = ("bash", "setup-utils/install-horovod.sh")
    show(sandbox, replace(toolkit, folder=sandbox.folder / "12.1", version="12.1").make())
    refused = sandbox.run(*alone)
    assert_one_line(refused, "mxnet-cu112 needs the compiler of CUDA 11.2, and there is CUDA 12.1")
    assert "build " not in sandbox.calls
    refused = sandbox.run(*alone, MXNET_PACKAGE="mxnet-cu117")
    assert_one_line(refused, "MXNET_PACKAGE=mxnet-cu117, but", "has mxnet-cu112", "make env")
    built = sandbox.run(*alone, **home)
    assert built.returncode == 0, built.stderr
    assert sandbox.build_settings()["HOROVOD_CUDA_HOME"] == home["CUDA_HOME"]


def test_a_toolkit_in_nvidias_folder_is_found(sandbox: Sandbox, toolkit: Toolkit) -> None:
    """Beside a newer one that PATH and CUDA_HOME lead to; NCCL is where Debian has it."""
    newer = replace(toolkit, folder=toolkit.folder.with_name("12.1"), version="12.1").make()
    show(sandbox, newer)
    debian = replace(toolkit, folder=sandbox.system).make()
    (debian / "lib").mkdir()
    libraries = (debian / "lib64").rename(debian / "lib/x86_64-linux-gnu")
    for place in ("local/cuda", "local/cuda-11.2"):
        home = replace(toolkit, folder=sandbox.system / place, header=None, nccl=None).make()
        result = sandbox.install(MXNET_PACKAGE="mxnet-cu112", CUDA_HOME=f"{newer}")
        assert result.returncode == 0, result.stderr
        built = sandbox.build_settings()
        assert built["HOROVOD_CUDA_HOME"] == str(home)
        assert built["HOROVOD_NCCL_INCLUDE"] == f"{debian}/include"
        assert built["HOROVOD_NCCL_LIB"] == str(libraries)
        shutil.rmtree(sandbox.folder / ".venv")


def test_there_is_no_toolkit(sandbox: Sandbox, toolkit: Toolkit) -> None:
    result = sandbox.install(MXNET_PACKAGE="mxnet-cu117")
    assert_one_line(result, "needs the compiler of CUDA 11.7, and there is none: install the CUDA")
    # The named one decides even if another would fit.
    show(sandbox, toolkit.make())
    result = sandbox.install(MXNET_PACKAGE="mxnet-cu112", HOROVOD_CUDA_HOME="/nowhere")
    assert_one_line(result, "there is no bin/nvcc in HOROVOD_CUDA_HOME=/nowhere: ")


@pytest.mark.parametrize(
    ("package", "header", "nccl", "refusal"),
    [
        (112, None, "2.8.4+cuda11.2", "no nccl.h for mxnet-cu112 in "),
        (112, "2.8.4", None, "no libnccl.so for mxnet-cu112 in "),
        (112, "2.8.4", "2.8.3+cuda11.2", "nccl.h is of NCCL 2.8.4, but "),
        (112, "2.18.3", "2.18.3+cuda12.1", "NCCL 2.18.3+cuda12.1, but mxnet-cu112 needs one for"),
        (102, "2.8.4", "2.8.4+cuda10.1", "NCCL 2.8.4+cuda10.1, but mxnet-cu102 needs one for CUDA"),
        (112, "2.14.3", "2.14.3+cuda11.7", ""),
        (102, "2.8.4", "2.8.4+cuda10.2", ""),
        (117, "2.8.4", "unknown", ""),
    ],
)
def test_nccl_has_header_and_library_for_the_package(
    sandbox: Sandbox, toolkit: Toolkit, package: int,
    header: Optional[str], nccl: Optional[str], refusal: str,
) -> None:  # fmt: skip
    version = f"{package // 10}.{package % 10}"
    home = replace(toolkit, version=version, header=header, nccl=nccl).make()
    result = sandbox.install(MXNET_PACKAGE=f"mxnet-cu{package}", CUDA_HOME=f"{home}")
    if refusal:
        assert_one_line(result, refusal, "set HOROVOD_NCCL_HOME to its folder")
        assert not (sandbox.folder / ".venv").exists()
    else:
        assert result.returncode == 0, result.stderr
        assert sandbox.build_settings()["HOROVOD_CUDA_HOME"] == str(home)


def test_a_named_nccl_is_taken_instead_of_the_toolkits(sandbox: Sandbox, toolkit: Toolkit) -> None:
    home = toolkit.make()
    other = replace(
        toolkit, folder=toolkit.folder.with_name("my nccl"), header="2.9.6", nccl="2.9.6+cuda11.2"
    ).make()
    folders = {"HOROVOD_NCCL_INCLUDE": f"{other}/include", "HOROVOD_NCCL_LIB": f"{other}/lib64"}
    for named in ({"HOROVOD_NCCL_HOME": f"{other}"}, folders):
        variables = {"MXNET_PACKAGE": "mxnet-cu112", "CUDA_HOME": f"{home}", **named}
        result = sandbox.install(**variables)
        assert result.returncode == 0, result.stderr
        assert folders.items() <= sandbox.build_settings().items()
        shutil.rmtree(sandbox.folder / ".venv")
    (other / "lib64/libnccl.so").unlink()
    assert_one_line(sandbox.install(**variables), "no libnccl.so for mxnet-cu112", "my nccl/")


LIBRARIES = {
    # Without a GPU it fails, and leaves the number as it is.
    "libcudart.so.11.0": "int cudaRuntimeGetVersion(int *out) {"
    " if (VERSION) *out = VERSION; return VERSION ? 0 : 100; }",
    "libcudnn.so.8": "unsigned long cudnnGetCudartVersion(void) { return VERSION; }",
}
MXNET = """
import ctypes, os

pytestmark = pytest.mark.thorough
for name in sorted(os.listdir({folder!r})):
    ctypes.CDLL({folder!r} + "/" + name)
"""


@pytest.mark.parametrize(
    ("package", "runtime", "cudnn", "refusal"),
    [
        ("112", 11020, 11020, ""),
        ("117", 11080, 11000, ""),
        ("112", 0, 11020, ""),
        ("112", 11000, 11020, "libcudart.so.11.0 is of CUDA 11.0, older than the package's 11.2"),
        ("112", 11020, 12010, "libcudnn.so.8 is a cuDNN for CUDA 12.1, not for the package's 11.2"),
        ("102", 10020, 10010, "libcudnn.so.8 is a cuDNN for CUDA 10.1, not for the package's 10.2"),
        ("112", 11020, None, "libcudnn.so.8: cannot open shared object file"),
    ],
)
def test_the_libraries_that_mxnet_loads(
    sandbox: Sandbox, toolkit: Toolkit, package: str,
    runtime: int, cudnn: Optional[int], refusal: str,
) -> None:  # fmt: skip
    """Those of another CUDA version have the same names, and MXNet loads them."""
    version = f"{package[:2]}.{package[2]}"
    home = replace(toolkit, version=version, nccl=f"2.8.4+cuda{version}").make()
    folder = home / "loaded"
    folder.mkdir()
    for (name, source), number in zip(LIBRARIES.items(), (runtime, cudnn)):
        if number is None:
            (folder / name).symlink_to("nowhere")
            continue
        compiler = ["cc", "-shared", f"-DVERSION={number}", "-x", "c", "-", "-o"]
        subprocess.run([*compiler, folder / name], input=source, text=True, check=True)
    (home / "mxnet.py").write_text(MXNET.format(folder=str(folder)))
    given = {"CUDA_HOME": f"{home}", "STUB_CHECK": sys.executable, "PYTHONPATH": f"{home}"}
    result = sandbox.install(MXNET_PACKAGE=f"mxnet-cu{package}", **given)
    if not refusal:
        assert result.returncode == 0, result.stderr
        return
    remedy = f"put the folders of CUDA {version} ({home}/lib64), cuDNN and NCCL on LD_LIBRARY_PATH"
    assert_one_line(result, f"mxnet-cu{package} does not load as it should: ", refusal, remedy)
    assert "build " not in sandbox.calls


def test_mxnet_for_the_cpu_needs_none_of_it(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "mxnet.py").write_text("raise OSError('libgomp.so.1: no such file')\n")
    given = {"STUB_CHECK": sys.executable, "PYTHONPATH": f"{tmp_path}"}
    result = sandbox.install(**given)
    assert_one_line(result, "mxnet does not load as it should: OSError: libgomp.so.1: no such file")
    assert "remove " in result.stderr and "CUDA" not in result.stderr
    (tmp_path / "mxnet.py").write_text("")
    result = sandbox.install(**given)
    assert result.returncode == 0, result.stderr
    built = sandbox.build_settings()
    assert not {"HOROVOD_GPU", "HOROVOD_CUDA_HOME", "CUDAToolkit_ROOT"} & built.keys()
