"""Hosts on which nothing is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Optional

from parallel.check.facts import Facts
from parallel.check.survey import Pair, Survey


def facts(number: int) -> Facts:
    """A host, the first with number 0."""
    return Facts(
        hostname=f"node{number}",
        interfaces={"lo": "127.0.0.1", "eth0": f"10.0.0.{number}", "docker0": "172.17.0.1"},
        ssh_client="10.0.0.0" if number else "",
        ssh_server=f"10.0.0.{number}" if number else "",
        cells={
            "hostname": f"node{number}", "Python": "3.11", "MXNet": "1.9.1 mxnet",
            "Horovod": "0.28.1", "Open MPI": "4.1.8", "project": "3f2a",
            "GPUs": "8 Tesla T4, CUDA 11.4",
        },
        wrong=[],
    )  # fmt: skip


def healthy(slots: Mapping[str, int], nic: Optional[str] = None) -> Survey:
    found = Survey(slots, nic)
    found.facts.update({host: facts(number) for number, host in enumerate(slots)})
    found.pairs.extend(Pair(*hosts, 1.1e9) for hosts in itertools.permutations(slots, 2))
    return found
