"""The scripts of ``examples/``, and commands of Grouping-SGD's scripts with our entry point.

Those are gsp_cifar10_inception_small.sh and gsp_cifar10_resnet20.sh, on their form of CIFAR.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.alone import metrics
from tests.support.foreign_records import write_cifar
from tests.support.launch import ROOT, finish

SCRIPTS = {path.name.partition("_")[0]: path for path in (ROOT / "examples").glob("?sp_*.sh")}
HERE = "127.0.0.1"
VALIDATION = {"target": "validation"}


def run(folder: Path, scheme: str, *options: str, **further: Any) -> CompletedProcess[str]:
    further["PATH"] = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
    further["VIRTUAL_ENV"] = sys.prefix
    return finish("bash", SCRIPTS[scheme], *options, folder=folder, **further)


def assert_has_trained(folder: Path) -> None:
    models = folder / "models/synthetic-resnet20"
    assert (models / "model-0000.params").stat().st_size > 1_000_000
    assert '"model": "resnet20"' in (models / "config.json").read_text()


def test_short(tmp_path: Path) -> None:
    run(tmp_path, "ssp", "--num-images", "120", "--batch-size", "10")
    assert_has_trained(tmp_path)
    config = (tmp_path / "models/synthetic-resnet20/config.json").read_text()
    for said in ('"kv_store": "dist_ssync"', '"batch_size": 10', '"wd": 0.0001'):
        assert said in config


def test_a_file_of_hosts_is_counted_as_the_launcher_reads_it(tmp_path: Path) -> None:
    """A comment, an empty line and line ends of Windows are no workers; slots are."""
    lines = b"\xef\xbb\xbf# two\r\n\r\n127.0.0.1 slots=2\r\n127.0.0.2:22\r\n"
    (tmp_path / "hosts").write_bytes(lines)
    script = f'source {ROOT}/examples/common.sh && echo "${{job[@]}}"'
    jobs: dict[str, Any] = {"-n 3 -s 2": {}, "-n 4 -s 1": {"WORKERS": "4", "SERVERS": "1"}}
    for job, variables in jobs.items():
        result = finish("bash", "-c", script, folder=tmp_path, HOSTFILE="hosts", **variables)
        assert result.stdout == f"-H hosts --launcher ssh {job}\n"


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    for variables, message in (
        ({"HOSTFILE": "\x1b[31mx"}, "error: HOSTFILE=' [31mx' cannot be read; give a file with"),
        ({"WORKERS": "two"}, "error: WORKERS='two' is not a number of processes; give one from 1"),
        ({"DATA_DIR": "none"}, "none/data_batch_1 does not exist; --data-dir needs all files of"),
    ):
        assert message in run(tmp_path, "bsp", status=2, **variables).stderr


@pytest.mark.grouping
def test_a_command_of_grouping_sgd_runs(tmp_path: Path) -> None:
    """Two groups, the second with less data."""
    write_cifar(tmp_path / "cifar10", 200, 40)
    (tmp_path / "hosts").write_text(f"{HERE}\n" * 4)
    (tmp_path / "groups").write_text(f"{HERE} {HERE}\n" * 2)
    (tmp_path / "data_sharding").write_text("0 0.3\n0.3 0.6\n0.6 0.8\n0.8 1\n")
    words = "-m parallel.launch -n 4 -s 2 -i lo --launcher local -H hosts -- python"
    words += f" {ROOT}/classify.py --data-dir cifar10/ --lr-factor 0.94 --kv-store dist_gsync"
    words += " --data-allocator 1 --network resnet20 --dataset cifar10_grouping_resnet --lr 0.05"
    words += " --batch-size 5 --num-epoch 1 --num-examples 200"
    further: Any = {"PYTHONPATH": str(ROOT), "PS_VERBOSE": "1"}
    result = finish(sys.executable, *words.split(), folder=tmp_path, seconds=280, **further)
    models = tmp_path / "models/cifar10_grouping_resnet-resnet20"
    assert metrics(models, "total", **VALIDATION) == [40]
    config = json.loads((models / "config.json").read_text())
    assert (config["model"], config["epochs"], config["lr_factor"]) == ("resnet20", 1, 0.94)
    assert config["no_lr_scaling"] and config["image_size"] == 32
    for option, name in (("--groups", "groups"), ("--data-sharding", "data_sharding")):
        assert f"launch: {option} {name}, which is in this folder" in result.stderr


@pytest.mark.grouping
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheme", ["bsp", "asp", "ssp", "gsp"])
def test_as_typed(scheme: str, tmp_path: Path) -> None:
    result = run(tmp_path, scheme, seconds=1700)
    assert_has_trained(tmp_path)
    if scheme == "gsp":
        assert re.search(r"^group 0: worker \d on 127\.0\.0\.1 \d+ images/s", result.stdout, re.M)
        assert (tmp_path / "groups").read_text().count("127.0.0.1") == 2
