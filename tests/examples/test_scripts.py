"""The scripts of ``examples/``, as they are typed: short with further options, long without."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import mxnet_g
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {path.name.partition("_")[0]: path for path in (ROOT / "examples").glob("?sp_*.sh")}
SHORT = "--num-images 240 --batch-size 10".split()
EACH = pytest.mark.parametrize("scheme", ["bsp", "asp", "ssp", "gsp"])


def run(
    folder: Path, scheme: str, *options: str, seconds: float = 280, variables: Any = ()
) -> subprocess.CompletedProcess[str]:
    """Type a script in a folder, without an active environment but with its Python in the path."""
    environment = {
        name: value for name, value in clean_environment().items() if name != "VIRTUAL_ENV"
    }
    path = f"{Path(sys.prefix) / 'bin'}:{environment['PATH']}"
    return subprocess.run(
        ["bash", str(SCRIPTS[scheme]), *options],
        cwd=folder, env={**environment, "PATH": path, "VIRTUAL_ENV": sys.prefix, **dict(variables)},
        capture_output=True, text=True, check=False, timeout=seconds,
    )  # fmt: skip


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


@EACH
def test_short(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "groups").write_text("127.0.0.1\n127.0.0.1\n")
    (tmp_path / "data_sharding").write_text("0 0.25\n0.25 1\n")
    result = run(tmp_path, scheme, *SHORT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert_has_trained(tmp_path)
    config = (tmp_path / "models" / "synthetic-resnet20" / "config.json").read_text()
    stores = {"bsp": "dist_sync", "asp": "dist_async", "ssp": "dist_ssync", "gsp": "dist_gsync"}
    assert f'"kv_store": "{stores[scheme]}"' in config
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
    variables: dict[str, str], job: str, tmp_path: Path
) -> None:
    """A comment, an empty line and line ends of Windows are no workers; slots are."""
    lines = b"\xef\xbb\xbf# two\r\n\r\n127.0.0.1 slots=2\r\n127.0.0.2:22\r\n"
    (tmp_path / "hosts").write_bytes(lines)
    result = subprocess.run(
        ["bash", "-c", f'source {ROOT}/examples/common.sh && echo "${{job[@]}}"'],
        cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**clean_environment(), "HOSTFILE": "hosts", **variables},
    )  # fmt: skip
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
    result = run(tmp_path, "bsp", variables=variables)
    assert result.returncode == 2 and message in result.stderr


@pytest.mark.grouping
@pytest.mark.timeout(1800)
@EACH
def test_as_typed(scheme: str, tmp_path: Path) -> None:
    result = run(tmp_path, scheme, seconds=1700)
    assert result.returncode == 0, result.stdout + result.stderr
    assert_has_trained(tmp_path)
    if scheme == "gsp":
        # The workers were measured first.
        assert re.search(r"^group 0: worker \d on 127\.0\.0\.1 \d+ images/s", result.stdout, re.M)
        assert (tmp_path / "groups").read_text().count("127.0.0.1") == 2
