"""Tiles are used where the processor has them and the kernel grants them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime import amx, environment


@pytest.fixture(autouse=True)
def forget_the_answer():
    amx.request_tiles.cache_clear()
    yield
    amx.request_tiles.cache_clear()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse avx512f amx_bf16 amx_tile amx_int8", True),
        ("fpu sse avx512f amx_tile amx_int8", False),
        ("fpu sse avx512f avx512_bf16", False),
    ],
)
def test_the_processor_is_asked_by_its_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, expected: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: amx_tile amx_bf16\n")
    assert amx._processor_has_tiles(cpuinfo) is expected
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not amx._processor_has_tiles(cpuinfo)


def test_a_machine_without_cpuinfo_has_no_tiles(tmp_path: Path) -> None:
    assert not amx._processor_has_tiles(tmp_path / "cpuinfo")


@pytest.mark.parametrize(("has_tiles", "status"), [(True, 0), (True, -1), (False, 0)])
def test_onednn_is_told_only_of_tiles_that_were_granted(
    monkeypatch: pytest.MonkeyPatch, has_tiles: bool, status: int
) -> None:
    monkeypatch.setattr(amx, "_processor_has_tiles", lambda: has_tiles)
    monkeypatch.setattr(amx, "_ask_kernel", lambda: status)
    names = {setting.name for setting in environment.settings()}
    assert ("DNNL_MAX_CPU_ISA" in names) == (has_tiles and status == 0)


def test_the_kernel_answers_for_a_feature_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system call itself: feature 63 does not exist, on a kernel that knows tiles or not."""
    monkeypatch.setattr(amx, "_TILE_DATA", 63)
    assert amx._ask_kernel() == -1
