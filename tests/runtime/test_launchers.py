from __future__ import annotations

import os
import socket
from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pytest

from runtime import launchers
from runtime.errors import ConfigError


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = ("PMI", "SLURM", "OMPI_", "HOROVOD_", "GROUPING_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    monkeypatch.setattr(os, "environ", kept)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, "PMI_SIZE=4: .* mpirun -np 4 .* env -u PMI_SIZE"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK=0: .* several tasks.* mpirun -np N .* -u PMIX_RANK"),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "3"}, "SLURM_NTASKS=8: .* mpirun -np 8 "),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8"}, "SLURM_STEP_NUM_TASKS=2"),
        ({"PMIX_RANK": "0", "SLURM_NTASKS": "2"}, "SLURM_NTASKS=2"),
        # A single task, also within an allocation for many, as of an interactive shell.
        ({}, None),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "PMIX_RANK": "0"}, None),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, None),
        # Known launchers.
        ({"SLURM_NTASKS": "8", "OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3"}, None),
        ({"SLURM_NTASKS": "8", "HOROVOD_RANK": "3"}, None),
        ({"SLURM_NTASKS": "8", "GROUPING_WORKER": "3"}, None),
    ],
)
def test_tasks_that_cannot_connect_are_refused(variables: dict[str, str], words) -> None:
    os.environ.update(variables)
    # One line.
    with pytest.raises(ConfigError, match=f"^.*{words}.*$") if words else nullcontext():
        launchers.refuse_foreign_launcher()


GLOO = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "2", "NIC": "eth1"}


@pytest.mark.parametrize(
    ("name", "others", "message"),
    [
        ("host1", GLOO, "^NIC=eth1: .* name host1, 10.0.0.1, which is not"),
        ("host1", {**GLOO, "NIC": "eth0"}, None),
        ("host1", {**GLOO, "NIC": ""}, None),
        ("host1", {**GLOO, "HOROVOD_CONTROLLER": "mpi"}, None),
        ("host1", {**GLOO, "HOROVOD_LOCAL_SIZE": "4"}, None),
        ("none", {**GLOO, "HOROVOD_LOCAL_SIZE": "4"}, "^the name of this host, none, has no addr"),
        ("none", {**GLOO, "HOROVOD_SIZE": "1"}, None),
        ("none", {"HOROVOD_CONTROLLER": "gloo"}, None),
    ],
)
def test_gloo_needs_an_address_of_the_hosts_name_and_takes_its_interface(
    monkeypatch, name, others, message
) -> None:
    def known(name: str) -> str:
        if name != "host1":
            raise OSError("Name or service not known")
        return "10.0.0.1"

    addresses = {"eth0": ["10.0.0.1"], "eth1": ["10.1.0.1", "fe80::1"]}
    interfaces = {
        interface: [SimpleNamespace(address=one) for one in found]
        for interface, found in addresses.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(socket, "gethostbyname", known)
    os.environ.update(others)
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        launchers.refuse_hosts_name()
