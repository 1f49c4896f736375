"""Findings are pure functions of what hosts say: healthy hosts, and one change each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parallel.check.facts import Facts
from parallel.check.findings import GIBIBYTE, MEBIBYTE, findings
from parallel.check.hosts import Finding
from parallel.check.survey import Survey
from tests.support.healthy_hosts import healthy


def found(survey: Survey, host: str = "b", **changes) -> list[str]:
    """The lines for a survey in which a host is changed."""
    survey.facts[host] = replace(survey.facts[host], **changes)
    return [str(one) for one in findings(survey)]


@pytest.mark.parametrize("slots", [{"a": 1}, {"a": 8, "b": 8}, {"a": 1, "b": 8, "c": 2}])
@pytest.mark.parametrize("package", ["mxnet", "mxnet-cu112"])
def test_healthy_hosts(slots: dict[str, int], package: str) -> None:
    assert findings(healthy(slots, package)) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"python": "3.12.1"}, "b: Python is 3.12, but 3.11 on a; remove .venv there and make"),
        ({"mxnet": "1.8.0"}, "b: MXNet is mxnet 1.8.0, but mxnet 1.9.1 on a; "),
        ({"horovod": "0.27.0"}, "b: Horovod is 0.27.0, but 0.28.1 on a; "),
        ({"open_mpi": "4.0.7"}, "b: Open MPI is 4.0.7, but 4.1.8 on a; "),
        ({"mxnet": None, "mxnet_package": "unknown"}, "b: MXNet is not installed; make env there"),
        ({"horovod": None}, "b: Horovod is not installed; make env there"),
        ({"horovod_lacks": ("MPI", "NCCL")}, "b: Horovod is built without MPI; remove .venv"),
        ({"errors": {"mxnet": "no libgomp"}}, "b: mxnet does not load as it should (no libgomp); "),
        ({"errors": {"horovod_lacks": "x"}}, "b: Horovod does not load (x); remove .venv"),
        ({"errors": {"open_mpi": "mpirun is not that of Open MPI"}}, "b: mpirun is not that of O"),
        ({"files": {"train.py": "1", "a.py": "9"}}, "b: this project is not that of a: a.py diff"),
        ({"files": {"train.py": "3"}}, "b: this project is not that of a: a.py and 1 more diff"),
        ({"files": {}, "errors": {"files": "x"}}, "b: the files of the project cannot be read (x)"),
        ({"memory": 7 * GIBIBYTE}, "b: 7.0 GiB of memory are free for 8 ranks; "),
        ({"shared_memory": 64 * MEBIBYTE}, "b: 64 MiB are free in /dev/shm, where 8 ranks "),
        ({"disk": GIBIBYTE}, "b: 1.0 GiB are free on the disk of --models-root, "),
        ({"disk": None, "errors": {"disk": "no answer"}}, "b: --models-root cannot be used (no an"),
        ({"processors": 7}, "b: 8 ranks would share 7 processors; give it no more than b:7"),
        ({"open_files": 256}, "b: a process may open 256 files (ulimit -n); "),
        (
            {"infiniband": ("mlx5_0",), "locked_memory": 64 << 10},
            "b: 0 MiB of memory can be locked (ulimit -l), too few for mlx5_0; ",
        ),
    ],
)
def test_a_change_is_one_finding(change: dict[str, Any], line: str) -> None:
    (text,) = found(healthy({"a": 8, "b": 8}), **change)
    assert text.startswith(line)


@pytest.mark.parametrize(
    "change",
    [
        {"python": "3.11.2"},
        {"memory": 8 * GIBIBYTE},
        {"shared_memory": 8 * 32 * MEBIBYTE},
        {"disk": 2 * GIBIBYTE},
        {"processors": 8},
        {"open_files": 1024},
        {"open_files": None, "locked_memory": None},
        {"infiniband": ("mlx5_0",), "locked_memory": None},
        {"horovod_lacks": ("NCCL",)},
    ],
)
def test_at_the_limits_nothing_is_wrong(change: dict[str, Any]) -> None:
    assert found(healthy({"a": 8, "b": 8}), **change) == []


def test_open_mpi_5_is_wrong_everywhere() -> None:
    survey = healthy({"a": 1, "b": 1})
    survey.facts["a"] = replace(survey.facts["a"], open_mpi="5.0.3")
    lines = found(survey, open_mpi="5.0.3")
    assert [line[:40] for line in lines] == [
        "a: Open MPI 5.0.3 starts ranks in anothe", "b: Open MPI 5.0.3 starts ranks in anothe"
    ]  # fmt: skip


def test_one_rank_needs_no_shared_memory() -> None:
    assert found(healthy({"a": 8, "b": 1}), shared_memory=0) == []


def test_silent_hosts_stand_at_their_place() -> None:
    survey = healthy({"a": 1, "b": 1, "c": 1})
    del survey.facts["b"]
    survey.silent.append(Finding("b", "ssh gets no answer", "look there"))
    lines = found(survey, "c", open_files=1)
    assert [line[0] for line in lines] == ["b", "c"]


def test_a_first_host_without_an_answer_is_no_measure() -> None:
    survey = healthy({"a": 1, "b": 1, "c": 1})
    survey.facts["a"] = replace(survey.facts["a"], mxnet=None, mxnet_package="unknown")
    assert found(survey) == ["a: MXNet is not installed; make env there"]
    del survey.facts["a"]
    assert found(survey, "c", horovod="0.1")[0].startswith("c: Horovod is 0.1, but 0.28.1 on b")


def test_facts_are_as_the_survey_needs_them() -> None:
    """What is made up here is complete: no field of the product has a default."""
    assert set(vars(healthy({"a": 1}).facts["a"])) == set(Facts.__dataclass_fields__)
