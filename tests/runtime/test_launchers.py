from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from runtime import launchers
from runtime.errors import ConfigError


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PMI", "SLURM", "OMPI_", "HOROVOD_", "GROUPING_"))
    }
    monkeypatch.setattr(os, "environ", kept)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, "PMI_SIZE=4: .* mpirun -np 4 .* env -u PMI_SIZE"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK=0: .* several tasks.* mpirun -np N .* -u PMIX_RANK"),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "3"}, "SLURM_NTASKS=8: .* mpirun -np 8 "),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8"}, "SLURM_STEP_NUM_TASKS=2"),
        ({"PMIX_RANK": "0", "SLURM_NTASKS": "2"}, "SLURM_NTASKS=2"),
    ],
)
def test_tasks_that_cannot_connect_are_refused(variables: dict[str, str], words: str) -> None:
    os.environ.update(variables)
    with pytest.raises(ConfigError, match=words) as error:
        launchers.refuse_foreign_launcher()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "PMIX_RANK": "0"},
        # A step of one task inside of an allocation for many, such as an interactive shell.
        {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_NTASKS": "8", "OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3"},
        {"SLURM_NTASKS": "8", "HOROVOD_RANK": "3"},
        {"SLURM_NTASKS": "8", "GROUPING_WORKER": "3"},
    ],
)
def test_a_single_task_and_known_launchers_pass(variables: dict[str, str]) -> None:
    os.environ.update(variables)
    launchers.refuse_foreign_launcher()


GLOO = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    ("others", "is_refused"),
    [
        ({}, True),
        ({"NIC": "eth0"}, False),
        ({"NIC": ""}, False),
        ({"HOROVOD_CONTROLLER": "mpi"}, False),
        ({"HOROVOD_LOCAL_SIZE": "4"}, False),
    ],
)
def test_an_interface_that_gloo_would_not_take_is_refused(monkeypatch, others, is_refused) -> None:
    addresses = {"eth0": ["10.0.0.1"], "eth1": ["10.1.0.1", "fe80::1"]}
    interfaces = {
        name: [SimpleNamespace(address=one) for one in found] for name, found in addresses.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    monkeypatch.setattr(socket, "gethostname", lambda: "host1")
    monkeypatch.setattr(socket, "gethostbyname", {"host1": "10.0.0.1"}.__getitem__)
    os.environ.update({**GLOO, "NIC": "eth1", **others})
    if not is_refused:
        launchers.refuse_hosts_name()
        return
    with pytest.raises(ConfigError, match="^NIC=eth1: .* name host1, 10.0.0.1, which is not"):
        launchers.refuse_hosts_name()


def test_ranks_with_gloo_on_a_host_without_an_address_are_refused(monkeypatch) -> None:
    def unknown(name: str) -> str:
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-name")
    monkeypatch.setattr(socket, "gethostbyname", unknown)
    for alone in ({"HOROVOD_CONTROLLER": "gloo"}, {**GLOO, "HOROVOD_SIZE": "1"}):
        os.environ.update(alone)
        launchers.refuse_hosts_name()
    os.environ.update({**GLOO, "HOROVOD_LOCAL_SIZE": "4"})
    with pytest.raises(ConfigError, match="^the name of this host, no-such-name, has no address"):
        launchers.refuse_hosts_name()
