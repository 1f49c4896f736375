"""Findings are pure functions of what hosts say: healthy hosts, and one change each."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallel.check.findings import BRIDGES, GIBIBYTE, MEBIBYTE, findings
from parallel.check.hosts import Finding
from parallel.check.survey import Pair, Survey
from runtime.installed import Gpu
from tests.support.healthy_hosts import GPU, healthy

ROOT = Path(__file__).resolve().parents[3]
EIGHT, BOTH, THREE = {"a": 8, "b": 8}, {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}
# Hosts, their MXNet, and the interface that is chosen.
CPU, CUDA = (EIGHT, "mxnet"), (EIGHT, "mxnet-cu112")
ALONE, ALONE_CUDA = ({"b": 1}, "mxnet"), ({"b": 1}, "mxnet-cu112")
PAIR, PAIR_NIC = (BOTH, "mxnet"), (BOTH, "mxnet", "eth0")
H100 = Gpu("H100", (9, 0), 80 << 30)


def found(survey: Survey, host: str = "b", **changes: Any) -> list[str]:
    """The lines for a survey in which a host is changed."""
    survey.facts[host] = replace(survey.facts[host], **changes)
    return [str(one) for one in findings(survey)]


@pytest.mark.parametrize(
    ("hosts", "change", "line"),
    [
        (CPU, {"python": "3.12.1"}, "Python is 3.12, but 3.11 on a; remove .venv there and"),
        (CPU, {"horovod": "0.27.0"}, "Horovod is 0.27.0, but 0.28.1 on a; "),
        (CPU, {"open_mpi": "4.0.7"}, "Open MPI is 4.0.7, but 4.1.8 on a; "),
        (CPU, {"mxnet": None, "mxnet_package": "unknown"}, "MXNet is not installed; make"),
        (CPU, {"horovod": None}, "Horovod is not installed; make env there"),
        (CPU, {"horovod_lacks": ["MPI", "NCCL"]}, "Horovod is built without MPI; remove"),
        (CPU, {"errors": {"mxnet": "x"}}, "mxnet does not load as it should (x); "),
        (CPU, {"errors": {"horovod_lacks": "x"}}, "Horovod does not load (x); remove .venv"),
        (CPU, {"errors": {"open_mpi": "mpirun is not that of O"}}, "mpirun is not that of O"),
        (CPU, {"files": {"train.py": "1", "a.py": "9"}}, "this project is not that of a: a.p"),
        (CPU, {"files": {}, "errors": {"files": "x"}}, "the files of the project cannot be r"),
        (CPU, {"memory": 8 * GIBIBYTE - 1}, "8.0 GiB of memory are free for 8 ranks; "),
        (CPU, {"shared_memory": 255 * MEBIBYTE}, "255 MiB are free in /dev/shm, where 8 ra"),
        (CPU, {"disk": 2 * GIBIBYTE - 1}, "2.0 GiB are free on the disk of --models-root, "),
        (CPU, {"disk": None, "errors": {"disk": "x"}}, "--models-root cannot be used (x"),
        (CPU, {"processors": 7}, "8 ranks would share 7 processors; give it no more than 7 r"),
        (CPU, {"errors": {"interfaces": "x"}}, "psutil does not load (x); remove .venv"),
        (CUDA, {"gpus": [GPU] * 7}, "more ranks (8) than GPUs (7); give it no more than 7, "),
        (CUDA, {"gpus": [], "cuda_of_driver": None}, "it has no GPU that ranks would see, but a d"),
        (CUDA, {"gpus": [GPU] * 7 + [H100]}, "mxnet-cu112 has no machine code for H100; docs"),
        (CUDA, {"cuda_of_driver": 10020}, "its driver is for CUDA 10.2, too old for mx"),
        (CUDA, {"horovod_lacks": ["NCCL"]}, "Horovod is built without NCCL; "),
        (CUDA, {"gpus": [], "errors": {"gpus": "it fails; restart"}}, "it fails; restart"),
        # At the limits nothing is wrong.
        (CPU, {}, ""),
        (CPU, {"python": "3.11.2", "memory": 8 * GIBIBYTE, "shared_memory": 256 * MEBIBYTE}, ""),
        (CPU, {"disk": 2 * GIBIBYTE, "processors": 8}, ""),
        # Its driver does not matter.
        (CPU, {"errors": {"gpus": "it fails"}}, ""),
        # Newer; or older within CUDA 11, which is enough.
        *((CUDA, {"cuda_of_driver": version}, "") for version in (12020, 11040, 11000)),
        # A single host's name needs no address, and a single rank no shared memory.
        (ALONE, {"open_mpi": "5.0.3"}, "Open MPI 5.0.3 starts ranks"),
        (ALONE_CUDA, {"gpus": []}, "it has no GPU that ranks would see, but its MXNet is mxnet-cu"),
        (ALONE, {"gpus": [GPU], "cuda_of_driver": 11040},
         "its MXNet is for processors and would not use its 1 GPUs; "),
        *((ALONE, {"name_address": one}, "") for one in ("127.0.1.1", None, "10.9.9.9")),
        (ALONE, {"shared_memory": 0}, ""),
        (PAIR, {"hostname": "node0"}, "its hostname is node0, as that of a: Horovod takes them "),
        (PAIR, {"name_address": "127.0.1.1"}, "its name node1 stands for 127.0.1.1, which other h"),
        (PAIR, {"name_address": None}, "its name node1 is unknown to itself; "),
        (PAIR, {"name_address": "10.9.9.9"}, "its name node1 stands for 10.9.9.9, which is no add"),
        (PAIR_NIC, {"interfaces": {"lo": "127.0.0.1", "eth5": "10.0.0.1"}},
         "it has no interface eth0 with an IPv4 address; NIC is the same name on all hosts; it has "
         "lo, eth5"),
        (PAIR_NIC, {}, ""),
    ],
)  # fmt: skip
def test_a_change_is_one_finding_or_none(hosts: Any, change: dict[str, Any], line: str) -> None:
    lines = found(healthy(*hosts), **change)
    assert len(lines) == bool(line) and all(one.startswith(f"b: {line}") for one in lines)


def test_silent_hosts_stand_at_their_place_and_are_no_measure() -> None:
    survey = healthy(THREE)
    survey.facts["a"] = replace(survey.facts["a"], mxnet=None, mxnet_package="unknown")
    assert found(survey) == ["a: MXNet is not installed; make env there"]
    del survey.facts["a"]
    assert found(survey, "c", horovod="0.1")[0].startswith("c: Horovod is 0.1, but 0.28.1 on b")
    survey = healthy(THREE)
    del survey.facts["b"]
    survey.silent.append(Finding("b", "ssh gets no answer", "look there"))
    assert [line[0] for line in found(survey, "c", memory=1)] == ["b", "c"]


def test_the_same_address_on_two_hosts() -> None:
    survey = healthy(BOTH)
    for host in "ab":
        interfaces = {**survey.facts[host].interfaces, "br-12": "172.18.0.1"}
        lines = found(survey, host, interfaces=interfaces)
    assert len(lines) == 1
    assert lines[0].startswith("b: its interface br-12 has the address 172.18.0.1, as that of a: ")
    assert findings(replace(survey, nic="eth0")) == []
    # Bridges that do not matter are those that the launcher leaves out.
    text = (ROOT / "setup-utils/launchers/mpirun").read_text()
    (left_out,) = re.findall(r"btl_tcp_if_exclude=(127\S+)", text)
    assert {*left_out.split(",")} - {"127.0.0.1/8", "sppp"} == {*BRIDGES} - {"lo"}


@pytest.mark.parametrize(
    ("slots", "links", "line"),
    [
        (THREE, ["ac", "bc"], "c: a port of it is not reached from a, b (timed out); ranks listen"),
        (BOTH, [("b", "a", 49e6)], "b: it sends 49 MB/s to a, and 50 are expected; "),
        (BOTH, [("b", "a", 51e6)], ""),
        # 1 Gbit/s in a network of ten times as much.
        (THREE, [("c", "a", 118e6), ("c", "b", 118e6)], "c: it sends 118 MB/s to a, b, and 275 ar"),
        # Two hosts do not say which of them is usual.
        (BOTH, [("b", "a", 118e6)], ""),
    ],
)
def test_links(slots: dict[str, int], links: list[Any], line: str) -> None:
    survey = healthy(slots)
    for sender, receiver, *link in links:
        others = [one for one in survey.pairs if (one.sender, one.receiver) != (sender, receiver)]
        pair = Pair(sender, receiver, *(link or (None, "timed out")))
        survey.pairs[:] = [*others, pair]
    lines = found(survey)
    assert len(lines) == bool(line) and all(one.startswith(line) for one in lines)
