"""What docs/many-hosts.md and the image say about versions, packages, variables and paths holds."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = (ROOT / "docs/many-hosts.md").read_text(encoding="utf-8")
PROGRAMS = Path(sys.executable).parent
ROW = re.compile(r"^\| `(?P<name>\w+?)(?:=\w+)?` \| .* \| (?P<default>[^|]*) \|$", re.MULTILINE)
VARIABLES = {row["name"]: row["default"].strip("`") for row in ROW.finditer(DOCUMENT)}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@lru_cache(maxsize=None)
def instructions() -> tuple[tuple[str, str], ...]:
    """Of the Dockerfile: each instruction and what follows it, on one line."""
    lines = [line for line in text_of("Dockerfile").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = [line.split(None, 1) for line in joined.splitlines() if line]
    return tuple((word, rest) for word, rest in pairs)


def all_of(word: str) -> list[str]:
    found = [rest for name, rest in instructions() if name == word]
    assert found, word
    return found


def test_the_image_is_built_as_an_environment_is() -> None:
    arguments = dict(rest.split("=") for rest in all_of("ARG"))
    assert arguments == {
        "BASE": "debian:bookworm-slim", "PYTHON": "python3", "MXNET_PACKAGE": "mxnet"
    }  # fmt: skip
    install = next(rest for rest in all_of("RUN") if "install.sh" in rest)
    for name in ("PYTHON", "MXNET_PACKAGE"):
        assert f"{name}=${{{name}}}" in install
    packages = next(rest for rest in all_of("RUN") if "apt-get" in rest)
    for package in ("build-essential", "openssh-client", "openssh-server", "${PYTHON}-venv"):
        assert package in shlex.split(packages)


def test_what_the_installer_runs_is_copied_before_it() -> None:
    """The rest comes later, so that a change there does not build Horovod again."""
    order = [word if word == "COPY" else rest for word, rest in instructions()]
    install = next(number for number, rest in enumerate(order) if "install.sh" in rest)
    before = [rest for word, rest in instructions()[:install] if word == "COPY"]
    scripts = "".join(path.read_text() for path in (ROOT / "setup-utils").glob("install*.sh"))
    copied = " ".join(before)
    for module in re.findall(r"python\" -m (runtime\.\w+)", scripts):
        assert f"{module.replace('.', '/')}.py" in copied, module
    for name in ("requirements.lock", "requirements-single.lock", "setup-utils"):
        assert name in copied.split()


def test_the_image_for_gpus_has_the_version_of_its_package() -> None:
    """The command in the document and the one in the Dockerfile; the package is in both tables."""
    for text in (DOCUMENT, text_of("Dockerfile")):
        text = re.sub(r"\\\n[# ]*", "", text)
        (cuda,) = re.findall(r"BASE=nvidia/cuda:(\d+\.\d+)\.\d+-cudnn8-devel-ubuntu20\.04", text)
        (package,) = re.findall(r"MXNET_PACKAGE=(mxnet-cu\d+)", text)
        assert package == f"mxnet-cu{cuda.replace('.', '')}"
        assert package in text_of("setup-utils/install.sh") and cuda == "11.2"
        assert re.search(r"PYTHON=python3\.9\b", text), "that of Ubuntu 20.04 is 3.8"
    assert "`mxnet-cu111` … `mxnet-cu117` (all seven)" in text_of("docs/gpu.md")


def test_the_image_runs_as_a_user_whom_mpirun_accepts() -> None:
    assert all_of("USER") == ["trainer"]
    (user,) = [rest for rest in all_of("RUN") if "useradd" in rest]
    assert "--uid 1000" in user and "root" not in user.replace("--owner", "")
    environment = dict(word.split("=", 1) for rest in all_of("ENV") for word in shlex.split(rest))
    (folder,) = all_of("WORKDIR")
    assert environment["VIRTUAL_ENV"] == f"{folder}/.venv"
    assert environment["PATH"].startswith(f"{folder}/.venv/bin:")


def test_the_image_leaves_out_what_git_ignores() -> None:
    ignored = set(text_of(".dockerignore").split())
    for line in text_of(".gitignore").split():
        name = line.strip("/")
        assert {name, f"**/{name}"} & ignored, line
    assert ".git" in ignored


def test_keys_get_into_neither_git_nor_the_image() -> None:
    """Those that the document makes, and others that users have beside them."""
    assert "mkdir keys && ssh-keygen -t ed25519 -N '' -f keys/id_rsa" in DOCUMENT
    patterns = [line.strip("/") for line in text_of(".gitignore").split()]
    for path in ("keys/id_rsa", "keys/known_hosts", "a/id_ed25519", "a/b.pem", ".ssh/config"):
        assert any(fnmatch(part, one) for part in Path(path).parts for one in patterns), path
    assert "keys" in text_of(".dockerignore").split()
    assert {"**/*.pem", "**/id_ed25519*", "**/.ssh"} <= set(text_of(".dockerignore").split())


def test_the_job_for_kubernetes_fits_the_image() -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) == 9
    job = yaml.safe_load(block)
    replicas = job["spec"]["mpiReplicaSpecs"]
    containers = {
        name: replicas[name]["template"]["spec"]["containers"][0] for name in ("Launcher", "Worker")
    }
    assert containers["Launcher"]["command"] == ["bash", "run.sh"]
    assert containers["Launcher"]["env"][0]["name"] == "HOSTFILE"
    server = containers["Worker"]["command"][-1]
    keys = job["spec"]["sshAuthMountPath"]
    (ssh,) = [rest for rest in all_of("RUN") if "sshd_trainer" in rest]
    assert f">{server} " in ssh and f"'HostKey {keys}/id_rsa'" in ssh
    # Server and client of the image speak on one port.
    assert re.findall(r"Port (\d+)", ssh) == ["2222", "2222"]
    assert " ".join(containers["Worker"]["command"]) in DOCUMENT.replace("\\\n", "")


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
    text = library.read_bytes()
    assert [name for name in named if f"\0{name}\0".encode() not in text] == []
