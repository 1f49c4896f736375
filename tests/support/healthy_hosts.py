"""Hosts on which nothing is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Optional

from parallel.check.facts import Facts
from parallel.check.survey import Pair, Survey
from runtime.installed import Gpu

GPU = Gpu("Tesla T4", (7, 5), 15 << 30)


def facts(number: int, package: str = "mxnet") -> Facts:
    """A host, the first with number 0; with GPUs if the package is for them."""
    has_gpus = package != "mxnet"
    return Facts(
        hostname=f"node{number}",
        name_address=f"10.0.0.{number}",
        interfaces={"lo": "127.0.0.1", "eth0": f"10.0.0.{number}", "docker0": "172.17.0.1"},
        ssh_client="10.0.0.0" if number else None,
        ssh_server=f"10.0.0.{number}" if number else None,
        python="3.11.7",
        mxnet="1.9.1",
        mxnet_package=package,
        horovod="0.28.1",
        horovod_lacks=[] if has_gpus else ["NCCL"],
        open_mpi="4.1.8",
        project="3f2a",
        processors=16,
        memory=64 << 30,
        shared_memory=32 << 30,
        disk=1 << 40,
        gpus=[GPU] * 8 if has_gpus else [],
        cuda_of_driver=11040 if has_gpus else None,
        errors={},
    )


def healthy(slots: Mapping[str, int], package: str = "mxnet", nic: Optional[str] = None) -> Survey:
    found = Survey(slots, nic)
    found.facts.update({host: facts(number, package) for number, host in enumerate(slots)})
    found.pairs.extend(Pair(*hosts, 1.1e9) for hosts in itertools.permutations(slots, 2))
    return found
