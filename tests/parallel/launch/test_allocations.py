from __future__ import annotations

import os
from pathlib import Path

import pytest

from parallel.launch.allocations import make_output_folder, refuse_unread_hosts, tasks_of_slurm
from runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("variables", "tasks"),
    [
        ({"SLURM_JOBID": "7", "SLURM_TASKS_PER_NODE": "4(x2),2,1(x10)"}, 20),
        ({"SLURM_JOBID": "7"}, 0),
        ({"SLURM_TASKS_PER_NODE": "4"}, 0),
    ],
)
def test_the_tasks_of_slurm(monkeypatch: pytest.MonkeyPatch, variables, tasks: int) -> None:
    monkeypatch.setattr(os, "environ", variables)
    assert tasks_of_slurm() == tasks


@pytest.mark.parametrize("name", ["PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE"])
def test_hosts_of_other_systems_are_not_left_out(monkeypatch, tmp_path: Path, name: str) -> None:
    file = tmp_path / "hosts"
    monkeypatch.setenv(name, str(file))
    refuse_unread_hosts({"me"}.__contains__)
    file.write_text("me 4 all.q\n\nme 4\n")
    refuse_unread_hosts({"me"}.__contains__)
    file.write_text("me 4\n\nnode2 4 all.q\n")
    with pytest.raises(ConfigError, match=f"^{name} names other hosts, such as node2, but .*-H a"):
        refuse_unread_hosts({"me"}.__contains__)


def test_the_folder_of_the_output(tmp_path: Path) -> None:
    """Its whole path is named, however long: its end tells it from others."""
    folder = tmp_path / ("long" * 25)
    for _ in range(2):
        make_output_folder(str(folder / "b"))
    assert (folder / "b").is_dir()
    file = folder / "file"
    file.touch()
    for path, reason in ((str(file), "File exists"), (str(file / "b"), "Not a directory")):
        with pytest.raises(ConfigError, match=f"^--output-filename {path} is no .*{reason}.; na"):
            make_output_folder(path)
