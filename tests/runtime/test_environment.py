from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Optional

import pytest

from runtime import environment
from runtime.environment import Bfloat16Unit
from runtime.errors import ConfigError

ROOT = Path(__file__).parents[2]
LOCAL_SIZE_NAMES = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
RANK_NAMES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")


@pytest.fixture(autouse=True)
def untouched_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test with none of the variables set, and restore all afterwards."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name in (*LOCAL_SIZE_NAMES, *RANK_NAMES):
        monkeypatch.delenv(name, raising=False)
    for setting in environment.settings():
        monkeypatch.delenv(setting.name, raising=False)


def processors(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("runtime.processors.available", lambda: count)


@pytest.mark.parametrize("name", LOCAL_SIZE_NAMES)
@pytest.mark.parametrize(("ranks", "share"), [(1, 16), (2, 8), (3, 5), (16, 1), (40, 1)])
def test_the_ranks_of_a_host_share_its_processors(
    monkeypatch: pytest.MonkeyPatch, name: str, ranks: int, share: int
) -> None:
    processors(monkeypatch, 16)
    monkeypatch.setenv(name, str(ranks))
    assert environment.visible_threads() == share


def test_a_single_process_has_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    processors(monkeypatch, 6)
    assert environment.visible_threads() == 6


def test_the_users_thread_count_decides_for_numba_too(monkeypatch: pytest.MonkeyPatch) -> None:
    processors(monkeypatch, 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    environment.prepare()
    assert environment.visible_threads() == 3
    assert os.environ["NUMBA_NUM_THREADS"] == "3"


@pytest.mark.parametrize("value", ["0", "-1", "two", ""])
def test_a_wrong_thread_count_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with pytest.raises(ConfigError, match="OMP_NUM_THREADS"):
        environment.prepare()


def test_prepare_sets_what_is_unset_and_keeps_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_SUBGRAPH_BACKEND", "ONEDNN")
    environment.prepare()
    assert os.environ["MXNET_SUBGRAPH_BACKEND"] == "ONEDNN"
    for setting in environment.settings():
        assert setting.name in os.environ
        assert setting.why


@pytest.mark.parametrize("name", RANK_NAMES)
def test_gloo_is_chosen_only_for_a_single_process(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    alone = {setting.name: setting.default for setting in environment.settings()}
    assert alone["HOROVOD_CONTROLLER"] == alone["HOROVOD_CPU_OPERATIONS"] == "gloo"
    monkeypatch.setenv(name, "0")
    launched = {setting.name for setting in environment.settings()}
    assert launched == set(alone) - {"HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"}


@pytest.mark.parametrize(
    ("threads", "gpus", "cycle"),
    [("1", False, "2"), ("2", False, "2"), ("3", False, None), ("2", True, "1"), ("3", True, "1")],
)
def test_horovod_polls_less_often_where_few_threads_compute(
    monkeypatch: pytest.MonkeyPatch, threads: str, gpus: bool, cycle: Optional[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr(environment, "computes_on_gpus", lambda: gpus)
    rows = [setting.default for setting in environment.settings()
            if setting.name == "HOROVOD_CYCLE_TIME"]  # fmt: skip
    assert rows == ([cycle] if cycle else [])


@pytest.mark.parametrize("threads", ["1", "3"])
def test_processors_reduce_large_gradients_where_they_are(
    monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    """A buffer for them is for GPUs, for which Horovod's own default stays."""
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    for gpus, expected in ((False, ["1048576"]), (True, [])):
        monkeypatch.setattr(environment, "computes_on_gpus", lambda gpus=gpus: gpus)
        rows = [setting.default for setting in environment.settings()
                if setting.name == "HOROVOD_FUSION_THRESHOLD"]  # fmt: skip
        assert rows == expected


@pytest.mark.parametrize(
    ("package", "visible", "for_gpus"),
    [
        ("mxnet_cu112-1.9.1", None, True),
        ("mxnet_cu112-1.9.1", "1,3", True),
        ("mxnet_cu112-1.9.1", "", False),
        ("mxnet_cu112-1.9.1", "-1", False),
        ("mxnet-1.9.1", None, False),
        ("mxnet-1.9.1", "0", False),
        (None, None, False),
    ],
)
def test_gpus_have_settings_of_their_own(
    package: Optional[str], visible: Optional[str], for_gpus: bool, tmp_path: Path
) -> None:
    """By the package alone: MXNet is not imported yet."""
    if package:
        (tmp_path / "mxnet").mkdir()
        (tmp_path / "mxnet" / "__init__.py").write_text("raise AssertionError('imported')")
        (tmp_path / f"{package}.dist-info").mkdir()
    variables = {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": visible or ""}
    variables["MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"] = "7"
    if visible is None:
        del variables["CUDA_VISIBLE_DEVICES"]
    printed = dict(
        line.removeprefix("export ").split("=", 1)
        for line in printed_by_the_module(python="-S" if package is None else "-s", **variables)
        .splitlines()
    )  # fmt: skip
    wanted = {
        "HOROVOD_CYCLE_TIME": "1",
        "MXNET_OPTIMIZER_AGGREGATION_SIZE": "60",
        "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD": "1000",
        # The user's.
        "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD": "7",
    }
    if for_gpus:
        assert wanted.items() <= printed.items()
    else:
        assert not set(wanted) - {"HOROVOD_CYCLE_TIME"} & set(printed)
        assert printed.get("HOROVOD_CYCLE_TIME") != "1"


def test_no_row_stands_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus in (False, True):
        monkeypatch.setattr(environment, "computes_on_gpus", lambda gpus=gpus: gpus)
        names = [setting.name for setting in environment.settings()]
        assert len(names) == len(set(names))


def printed_by_the_module(python: str = "-s", **variables: str) -> str:
    return subprocess.run(
        [sys.executable, python, "-m", "runtime.environment"],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_the_printed_lines_give_a_shell_the_same_values() -> None:
    lines = printed_by_the_module(MXNET_SUBGRAPH_BACKEND="with space; $HOME")
    names = " ".join(f'"${setting.name}"' for setting in environment.settings())
    shell = subprocess.run(
        ["bash", "-c", f"{lines}\nprintf '%s\\n' {names}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    expected = {setting.name: setting.default for setting in environment.settings()}
    expected["MXNET_SUBGRAPH_BACKEND"] = "with space; $HOME"
    assert shell.stdout.splitlines() == list(expected.values())


def test_the_module_imports_no_heavy_library() -> None:
    heavy = {"mxnet", "horovod", "numba"}
    code = f"import sys, runtime.environment; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout == "[]\n"


@pytest.mark.parametrize(("seconds", "warning"), [(4, "1"), (300, "30"), (7200, "60")])
def test_horovod_warns_and_the_watchdog_ends_the_run(
    seconds: int, warning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    for name, value in zip(names, (warning, "0")):
        monkeypatch.delenv(name, raising=False)
        environment.prepare_stall_check(seconds)
        assert os.environ[name] == value
        monkeypatch.setenv(name, "7")
        environment.prepare_stall_check(seconds)
        assert os.environ[name] == "7"


def test_opencv_gets_its_limits_before_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {
        "OPENCV_IO_MAX_IMAGE_PIXELS": "99", "OPENCV_LOG_LEVEL": "OFF", "OPENCV_IPP": "sse42"
    }  # fmt: skip
    for name in expected:
        monkeypatch.delenv(name, raising=False)
    environment.prepare_opencv(99)
    assert {name: os.environ[name] for name in expected} == expected
    monkeypatch.setenv("OPENCV_IPP", "avx2")
    environment.prepare_opencv(99)
    assert os.environ["OPENCV_IPP"] == "avx2"


@pytest.mark.parametrize(("sharing", "threads"), [(1, "5"), (2, "2"), (9, "1")])
def test_processes_share_the_processors_equally(
    monkeypatch: pytest.MonkeyPatch, sharing: int, threads: str
) -> None:
    processors(monkeypatch, 5)
    environment.prepare_threads(sharing)
    assert os.environ["OMP_NUM_THREADS"] == threads
    environment.prepare_threads(5)
    assert os.environ["OMP_NUM_THREADS"] == threads


def test_a_variable_is_unset_within_the_context_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMLC_ROLE", "server")
    with pytest.raises(KeyError), environment.without("DMLC_ROLE"):
        assert "DMLC_ROLE" not in environment.variables()
        raise KeyError
    assert environment.variables()["DMLC_ROLE"] == "server"


@pytest.mark.parametrize(
    ("variables", "allowed"),
    [({}, True), ({"HOROVOD_RANK": "0"}, False), ({"HOROVOD_RANK": "0", "PROGRESS": "bar"}, True)],
)
def test_a_launched_rank_draws_a_bar_only_if_run_sh_has_a_terminal(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], allowed: bool
) -> None:
    monkeypatch.delenv("PROGRESS", raising=False)
    monkeypatch.delenv("GROUPING_WORKER", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.allows_progress_bar() == allowed


@pytest.mark.parametrize(
    ("tiles", "vectors", "limit", "expected"),
    [
        (True, True, None, Bfloat16Unit.TILES),
        (True, True, "AVX512_CORE_AMX", Bfloat16Unit.TILES),
        # For oneDNN that is all but the tiles, and so is what it does not know.
        (True, True, "ALL", Bfloat16Unit.VECTORS),
        (True, True, "DEFAULT", Bfloat16Unit.VECTORS),
        (True, True, "AVX512_CORE_BF16", Bfloat16Unit.VECTORS),
        (True, True, "AVX512_CORE_VNNI", None),
        (True, True, "AVX512_CORE", None),
        (True, True, "AVX2", None),
        (False, True, None, Bfloat16Unit.VECTORS),
        (False, True, "AVX512_CORE_AMX", Bfloat16Unit.VECTORS),
        (False, False, None, None),
        (False, False, "ALL", None),
    ],
)
def test_what_multiplies_bfloat16(
    tiles: bool,
    vectors: bool,
    limit: Optional[str],
    expected: Optional[Bfloat16Unit],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.processors.request_tiles", lambda: tiles)
    monkeypatch.setattr("runtime.processors.has_bfloat16_vectors", lambda: vectors)
    if limit is None:
        monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    else:
        monkeypatch.setenv("DNNL_MAX_CPU_ISA", limit)
    assert environment.bfloat16_unit() is expected


def run_lanes(**variables: str) -> list[str]:
    """What a new process has after ``prepare_lanes()``: lanes, all threads, those of one."""
    code = (
        "import os; from runtime import environment; environment.prepare_lanes(); "
        "environment.prepare(); print(environment.lanes(), environment.visible_threads(), "
        "os.environ['OMP_NUM_THREADS'], os.environ['NUMBA_NUM_THREADS'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        ("1", ["1", "1", "1", "1"]),
        ("2", ["2", "2", "1", "1"]),
        ("8", ["8", "8", "1", "1"]),
        # Two of eight lanes' threads each; twenty do not divide.
        ("16", ["8", "16", "2", "2"]),
        ("20", ["8", "16", "2", "2"]),
    ],
)
def test_lanes_divide_the_threads(threads: str, expected: list[str]) -> None:
    assert run_lanes(OMP_NUM_THREADS=threads) == expected


def test_threads_of_mxnet_that_are_set_leave_those_of_an_operator() -> None:
    """The commands of others set them for a training, where operators follow each other."""
    given = {"OMP_NUM_THREADS": "3", "MXNET_CPU_WORKER_NTHREADS": "2"}
    assert run_lanes(**given) == ["1", "3", "3", "3"]


def test_after_mxnet_lanes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine has read the variables, and other processes inherit them."""
    processors(monkeypatch, 4)
    monkeypatch.setitem(sys.modules, "mxnet", object())
    environment.prepare_lanes()
    assert environment.lanes() == 1 and environment.visible_threads() == 4


def test_a_gpu_has_no_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)
    monkeypatch.setattr(environment, "computes_on_gpus", lambda: True)
    environment.prepare_lanes()
    assert environment.lanes() == 1
