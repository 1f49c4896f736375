"""What the launcher writes is what the processes read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallel.parameter_server import assignment
from parallel.parameter_server.assignment import Assignment, Share
from runtime.errors import ConfigError

LONE = Assignment(
    "worker", "127.0.0.1", 9000, "127.0.0.2", "lo", num_workers=3, num_servers=2, worker=1
)
FULL = replace(
    LONE,
    local_worker=1,
    groups=((2, 0), (1,)),
    shares=(Share(0.0, 0.1), Share(0.1, 1 / 3), Share(1 / 3, 1.0)),
    tolerates=True,
    server_speeds=(1.0, 0.25),
    bucket_elements=5000,
    trace="/somewhere",
)


@pytest.mark.parametrize("written", [LONE, FULL])
def test_variables_are_read_as_they_were_written(written: Assignment) -> None:
    assert assignment.find(written.variables()) == written


def test_a_program_outside_of_a_job_has_no_assignment() -> None:
    assert assignment.find({"GROUPING_WORKER": "1"}) is None


def test_what_was_not_given_is_not_set() -> None:
    assert (
        not set(FULL.variables())
        - set(LONE.variables())
        - {
            "GROUPING_GROUPS",
            "GROUPING_SHARES",
            "GROUPING_TOLERATES",
            "GROUPING_SERVER_SPEEDS",
            "GROUPING_TRACE",
        }
    )


@pytest.mark.parametrize(
    ("name", "value"), [("DMLC_NUM_WORKER", None), ("GROUPING_SHARES", "0:1;half")]
)
def test_an_incomplete_assignment_is_an_error(name: str, value: str | None) -> None:
    variables = FULL.variables()
    if value is None:
        del variables[name]
    else:
        variables[name] = value
    with pytest.raises(ConfigError, match="start it with python -m parallel.launch"):
        assignment.find(variables)


def test_each_job_has_a_key_of_its_own_that_is_not_printed() -> None:
    other = Assignment("worker", "127.0.0.1", 9000, "127.0.0.2", "lo", num_workers=3, num_servers=2)
    assert len(LONE.key) == len(other.key) == 64 and LONE.key != other.key
    assert LONE.key not in repr(LONE)
    variables = LONE.variables()
    assert variables["GROUPING_KEY"] == LONE.key
    del variables["GROUPING_KEY"]
    with pytest.raises(ConfigError, match="GROUPING_KEY"):
        assignment.find(variables)
