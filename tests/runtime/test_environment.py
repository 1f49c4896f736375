"""Variables for the libraries, the processors that they share, and launchers that are refused."""

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from runtime import environment, launchers, processors
from runtime.environment import settings
from runtime.errors import ConfigError
from runtime.processors import available
from tests.support.launch import finish

OURS = ("PMI", "SLURM", "OMPI_", "HOROVOD_", "GROUPING_", "OMP_NUM_", "PROGRESS", "DNNL_MAX_")
STALL = ("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
OPENCV = ("OPENCV_IO_MAX_IMAGE_PIXELS", "OPENCV_LOG_LEVEL", "OPENCV_IPP")
TILES, VECTORS = "AMX", "AVX-512"
CORE = "avx512f avx512bw avx512vl avx512dq"
GLOO = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "2", "NIC": "eth1"}


@pytest.fixture(autouse=True)
def untouched_environment(monkeypatch: pytest.MonkeyPatch):
    """Start each test with none of the variables set, on 16 processors; restore all afterwards."""
    ours = {name for name in os.environ if name.startswith(OURS)} | {*settings()}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    monkeypatch.setattr(os, "environ", kept)
    monkeypatch.setattr("runtime.processors.available", lambda: 16)
    monkeypatch.setattr("runtime.errors.StopRequest.listen", lambda _: None)
    forget = processors.request_tiles.cache_clear
    forget()
    yield
    forget()


@pytest.mark.parametrize("prefix", ["HOROVOD_", "OMPI_COMM_WORLD_"])
def test_ranks_share_processors_and_gloo_is_for_a_single_process(monkeypatch, prefix) -> None:
    alone = settings()
    assert alone["HOROVOD_CONTROLLER"] == alone["HOROVOD_CPU_OPERATIONS"] == "gloo"
    monkeypatch.setenv(f"{prefix}RANK", "0")
    assert set(settings()) == set(alone) - {"HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"}
    assert environment.visible_threads() == 16
    for ranks, share in ((1, 16), (2, 8), (3, 5), (16, 1), (40, 1)):
        monkeypatch.setenv(f"{prefix}LOCAL_SIZE", str(ranks))
        assert environment.visible_threads() == share
        assert settings()["OMP_NUM_THREADS"] == settings()["NUMBA_NUM_THREADS"] == str(share)


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"OMP_NUM_THREADS": "3", "MXNET_SUBGRAPH_BACKEND": "ONEDNN"}
    os.environ.update(given)
    environment.prepare()
    assert environment.visible_threads() == 3 and os.environ["NUMBA_NUM_THREADS"] == "3"
    assert {name: os.environ[name] for name in settings()} == {**settings(), **given}
    for wrong in ("0", "-1", "two", ""):
        monkeypatch.setenv("OMP_NUM_THREADS", wrong)
        with pytest.raises(ConfigError, match=f"OMP_NUM_THREADS='{wrong}' is not a positive"):
            environment.prepare()


@pytest.mark.parametrize(("package", "visible", "for_gpus"), [
    ("mxnet_cu112-1.9.1", None, True),
    ("mxnet_cu112-1.9.1", "-1", False),
    ("mxnet-1.9.1", "0", False),
    (None, None, False),
])  # fmt: skip
def test_the_package_tells_that_it_is_for_gpus(package, visible, for_gpus, tmp_path, monkeypatch):
    (tmp_path / f"{package}.dist-info").mkdir()
    found = SimpleNamespace(origin=str(tmp_path / "mxnet" / "__init__.py")) if package else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ.update({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert environment.computes_on_gpus() == for_gpus


def test_the_printed_lines_give_a_shell_the_same_values() -> None:
    """And no heavy library is imported for them."""
    given: dict[str, Any]
    given = {"MXNET_SUBGRAPH_BACKEND": "with space; $HOME", "OMP_NUM_THREADS": "3"}
    os.environ.update(given)
    code = "import sys; from runtime.environment import main; main()\n"
    code += "assert not {'mxnet', 'horovod', 'numba'} & {*sys.modules}"
    lines = finish(sys.executable, "-c", code, **given).stdout
    names = " ".join(f'"${name}"' for name in settings())
    shell = ["bash", "-c", f"{lines}\nprintf '%s\\n' {names}"]
    environment.prepare()
    assert subprocess.check_output(shell, text=True).splitlines() == [
        os.environ[name] for name in settings()
    ]


@pytest.mark.parametrize(("prepare", "argument", "names", "expected"), [
    (launchers.begin_rank, 4, STALL, ["1", "0"]),
    (launchers.begin_rank, 7200, STALL, ["60", "0"]),
    (environment.prepare_opencv, 99, OPENCV, ["99", "OFF", "sse42"]),
    (environment.prepare_threads, 3, ("OMP_NUM_THREADS",), ["5"]),
])  # fmt: skip
def test_libraries_get_variables_that_the_user_has_not_set(prepare, argument, names, expected):
    for name in names:
        os.environ.pop(name, None)
    prepare(argument)
    assert [os.environ[name] for name in names] == expected
    os.environ.update(dict.fromkeys(names, "7"))
    prepare(argument)
    assert [os.environ[name] for name in names] == ["7"] * len(names)


@pytest.mark.parametrize(("tiles", "vectors", "avx512", "limit", "unit", "block"), [
    (True, True, True, None, TILES, 16),
    # For oneDNN that is all but the tiles.
    (True, True, True, "ALL", VECTORS, 16),
    (True, True, True, "AVX512_CORE_VNNI", None, 16),
    (True, True, True, "AVX2", None, 8),
    (False, False, False, None, None, 8),
])  # fmt: skip
def test_the_unit_and_block_of_bfloat16(
    tiles, vectors, avx512, limit, unit, block, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("runtime.processors.request_tiles", lambda: tiles)
    monkeypatch.setattr("runtime.processors.has_bfloat16_vectors", lambda: vectors)
    monkeypatch.setattr("runtime.processors.has_avx512", lambda: avx512)
    assert ("DNNL_MAX_CPU_ISA" in settings()) == tiles
    os.environ.update({} if limit is None else {"DNNL_MAX_CPU_ISA": limit})
    assert (environment.bfloat16_unit(), environment.channel_block()) == (unit, block)
    assert environment.usable_dtype("--dtype", "float32") == "float32" and not caplog.records
    usable = environment.usable_dtype("--dtype", "bfloat16")
    assert usable == ("bfloat16" if unit else "float32")
    assert ("--dtype bfloat16: this processor has neither" in caplog.text) is (unit is None)


@pytest.mark.parametrize(("given", "is_gpu", "expected"), [
    ({"OMP_NUM_THREADS": "2"}, False, (2, 2, "1")),
    # Two of eight lanes' threads each; twenty do not divide.
    ({"OMP_NUM_THREADS": "20"}, False, (8, 16, "2")),
    # Others set MXNet's threads for a training, where operators follow each other.
    ({"OMP_NUM_THREADS": "3", "MXNET_CPU_WORKER_NTHREADS": "2"}, False, (1, 3, "3")),
    ({"OMP_NUM_THREADS": "3"}, True, (1, 3, "3")),
])  # fmt: skip
def test_lanes_divide_the_threads(given, is_gpu, expected, monkeypatch) -> None:
    os.environ.update(given)
    monkeypatch.setattr(environment, "computes_on_gpus", lambda: is_gpu)
    # After MXNet nothing changes: its engine has read the variables, and children inherit them.
    monkeypatch.setitem(sys.modules, "mxnet", object())
    environment.prepare_lanes()
    assert environment.lanes() == 1
    monkeypatch.delitem(sys.modules, "mxnet")
    environment.prepare_lanes()
    environment.prepare()
    found = environment.lanes(), environment.visible_threads(), os.environ["OMP_NUM_THREADS"]
    assert found == expected
    assert os.environ["NUMBA_NUM_THREADS"] == expected[2]


@pytest.mark.parametrize(("files", "quota", "count"), [
    ({"cpu.max": "150000 100000"}, 1.5, 2),
    ({"cpu.max": "20000 100000"}, 0.2, 1),
    ({"cpu.max": "max 100000"}, None, 4),
    ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2, 2),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "1", "cpu.max": "9 1"}, 9, 4),
])  # fmt: skip
def test_the_smaller_of_a_containers_quota_and_binding(monkeypatch, tmp_path, files, quota, count):
    assert processors.cgroup_quota(tmp_path) is None
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    found = processors.cgroup_quota(tmp_path)
    assert found == quota
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    monkeypatch.setattr(processors, "cgroup_quota", lambda: found)
    assert available() == count


@pytest.mark.parametrize(("flags", "tiles", "avx512", "vectors"), [
    ("fpu sse avx512f amx_bf16 amx_tile amx_int8", True, False, False),
    (f"{CORE} avx512_bf16", False, True, True),
    (f"{CORE} avx512_vnni", False, True, False),
    # A hypervisor may hide what oneDNN asks for with it.
    ("avx512f avx512bw avx512vl avx512_bf16", False, False, False),
])  # fmt: skip
def test_what_the_processors_flags_say(flags, tiles, avx512, vectors, tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: amx_tile amx_bf16\n")
    found = processors._flags(cpuinfo)
    assert processors._flags(tmp_path / "missing") == set()
    monkeypatch.setattr(processors, "_flags", lambda: found)
    assert (processors.has_avx512(), processors.has_bfloat16_vectors()) == (avx512, vectors)
    # oneDNN may use only tiles that were granted.
    for status in (-1, 0):
        processors.request_tiles.cache_clear()
        libc = Mock(**{"syscall.return_value": status})
        monkeypatch.setattr(processors.ctypes, "CDLL", Mock(return_value=libc))
        assert ("DNNL_MAX_CPU_ISA" in environment.settings()) == (tiles and status == 0)


@pytest.mark.parametrize(("variables", "words"), [
    ({"PMI_SIZE": "4"}, "PMI_SIZE=4: .* mpirun -np 4 .* env -u PMI_SIZE "),
    ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8"}, "SLURM_STEP_NUM_TASKS=2"),
    # A single task, also within an allocation for many, as of an interactive shell.
    ({}, None),
    ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, None),
    ({"SLURM_NTASKS": "8", "OMPI_COMM_WORLD_RANK": "3"}, None),
])  # fmt: skip
def test_tasks_that_cannot_connect_are_refused(variables: dict[str, str], words) -> None:
    os.environ.update(variables)
    with pytest.raises(ConfigError, match=f"^.*{words}.*$") if words else nullcontext():
        launchers.refuse_foreign_launcher()


@pytest.mark.parametrize(("name", "others", "message"), [
    ("host1", GLOO, "^NIC=eth1: .* name host1, 10.0.0.1, which is not"),
    ("host1", {**GLOO, "NIC": "eth0"}, None),
    ("host1", {**GLOO, "HOROVOD_LOCAL_SIZE": "4"}, None),
    ("none", {**GLOO, "HOROVOD_LOCAL_SIZE": "4"}, "^the name of this host, none, has no addr"),
    ("none", {**GLOO, "HOROVOD_SIZE": "1"}, None),
])  # fmt: skip
def test_gloo_needs_an_address_of_the_hosts_name(monkeypatch, name, others, message) -> None:
    def known(name: str) -> str:
        if name != "host1":
            raise OSError("Name or service not known")
        return "10.0.0.1"

    addresses = {"eth0": "10.0.0.1", "eth1": "10.1.0.1"}
    interfaces = {name: [SimpleNamespace(address=one)] for name, one in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(socket, "gethostbyname", known)
    os.environ.update(others)
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        launchers.refuse_hosts_name()
