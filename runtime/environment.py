"""The one place for environment variables that libraries read.

MXNet, Horovod, Numba and OpenCV read their variables while they are imported, so these must be set
before. If scripts and modules each set some of them, one program would set them too late and the
next would forget them; here they are in one table. Variables that the user has set keep their
values. ``python -m runtime.environment`` prints the table for ``config.sh`` to ``eval``. The ranks
of one host share its processors equally, where every library by itself would use all of them.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Optional

from runtime import installed, processors
from runtime.errors import LOCAL_COUNTS, ConfigError, is_launched, launcher_number

_FEW_THREADS = 2
_LANES = "INFERENCE_LANES"
_ENGINE_THREADS = "MXNET_CPU_WORKER_NTHREADS"
_MOST_LANES = 8
"""Each has the kernels of a network in its own layout: a gigabyte or two of a large network."""
# With its values (oneDNN's cpu_isa_traits.hpp); without it oneDNN uses all but the tiles.
_ISA_LIMIT = "DNNL_MAX_CPU_ISA"
_WITHOUT_AVX512 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI")
_WITHOUT_BFLOAT16 = (
    *_WITHOUT_AVX512,
    *("AVX512_MIC", "AVX512_MIC_4OPS", "AVX512_CORE", "AVX512_CORE_VNNI"),
)
_WITH_TILES_ALLOWED = "AVX512_CORE_AMX"
Bfloat16Unit = Literal["AMX", "AVX-512"]
"""Unit of a processor that multiplies bfloat16 numbers: tiles or vectors."""


def prepare() -> None:
    """Set the variables of the table that the user has not set. Call it before importing MXNet."""
    for name, value in settings().items():
        os.environ.setdefault(name, value)


def settings() -> dict[str, str]:
    """Return the table of variables for this rank: values where the user has set none."""
    threads = str(visible_threads() // lanes())
    # MXNet takes half of all processors in every process, which stalls the ranks of a host; Numba
    # takes all, and with another number than MXNet's, OpenMP would end and start threads for each
    # kernel.
    table = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, **_FOR_EVERY_RANK}
    if processors.request_tiles():
        # oneDNN uses the processor's matrix tiles only if allowed; Linux has granted them.
        table[_ISA_LIMIT] = _WITH_TILES_ALLOWED
    table |= _FOR_GPUS if computes_on_gpus() else _ON_PROCESSORS
    if not computes_on_gpus() and visible_threads() <= _FEW_THREADS:
        # Each collective waits for the next cycle; looking for it each millisecond, as by default,
        # takes time from a thread that computes.
        table["HOROVOD_CYCLE_TIME"] = "2"
    if not is_launched():
        # A single rank has no other to connect to. MPI would have to start a daemon for a process
        # that no launcher started; Gloo needs none.
        table |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    return table


_FOR_EVERY_RANK = {
    # Kernels are run by MXNet's engine on the threads of its operators; with threads of their own
    # they would wait for processors on which those of MXNet spin.
    "NUMBA_THREADING_LAYER": "omp",
    # protobuf's compiled form, which Python 3.9 and 3.10 have, crashes beside libmxnet.so: both
    # hold a protobuf library, of different versions.
    "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
    # The oneDNN fusion of the symbol executor fails on networks with PReLU.
    "MXNET_SUBGRAPH_BACKEND": "NONE",
    # On a GPU the pointwise fusion compiles for the device's own architecture, which the NVRTC of
    # CUDA 11.2 to 11.7 does not know for Ada (8.9): the first forward pass fails.
    "MXNET_USE_FUSION": "0",
    # Try convolutions out and take the fastest within their workspace, as centers need the memory;
    # with 1 ("limited") MXNet 1.9.1 takes the fastest whatever memory it needs.
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "2",
    # Open MPI polls while it waits and takes the processor from a rank that computes.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Ranks that share few processors take longer than 30 s to import and connect.
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",
    # An update of r269 with --sync-bn has some 1,400 collectives; what does not fit into Horovod's
    # 1,024 is negotiated anew in every update.
    "HOROVOD_CACHE_CAPACITY": "4096",
}
_ON_PROCESSORS = {
    # The thread that hands arrays to MXNet copies them alone: with threads of its own for that
    # there are more than processors, and then those of the operators sleep after each.
    "MXNET_CPU_PARALLEL_SIZE": str(1 << 30),
    # A larger array is reduced where it is: Horovod's buffer costs two copies of it by a processor
    # that computes, and as much memory for MPI to work in, anew each time.
    "HOROVOD_FUSION_THRESHOLD": str(1 << 20),
}
# Not here: NVIDIA_TF32_OVERRIDE=0, with which GPUs since Ampere multiply float32 numbers without
# rounding them to ten bits. It is slower, so the user decides.
_FOR_GPUS = {
    # Each collective waits for the next cycle, and a GPU idles meanwhile, not a processor.
    "HOROVOD_CYCLE_TIME": "1",
    # SGD of so many parameters in one operator, the most that its kernel has room for.
    "MXNET_OPTIMIZER_AGGREGATION_SIZE": "60",
    # MXNet waits for the GPU after each bulk of layers: one bulk for most networks.
    "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD": "1000",
    # The same, but gradients are reduced while the backward pass goes on, bulk by bulk.
    "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD": "60",
}


def computes_on_gpus() -> bool:
    """Return True if the installed MXNet is a build for GPUs and may see one.

    The package decides: it needs the driver's libraries to be imported at all, while the device
    files of GPUs differ between machines, containers and WSL, and asking the driver would start
    CUDA in a process that still forks. Variables have to be set before MXNet could say it.
    """
    may_see = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() not in ("", "-1")
    return may_see and installed.cuda_of(installed.mxnet_package()) is not None


def visible_threads() -> int:
    """Return how many threads this rank may keep busy, at least 1.

    ``OMP_NUM_THREADS`` decides if it is set, by the user or by ``prepare()``; otherwise it is
    the rank's share of the processors of this host that the process may use. After
    ``prepare_lanes()`` it is the threads of all lanes.

    Raises:
        ConfigError: if ``OMP_NUM_THREADS`` is not a positive integer.
    """
    chosen = os.environ.get("OMP_NUM_THREADS")
    if chosen is None:
        return max(1, processors.available() // launcher_number(LOCAL_COUNTS, default=1))
    if not chosen.isdecimal() or int(chosen) < 1:
        raise ConfigError(
            f"OMP_NUM_THREADS={chosen!r} is not a positive integer; "
            "unset it to give every rank its share of the processors"
        )
    return int(chosen) * lanes()


def lanes() -> int:
    """Return among how many operators at a time ``prepare_lanes()`` has divided the threads."""
    return int(os.environ.get(_LANES, "1"))


def channel_block() -> int:
    """Return how many channels of feature maps oneDNN computes at once: 16 with AVX-512, else 8."""
    # As the user, or the table above, has limited it.
    is_limited = os.environ.get(_ISA_LIMIT) in _WITHOUT_AVX512
    return 16 if processors.has_avx512() and not is_limited else 8


def bfloat16_unit() -> Optional[Bfloat16Unit]:
    """Return what makes products of bfloat16 faster than of float32; None without either."""
    # The table allows tiles that are granted, unless the user has set another limit.
    limit = os.environ.get(_ISA_LIMIT, _WITH_TILES_ALLOWED)
    if processors.request_tiles() and limit == _WITH_TILES_ALLOWED:
        return "AMX"
    if processors.has_bfloat16_vectors() and limit not in _WITHOUT_BFLOAT16:
        return "AVX-512"
    return None


def usable_dtype(option: str, dtype: str) -> str:
    """Return an option's number format, or float32 where bfloat16 is slower on this processor."""
    if dtype == "bfloat16" and bfloat16_unit() is None:
        logging.getLogger(__name__).warning(
            "%s bfloat16: this processor has neither AVX512_BF16 nor AMX tiles that oneDNN may "
            "use, without which bfloat16 is slower than float32; float32 is used",
            option,
        )
        return "float32"
    return dtype


def prepare_threads(processes: int) -> None:
    """Set the threads of this process if ``processes`` share the processors equally."""
    threads = max(1, processors.available() // processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))


def prepare_lanes() -> None:
    """Divide the threads of this process among operators, each with few, that run side by side.

    Threads that compute an operator together wait for the slowest of them at its end, and share
    maps that leave their caches. Call it before importing MXNet, in a program that runs a network
    on batches that do not depend on each other; afterwards, on a GPU, or if the user has set the
    number of MXNet's own threads, it changes nothing.
    """
    if "mxnet" in sys.modules or _ENGINE_THREADS in os.environ or computes_on_gpus():
        return
    os.environ.update(variables_of_lanes(visible_threads()))


def variables_of_lanes(threads: int) -> dict[str, str]:
    """Return the variables of a process whose threads are divided among operators."""
    count = min(threads, _MOST_LANES)
    return {
        "OMP_NUM_THREADS": str(threads // count),
        _ENGINE_THREADS: str(count),
        _LANES: str(count),
    }


def prepare_process_sets() -> None:
    """Let Horovod form process sets after its start. Call it before Horovod starts."""
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"


def prepare_opencv(max_pixels: int) -> None:
    """Set what OpenCV reads. Call it before importing OpenCV.

    Args:
        max_pixels: of an image that OpenCV decodes. By its own limit, a file of a few bytes that
            announces a billion pixels would get the memory for them.
    """
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(max_pixels))
    # The reader reports a broken file in one line; OpenCV would add lines of its own.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "OFF")
    # OpenCV's wider instructions gain nothing on images of this size, but lower the clock of some
    # processors, and with it the speed of decoding, by a tenth.
    os.environ.setdefault("OPENCV_IPP", "sse42")


def variables() -> dict[str, str]:
    """Return a copy of all variables, to look for an assignment or to start a process with."""
    return dict(os.environ)


@contextmanager
def without(name: str) -> Iterator[None]:
    """Unset a variable within the context."""
    value = os.environ.pop(name, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[name] = value


@contextmanager
def leave_out(*packages: str) -> Iterator[None]:
    """Import what goes on without these packages as if they were not installed.

    They are imported as usual if they have been imported before, and afterwards.
    """
    missing = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def allows_progress_bar() -> bool:
    """Return True if a terminal as output is the user's; mpirun gives every rank its own.

    ``run.sh`` knows whether it writes to a terminal, and says so in ``PROGRESS``.
    """
    return not is_launched() or os.environ.get("PROGRESS") == "bar"


def main() -> None:
    """Print ``export NAME=value`` lines for a shell; what the user has set keeps its value."""
    for name, value in settings().items():
        print(f"export {name}={shlex.quote(os.environ.get(name, value))}")


if __name__ == "__main__":
    from runtime.errors import run_program

    run_program(main)
