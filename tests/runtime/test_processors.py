from __future__ import annotations

import os
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from runtime import environment, processors

V2 = "sys/fs/cgroup/cpu.max"


def v1(folder: str, quota: int) -> dict[str, str]:
    place = f"sys/fs/cgroup/cpu/{folder}"
    return {f"{place}/cpu.cfs_quota_us": str(quota), f"{place}/cpu.cfs_period_us": "100000"}


def v2(folder: str, processors: float) -> dict[str, str]:
    return {f"sys/fs/cgroup/{folder}cpu.max": f"{processors * 100_000:.0f} 100000"}


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        # Of all groups that contain the process, the smallest counts.
        ("0::/a/b", {**v2("a/b/", 4), **v2("a/", 1.5), **v2("other/", 0.1), **v2("", 2)}, 1.5),
        # A container sees its own group as the outermost.
        ("4:cpu,cpuacct:/docker/77\n3:memory:/a\n0::/", {**v1("", 200_000), **v1("a", 100)}, 2),
        ("short\n0::/../../b", v2("", 2), 2),
        ("4:cpu:/batch/job", {**v1("batch/job", -1), **v1("batch", 300_000)}, 3),
        # Both versions at once.
        ("4:cpu:/\n0::/", {**v1("", 500_000), **v2("", 7)}, 5),
        # What is malformed limits nothing.
        *(("0::/", {V2: text}, None) for text in ("max 100000", "", "1", "0 100000", "5 0", "x y")),
    ],
)
def test_the_quota_of_control_groups(tmp_path, groups, files, expected) -> None:
    assert processors.cgroup_quota(tmp_path) is None
    for name, content in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert processors.cgroup_quota(tmp_path) == expected


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
def test_what_the_processors_flags_say(flags, tiles, avx512, vectors, tmp_path, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: amx_tile amx_bf16\n")
    found = processors._flags(cpuinfo)
    assert processors._flags(tmp_path / "missing") == set()
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert processors._flags(cpuinfo) == set()
    monkeypatch.setattr(processors, "_flags", lambda: found)
    assert (processors.has_avx512(), processors.has_bfloat16_vectors()) == (avx512, vectors)
    # oneDNN may use only tiles that were granted.
    for status in (-1, 0):
        processors.request_tiles.cache_clear()
        monkeypatch.setattr(processors, "_request_tiles_from_kernel", Mock(return_value=status))
        assert ("DNNL_MAX_CPU_ISA" in environment.settings()) == (tiles and status == 0)


def test_the_kernel_is_asked_for_the_tiles_and_refuses_what_no_processor_has(monkeypatch) -> None:
    """Feature 63 does not exist, on a kernel that knows tiles or not."""
    with monkeypatch.context() as patch:
        patch.setattr(processors, "_TILE_DATA", 63)
        assert processors._request_tiles_from_kernel() == -1
    library = Mock()
    library.syscall.return_value = 0
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: library)
    assert processors._request_tiles_from_kernel() == 0
    library.syscall.assert_called_once_with(158, 0x1023, 18)


def test_the_name_of_the_processor(tmp_path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A processor: fast\nmodel name\t: another\n")
    assert processors.model(info) == "A processor: fast"
    assert processors.model(tmp_path / "missing") == os.uname().machine
