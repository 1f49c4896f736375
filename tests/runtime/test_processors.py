from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest

from runtime import environment, processors

V1 = "32 31 0:29 {top} {mount} rw,relatime - cgroup cgroup rw,cpu,cpuacct"
V2 = "29 23 0:26 {top} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
HUNDRED = "100000"


def quota(root: Path, groups: str, mounts: list[str], files: dict[str, str]) -> Optional[float]:
    """The quota of a made-up machine, of which two lines are not of control groups."""
    own = root / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text(groups)
    (own / "mountinfo").write_text("\n".join(["short", "a b c d e - f", *mounts]) + "\n")
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content + "\n")
    return processors.cgroup_quota(root)


def of_v1(folder: str, quota: str) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": HUNDRED}


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        # Of all groups that contain the process, the smallest counts.
        (
            "0::/a/b\n",
            [V2.format(top="/", mount="/cg")],
            {
                "cg/a/b/cpu.max": f"400000 {HUNDRED}",
                "cg/a/cpu.max": f"150000 {HUNDRED}",
                "cg/other/cpu.max": f"10000 {HUNDRED}",
                "cg/cpu.max": f"200000 {HUNDRED}",
            },
            1.5,
        ),
        # A container that sees its own group as the outermost.
        (
            "4:cpu,cpuacct:/docker/77\n3:memory:/docker/77\n0::/\n",
            [V1.format(top="/docker/77", mount="/sys/fs/cgroup/cpu\\040time")],
            of_v1("sys/fs/cgroup/cpu time", "200000"),
            2,
        ),
        (
            "4:cpu,cpuacct:/batch/job\n",
            [V1.format(top="/", mount="/cg")],
            {**of_v1("cg/batch/job", "-1"), **of_v1("cg/batch", "300000")},
            3,
        ),
        # Both versions at once.
        (
            "4:cpu:/\n0::/\n",
            [V1.format(top="/", mount="/one"), V2.format(top="/", mount="/two")],
            {**of_v1("one", "500000"), "two/cpu.max": f"700000 {HUNDRED}"},
            5,
        ),
        # A group outside of what is mounted counts as the outermost.
        *(
            (
                f"0::{group}\n",
                [V2.format(top="/top", mount="/cg")],
                {"cg/cpu.max": f"200000 {HUNDRED}"},
                2,
            )
            for group in ("/elsewhere/b", "/top/../../b")
        ),
        # What is malformed limits nothing.
        *(
            ("0::/\n", [V2.format(top="/", mount="/cg")], {"cg/cpu.max": content}, None)
            for content in (f"max {HUNDRED}", "", "1", f"0 {HUNDRED}", "5 0", "x y")
        ),
    ],
)
def test_the_quota_of_control_groups(tmp_path, groups, mounts, files, expected) -> None:
    assert processors.cgroup_quota(tmp_path) is None
    assert quota(tmp_path, groups, mounts, files) == expected


@pytest.mark.parametrize(
    ("bound", "limit", "count"),
    [(64, 2.0, 2), (64, 1.5, 2), (64, 0.2, 1), (4, 9.0, 4), (4, None, 4)],
)
def test_the_smaller_of_quota_and_binding(monkeypatch, bound, limit, count) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(bound)))
    monkeypatch.setattr(processors, "cgroup_quota", lambda: limit)
    assert processors.available() == count


@pytest.fixture(autouse=True)
def forget_granted_tiles() -> Iterator[None]:
    processors.request_tiles.cache_clear()
    yield
    processors.request_tiles.cache_clear()


CORE = "avx512f avx512bw avx512vl avx512dq"


@pytest.mark.parametrize(
    ("flags", "tiles", "avx512", "vectors"),
    [
        ("fpu sse avx512f amx_bf16 amx_tile amx_int8", True, False, False),
        ("fpu sse avx512f amx_tile amx_int8", False, False, False),
        (f"{CORE} avx512_bf16", False, True, True),
        (f"{CORE} avx512_vnni", False, True, False),
        # A hypervisor may hide what oneDNN asks for with it.
        ("avx512f avx512bw avx512vl avx512_bf16", False, False, False),
        ("avx2 avx_vnni", False, False, False),
    ],
)
def test_what_the_processors_flags_say(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: str,
    tiles: bool,
    avx512: bool,
    vectors: bool,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: amx_tile amx_bf16\n")
    assert processors._has_tiles(cpuinfo) is tiles
    assert not processors._has_tiles(tmp_path / "missing")
    found = processors._flags(cpuinfo)
    monkeypatch.setattr(processors, "_flags", lambda: found)
    assert (processors.has_avx512(), processors.has_bfloat16_vectors()) == (avx512, vectors)
    monkeypatch.undo()
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not processors._has_tiles(cpuinfo)


@pytest.mark.parametrize(("has_tiles", "status"), [(True, 0), (True, -1), (False, 0)])
def test_onednn_may_use_only_tiles_that_were_granted(monkeypatch, has_tiles, status) -> None:
    monkeypatch.setattr(processors, "_has_tiles", lambda: has_tiles)
    monkeypatch.setattr(processors, "_request_tiles_from_kernel", lambda: status)
    assert ("DNNL_MAX_CPU_ISA" in environment.settings()) == (has_tiles and status == 0)


def test_the_kernel_refuses_a_feature_that_no_processor_has(monkeypatch) -> None:
    """The system call itself: feature 63 does not exist, on a kernel that knows tiles or not."""
    monkeypatch.setattr(processors, "_TILE_DATA", 63)
    assert processors._request_tiles_from_kernel() == -1


def test_the_name_of_the_processor(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A processor: fast\nmodel name\t: another\n")
    assert processors.model(info) == "A processor: fast"
    assert processors.model(tmp_path / "missing") == os.uname().machine
