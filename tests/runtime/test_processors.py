from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest

from runtime import environment, processors

V1 = "32 31 0:29 {top} {mount} rw,relatime - cgroup cgroup rw,cpu,cpuacct"
V2 = "29 23 0:26 {top} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


class Tree:
    """A made-up machine: what /proc/self and the folders of its control groups hold."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)

    def describe(self, groups: str, *mounts: str) -> None:
        (self.root / "proc/self/cgroup").write_text(groups)
        lines = ["23 28 0:22 / /proc rw - proc proc rw", *mounts]
        (self.root / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")

    def group(self, folder: str, **files: str) -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (self.root / folder / name.replace("__", ".")).write_text(content + "\n")

    def quota(self) -> Optional[float]:
        return processors.cgroup_quota(self.root)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_version_2_the_smallest_quota_of_all_that_contain_the_group_counts(tree: Tree) -> None:
    tree.describe("0::/a/b\n", V2.format(top="/", mount="/sys/fs/cgroup"))
    tree.group("sys/fs/cgroup/a/b", cpu__max="400000 100000")
    assert tree.quota() == 4
    tree.group("sys/fs/cgroup/a", cpu__max="150000 100000")
    assert tree.quota() == 1.5
    tree.group("sys/fs/cgroup/other", cpu__max="10000 100000")
    assert tree.quota() == 1.5
    tree.group("sys/fs/cgroup", cpu__max="50000 50000")
    assert tree.quota() == 1


def test_version_1_in_a_container_that_sees_its_own_group_as_the_outermost(tree: Tree) -> None:
    groups = "4:cpu,cpuacct:/docker/77\n3:memory:/docker/77\n0::/\n"
    tree.describe(groups, V1.format(top="/docker/77", mount="/sys/fs/cgroup/cpu\\040time"))
    tree.group("sys/fs/cgroup/cpu time", cpu__cfs_quota_us="200000", cpu__cfs_period_us="100000")
    assert tree.quota() == 2


def test_version_1_with_the_whole_tree_visible(tree: Tree) -> None:
    tree.describe("4:cpu,cpuacct:/batch/job\n", V1.format(top="/", mount="/cg"))
    tree.group("cg/batch/job", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    tree.group("cg/batch", cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    assert tree.quota() == 3


def test_both_versions_at_once(tree: Tree) -> None:
    mounts = V1.format(top="/", mount="/one"), V2.format(top="/", mount="/two")
    tree.describe("4:cpu:/\n0::/\n", *mounts)
    tree.group("one", cpu__cfs_quota_us="500000", cpu__cfs_period_us="100000")
    tree.group("two", cpu__max="700000 100000")
    assert tree.quota() == 5


@pytest.mark.parametrize("group", ["/elsewhere/b", "/top/../../b"])
def test_a_group_outside_of_what_is_mounted_counts_as_the_outermost(tree: Tree, group: str) -> None:
    tree.describe(f"0::{group}\n", V2.format(top="/top", mount="/cg"))
    tree.group("cg", cpu__max="200000 100000")
    assert tree.quota() == 2


@pytest.mark.parametrize("content", ["max 100000", "", "1", "0 100000", "5 0", "x y"])
def test_a_malformed_quota_limits_nothing(tree: Tree, content: str) -> None:
    tree.describe("0::/\n", V2.format(top="/", mount="/cg"), "short", "a b c d e - f")
    tree.group("cg", cpu__max=content)
    assert tree.quota() is None


def test_a_machine_without_control_groups(tree: Tree) -> None:
    assert tree.quota() is None


@pytest.mark.parametrize(
    ("bound", "quota", "count"),
    [(64, 2.0, 2), (64, 1.5, 2), (64, 0.2, 1), (4, 9.0, 4), (4, None, 4)],
)
def test_the_smaller_of_quota_and_binding(
    monkeypatch: pytest.MonkeyPatch, bound: int, quota: Optional[float], count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(bound)))
    monkeypatch.setattr(processors, "cgroup_quota", lambda: quota)
    assert processors.available() == count


@pytest.fixture(autouse=True)
def forget_granted_tiles() -> Iterator[None]:
    processors.request_tiles.cache_clear()
    yield
    processors.request_tiles.cache_clear()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse avx512f amx_bf16 amx_tile amx_int8", True),
        ("fpu sse avx512f amx_tile amx_int8", False),
        ("fpu sse avx512f avx512_bf16", False),
    ],
)
def test_the_processors_flags_say_whether_it_has_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, expected: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: amx_tile amx_bf16\n")
    assert processors._has_tiles(cpuinfo) is expected
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not processors._has_tiles(cpuinfo)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx512f avx512bw avx512vl avx512dq avx512_bf16", True),
        ("avx512f avx512bw avx512vl avx512dq avx512_vnni", False),
        ("avx2 avx_vnni", False),
        # A hypervisor may hide what oneDNN asks for beside it.
        ("avx512f avx512bw avx512vl avx512_bf16", False),
    ],
)
def test_the_processors_flags_say_whether_vectors_multiply_bfloat16(
    monkeypatch: pytest.MonkeyPatch, flags: str, expected: bool
) -> None:
    monkeypatch.setattr(processors, "_flags", lambda: set(flags.split()))
    assert processors.has_bfloat16_vectors() is expected


def test_a_machine_without_cpuinfo_has_no_tiles(tmp_path: Path) -> None:
    assert not processors._has_tiles(tmp_path / "cpuinfo")


@pytest.mark.parametrize(("has_tiles", "status"), [(True, 0), (True, -1), (False, 0)])
def test_onednn_may_use_only_tiles_that_were_granted(
    monkeypatch: pytest.MonkeyPatch, has_tiles: bool, status: int
) -> None:
    monkeypatch.setattr(processors, "_has_tiles", lambda: has_tiles)
    monkeypatch.setattr(processors, "_request_tiles_from_kernel", lambda: status)
    names = {setting.name for setting in environment.settings()}
    assert ("DNNL_MAX_CPU_ISA" in names) == (has_tiles and status == 0)


def test_the_kernel_refuses_a_feature_that_no_processor_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system call itself: feature 63 does not exist, on a kernel that knows tiles or not."""
    monkeypatch.setattr(processors, "_TILE_DATA", 63)
    assert processors._request_tiles_from_kernel() == -1


def test_the_name_of_the_processor(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A processor: fast\nmodel name\t: another\n")
    assert processors.model(info) == "A processor: fast"
    assert processors.model(tmp_path / "missing") == os.uname().machine
