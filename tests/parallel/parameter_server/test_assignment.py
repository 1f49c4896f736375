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


def test_variables_are_read_as_they_were_written() -> None:
    for written in (LONE, FULL):
        assert assignment.find(written.variables()) == written
    # A program outside of a job has none; what was not given is not set.
    assert assignment.find({"GROUPING_WORKER": "1"}) is None
    names = ("GROUPS", "SHARES", "TOLERATES", "SERVER_SPEEDS", "TRACE")
    optional = {f"GROUPING_{name}" for name in names}
    assert FULL.variables().keys() - LONE.variables().keys() <= optional


@pytest.mark.parametrize(
    ("name", "value"),
    [("DMLC_NUM_WORKER", None), ("GROUPING_SHARES", "0:1;half"), ("GROUPING_KEY", None)],
)
def test_an_incomplete_assignment_is_an_error(name: str, value: str | None) -> None:
    variables = {one: text for one, text in FULL.variables().items() if one != name}
    if value is not None:
        variables[name] = value
    with pytest.raises(ConfigError, match=f"{name}.*start it with python -m parallel.launch"):
        assignment.find(variables)


def test_each_job_has_a_key_of_its_own_that_is_not_printed() -> None:
    other = Assignment("worker", "127.0.0.1", 9000, "127.0.0.2", "lo", num_workers=3, num_servers=2)
    assert len(LONE.key) == len(other.key) == 64 and LONE.key != other.key
    assert LONE.key not in repr(LONE)
    assert LONE.variables()["GROUPING_KEY"] == LONE.key
