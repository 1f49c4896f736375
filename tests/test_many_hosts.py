"""What docs/many-hosts.md and the image say about versions, packages, variables and paths holds."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT, DOCKERFILE, INSTALLER, IGNORED, KEPT_OUT = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("docs/many-hosts.md", "Dockerfile", "setup-utils/install.sh", ".gitignore",
                 ".dockerignore")
)  # fmt: skip
# Without comments, each instruction on one line.
LINES = re.sub(r"^#.*\n|\\\n\s*", "", DOCKERFILE, flags=re.M)
PROGRAMS = Path(sys.executable).parent
ROW = re.compile(r"^\| `(\w+?)(?:=\w+)?` \| .* \| ([^|]*) \|$", re.MULTILINE)
VARIABLES = {name: default.strip("`") for name, default in ROW.findall(DOCUMENT)}


def test_what_the_installer_runs_is_copied_before_it() -> None:
    """The rest comes later, so that a change there does not build Horovod again."""
    before = LINES[: LINES.index("install.sh")]
    copied = " ".join(re.findall(r"^COPY (.*)$", before, re.MULTILINE)).split()
    scripts = "".join(path.read_text() for path in (ROOT / "setup-utils").glob("install*.sh"))
    modules = re.findall(r"python\" -m (runtime\.\w+)", scripts)
    files = [f"{module.replace('.', '/')}.py" for module in modules]
    assert not {*files, "requirements.lock", "requirements-single.lock", "setup-utils"} - {*copied}


@pytest.mark.parametrize("text", [DOCUMENT, DOCKERFILE], ids=["document", "Dockerfile"])
def test_the_image_for_gpus_has_the_version_of_its_package(text: str) -> None:
    """The package is in both tables."""
    text = re.sub(r"\\\n[# ]*", "", text)
    (cuda,) = re.findall(r"BASE=nvidia/cuda:(\d+\.\d+)\.\d+-cudnn8-devel-ubuntu20\.04", text)
    (package,) = re.findall(r"MXNET_PACKAGE=(mxnet-cu\d+)", text)
    assert package == f"mxnet-cu{cuda.replace('.', '')}" and package in INSTALLER
    assert re.search(r"PYTHON=python3\.9\b", text), "that of Ubuntu 20.04 is 3.8"


def test_what_git_ignores_and_keys_do_not_get_into_the_image() -> None:
    """The keys that the document makes, and others that users have beside them."""
    kept_out, ignored = set(KEPT_OUT.split()), [name.strip("/") for name in IGNORED.split()]
    assert [name for name in ignored if not {name, f"**/{name}"} & kept_out] == []
    assert {".git", "keys", "**/*.pem", "**/id_ed25519*", "**/.ssh"} <= kept_out
    assert "mkdir keys && ssh-keygen -t ed25519 -N '' -f keys/id_rsa" in DOCUMENT
    for path in ("keys/id_rsa", "keys/known_hosts", "a/id_ed25519", "a/b.pem", ".ssh/config"):
        assert any(fnmatch(part, one) for part in path.split("/") for one in ignored), path


def test_the_job_for_kubernetes_fits_the_image() -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    job = yaml.safe_load(block)["spec"]
    launcher, worker = (
        job["mpiReplicaSpecs"][name]["template"]["spec"]["containers"][0]
        for name in ("Launcher", "Worker")
    )
    assert launcher["command"] == ["bash", "run.sh"]
    assert launcher["env"][0]["name"] == "HOSTFILE"
    (ssh,) = re.findall(r"^RUN .*sshd_trainer.*$", LINES, re.MULTILINE)
    assert f">{worker['command'][-1]} " in ssh
    assert f"'HostKey {job['sshAuthMountPath']}/id_rsa'" in ssh
    # Server and client of the image speak on one port, and mpirun accepts their user.
    assert re.findall(r"Port (\d+)", ssh) == ["2222", "2222"]
    assert re.findall(r"^USER (.*)$", LINES, re.MULTILINE) == ["trainer"]
    assert " ".join(worker["command"]) in DOCUMENT.replace("\\\n", "")


@pytest.mark.skipif(not (PROGRAMS / "ompi_info").exists(), reason="the system's Open MPI")
def test_open_mpi_has_the_variables() -> None:
    named = {name: said for name, said in VARIABLES.items() if name.startswith("OMPI_MCA_")}
    del named["OMPI_MCA_btl_tcp_if_exclude"]
    assert len(named) == 7
    text = subprocess.check_output(
        [PROGRAMS / "ompi_info", "--all", "--parsable"], text=True, env={"PATH": str(PROGRAMS)}
    )
    defaults = dict(re.findall(r"^mca:\w+:\w+:param:(\w+):value:(.*)$", text, re.MULTILINE))
    has = {name: defaults.get(name.removeprefix("OMPI_MCA_")) for name in named}
    assert has == {name: {"any": "", "none": ""}.get(said, said) for name, said in named.items()}


def test_horovod_has_the_variables() -> None:
    found = importlib.util.find_spec("horovod")
    assert found is not None and found.origin is not None
    (library,) = Path(found.origin).parent.glob("mxnet/mpi_lib*.so")
    named = [name for name in VARIABLES if name.startswith("HOROVOD_")]
    assert len(named) == 6
    assert all(f"\0{name}\0".encode() in library.read_bytes() for name in named)
