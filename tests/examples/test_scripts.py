"""The scripts of ``examples/``, as they are typed: short with further options, long without."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support import mxnet_g
from tests.support.launch import ROOT, finish

SCRIPTS = {path.name.partition("_")[0]: path for path in (ROOT / "examples").glob("?sp_*.sh")}
SHORT = "--num-images 120 --batch-size 10".split()


def run(folder: Path, scheme: str, *options: str, **further: Any) -> CompletedProcess[str]:
    """Type a script in a folder."""
    further["PATH"] = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
    further["VIRTUAL_ENV"] = sys.prefix
    return finish("bash", SCRIPTS[scheme], *options, folder=folder, **further)


def assert_has_trained(folder: Path, name: str = "synthetic-resnet20") -> None:
    models = folder / "models" / name
    assert (models / "model-0000.params").stat().st_size > 1_000_000
    assert '"model": "resnet20"' in (models / "config.json").read_text()


@mxnet_g.NEEDED
def test_the_bound_of_ssp_is_that_of_the_original() -> None:
    """A worker may start a step while it is less than so many ahead there, at most so many here."""
    there, here = (
        re.search(r"dist_ssync --staleness (\d+)", path.read_text(encoding="utf-8"))
        for path in (mxnet_g.EXAMPLE / SCRIPTS["ssp"].name, SCRIPTS["ssp"])
    )
    assert there is not None and here is not None
    assert int(here[1]) == int(there[1]) - 1


@pytest.mark.parametrize("scheme", ["ssp", "gsp"])
def test_short(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "groups").write_text("127.0.0.1\n127.0.0.1\n")
    (tmp_path / "data_sharding").write_text("0 0.25\n0.25 1\n")
    result = run(tmp_path, scheme, *SHORT)
    assert_has_trained(tmp_path)
    config = (tmp_path / "models" / "synthetic-resnet20" / "config.json").read_text()
    assert f'"kv_store": "dist_{"ssync" if scheme == "ssp" else "gsync"}"' in config
    assert '"batch_size": 10' in config and '"wd": 0.0001' in config
    assert ("launch: --groups groups" in result.stderr) == (scheme == "gsp")


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, "-n 3 -s 2"),
        ({"WORKERS": "4", "SERVERS": "1"}, "-n 4 -s 1"),
    ],
)
def test_a_file_of_hosts_is_counted_as_the_launcher_reads_it(
    variables: Any, job: str, tmp_path: Path
) -> None:
    """A comment, an empty line and line ends of Windows are no workers; slots are."""
    lines = b"\xef\xbb\xbf# two\r\n\r\n127.0.0.1 slots=2\r\n127.0.0.2:22\r\n"
    (tmp_path / "hosts").write_bytes(lines)
    script = f'source {ROOT}/examples/common.sh && echo "${{job[@]}}"'
    result = finish("bash", "-c", script, folder=tmp_path, HOSTFILE="hosts", **variables)
    assert result.stdout == f"-H hosts --launcher ssh {job}\n"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"HOSTFILE": "\x1b[31mx"}, "error: HOSTFILE=' [31mx' cannot be read; give a file with"),
        ({"WORKERS": "two"}, "error: WORKERS='two' is not a number of processes; give one from 1"),
        ({"DATA_DIR": "none"}, "none/data_batch_1 does not exist; --data-dir needs data_batch_1"),
    ],
)
def test_mistakes_are_one_line(variables: dict[str, str], message: str, tmp_path: Path) -> None:
    assert message in run(tmp_path, "bsp", status=2, **variables).stderr


@pytest.mark.grouping
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheme", ["bsp", "asp", "ssp", "gsp"])
def test_as_typed(scheme: str, tmp_path: Path) -> None:
    result = run(tmp_path, scheme, seconds=1700)
    assert_has_trained(tmp_path)
    if scheme == "gsp":
        # The workers were measured first.
        assert re.search(r"^group 0: worker \d on 127\.0\.0\.1 \d+ images/s", result.stdout, re.M)
        assert (tmp_path / "groups").read_text().count("127.0.0.1") == 2
