from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from runtime import environment
from runtime.environment import Bfloat16Unit, settings
from runtime.errors import ConfigError
from tests.support.launch import finish

LOCAL_SIZE_NAMES = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
RANK_NAMES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")


@pytest.fixture(autouse=True)
def untouched_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test with none of the variables set, on 16 processors; restore all afterwards."""
    ours = {"OMP_NUM_THREADS", "PROGRESS", "GROUPING_WORKER", "DNNL_MAX_CPU_ISA", *settings()}
    ours |= {*LOCAL_SIZE_NAMES, *RANK_NAMES}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    monkeypatch.setattr(os, "environ", kept)
    monkeypatch.setattr("runtime.processors.available", lambda: 16)


@pytest.mark.parametrize("name", LOCAL_SIZE_NAMES)
def test_the_ranks_of_a_host_share_its_processors(monkeypatch, name) -> None:
    assert environment.visible_threads() == 16
    for ranks, share in ((1, 16), (2, 8), (3, 5), (16, 1), (40, 1)):
        monkeypatch.setenv(name, str(ranks))
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


@pytest.mark.parametrize("name", RANK_NAMES)
def test_gloo_is_chosen_only_for_a_single_process(monkeypatch, name) -> None:
    alone = settings()
    assert alone["HOROVOD_CONTROLLER"] == alone["HOROVOD_CPU_OPERATIONS"] == "gloo"
    monkeypatch.setenv(name, "0")
    assert set(settings()) == set(alone) - {"HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"}


@pytest.mark.parametrize(
    ("threads", "gpus", "cycle"),
    [("1", False, "2"), ("2", False, "2"), ("3", False, None), ("2", True, "1"), ("3", True, "1")],
)
def test_horovods_cycles_and_buffers(monkeypatch, threads, gpus, cycle) -> None:
    """It polls less often where few threads compute; a buffer for large arrays is for GPUs."""
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr(environment, "computes_on_gpus", lambda: gpus)
    assert settings().get("HOROVOD_CYCLE_TIME") == cycle
    assert settings().get("HOROVOD_FUSION_THRESHOLD") == (None if gpus else "1048576")
    assert ("MXNET_OPTIMIZER_AGGREGATION_SIZE" in settings()) == gpus


@pytest.mark.parametrize(
    ("package", "visible", "for_gpus"),
    [
        ("mxnet_cu112-1.9.1", None, True),
        ("mxnet_cu112-1.9.1", "1,3", True),
        ("mxnet_cu112-1.9.1", "", False),
        ("mxnet_cu112-1.9.1", "-1", False),
        ("mxnet-1.9.1", "0", False),
        (None, None, False),
    ],
)
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


STALL = ("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
OPENCV = ("OPENCV_IO_MAX_IMAGE_PIXELS", "OPENCV_LOG_LEVEL", "OPENCV_IPP")


@pytest.mark.parametrize(
    ("prepare", "argument", "names", "expected"),
    [
        (environment.prepare_stall_check, 4, STALL, ["1", "0"]),
        (environment.prepare_stall_check, 300, STALL, ["30", "0"]),
        (environment.prepare_stall_check, 7200, STALL, ["60", "0"]),
        (environment.prepare_opencv, 99, OPENCV, ["99", "OFF", "sse42"]),
        (environment.prepare_threads, 3, ("OMP_NUM_THREADS",), ["5"]),
        (environment.prepare_threads, 17, ("OMP_NUM_THREADS",), ["1"]),
    ],
)
def test_libraries_get_their_variables_unless_the_user_has_set_them(
    prepare, argument, names, expected
) -> None:
    for name in names:
        os.environ.pop(name, None)
    prepare(argument)
    assert [os.environ[name] for name in names] == expected
    os.environ.update(dict.fromkeys(names, "7"))
    prepare(argument)
    assert [os.environ[name] for name in names] == ["7"] * len(names)


def test_a_variable_is_unset_within_the_context_alone() -> None:
    os.environ["DMLC_ROLE"] = "server"
    with pytest.raises(KeyError), environment.without("DMLC_ROLE"):
        assert "DMLC_ROLE" not in environment.variables()
        raise KeyError
    assert environment.variables()["DMLC_ROLE"] == "server"


@pytest.mark.parametrize(
    ("variables", "allowed"),
    [({}, True), ({"HOROVOD_RANK": "0"}, False), ({"HOROVOD_RANK": "0", "PROGRESS": "bar"}, True)],
)
def test_a_launched_rank_draws_a_bar_only_if_run_sh_has_a_terminal(variables, allowed) -> None:
    os.environ.update(variables)
    assert environment.allows_progress_bar() == allowed


TILES, VECTORS = Bfloat16Unit.TILES, Bfloat16Unit.VECTORS


@pytest.mark.parametrize(
    ("has_tiles", "has_vectors", "has_avx512", "limit", "unit", "block"),
    [
        (True, True, True, None, TILES, 16),
        (True, True, True, "AVX512_CORE_AMX", TILES, 16),
        # For oneDNN that is all but the tiles, and so is what it does not know.
        (True, True, True, "ALL", VECTORS, 16),
        (True, True, True, "AVX512_CORE_BF16", VECTORS, 16),
        (True, True, True, "AVX512_CORE_VNNI", None, 16),
        (True, True, True, "AVX2", None, 8),
        (False, True, True, None, VECTORS, 16),
        (False, True, True, "AVX512_CORE_AMX", VECTORS, 16),
        (False, False, True, "AVX512_CORE", None, 16),
        (False, False, False, None, None, 8),
    ],
)
def test_what_multiplies_bfloat16_and_how_many_channels_are_computed_at_once(
    has_tiles, has_vectors, has_avx512, limit, unit, block, monkeypatch
) -> None:
    monkeypatch.setattr("runtime.processors.request_tiles", lambda: has_tiles)
    monkeypatch.setattr("runtime.processors.has_bfloat16_vectors", lambda: has_vectors)
    monkeypatch.setattr("runtime.processors.has_avx512", lambda: has_avx512)
    assert ("DNNL_MAX_CPU_ISA" in settings()) == has_tiles
    os.environ.update({} if limit is None else {"DNNL_MAX_CPU_ISA": limit})
    assert (environment.bfloat16_unit(), environment.channel_block()) == (unit, block)


@pytest.mark.parametrize(
    ("given", "is_gpu", "expected"),
    [
        ({"OMP_NUM_THREADS": "1"}, False, (1, 1, "1")),
        ({"OMP_NUM_THREADS": "2"}, False, (2, 2, "1")),
        # Two of eight lanes' threads each; twenty do not divide.
        ({"OMP_NUM_THREADS": "16"}, False, (8, 16, "2")),
        ({"OMP_NUM_THREADS": "20"}, False, (8, 16, "2")),
        # Others set MXNet's threads for a training, where operators follow each other.
        ({"OMP_NUM_THREADS": "3", "MXNET_CPU_WORKER_NTHREADS": "2"}, False, (1, 3, "3")),
        ({"OMP_NUM_THREADS": "3"}, True, (1, 3, "3")),
    ],
)
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
