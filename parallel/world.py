"""The ranks of a training run, behind one small interface.

The only module that calls Horovod's collectives. All other code is handed a ``World``, so that
the mathematics can be tested with ranks that are threads, and so that the names of the collectives,
their reductions and their blocking behavior are decided in one place. Each collective needs a name
that is the same at every step: Horovod caches responses by name, and generated names have made long
runs thrash that cache.
"""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from parallel import horovod
from runtime import environment
from runtime.devices import Communicator, is_host
from runtime.errors import ConfigError, is_launched, launcher_number
from runtime.mxnet import mx
from runtime.stopwatch import COMMUNICATION, Stopwatch


class Wire(NamedTuple):
    """How sums travel between the ranks."""

    is_float16: bool = False
    """In half precision, whatever the arrays are."""
    predivide_factor: float = 1.0
    """Divides the addends and multiplies the sum, which keeps the numbers small on the way."""


PLAIN = Wire()
# The head computes while these are reduced; it needs the results of all others at once.
OVERLAPPING = frozenset({"head.gradient"})


class World(Communicator):
    """All collectives of a run, seen from one of its ranks; here with a single one.

    Subclasses override ``allreduce``, ``allgather`` and the first two here; the others use these.
    """

    def allreduce_all(
        self, arrays: Sequence[Any], name: str, op: str = "sum", wire: Wire = PLAIN
    ) -> None:
        """Reduce several arrays; all are queued before any is waited for."""

    def allgather_uneven(self, array: Any, name: str) -> Any:
        """As ``allgather``, of arrays whose first axes may differ in length; blocks."""
        return self.allgather(array, name)

    def broadcast(self, array: Any, name: str) -> None:
        """Overwrite an NDArray with that of rank 0, in place; blocks."""
        # Not by the broadcast of Horovod 0.28.1: EnqueueTensorBroadcast reads the name again after
        # it has handed the work to another thread, which may have freed the name. On a busy machine
        # that is a segmentation fault now and then; the other collectives do not do it.
        flat = array.reshape((-1,))
        gathered = self.allgather_uneven(flat if self.rank == 0 else flat[:1], name)
        array[:] = gathered[: array.size].reshape(array.shape)

    def broadcast_object(self, value: Any, name: str) -> Any:
        """Return the value of rank 0 on every rank; blocks."""
        return self.gather_objects(value if self.rank == 0 else None, name)[0]

    def gather_objects(self, value: Any, name: str) -> list[Any]:
        """Return the values of all ranks; blocks."""
        sent = mx.nd.array(np.frombuffer(pickle.dumps(value), np.uint8), dtype="uint8")
        received = io.BytesIO(self.allgather_uneven(sent, name).asnumpy().tobytes())
        return [pickle.load(received) for _ in range(self.size)]

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.allgather(mx.nd.zeros((1,)), "world.barrier").wait_to_read()


class LoneWorld(World):
    """One rank without Horovod: the end of another process does not end this one."""

    def __init__(self, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = 0, 1, local_rank


class HorovodWorld(World):
    """The ranks that ``horovodrun`` or ``mpirun`` started.

    With groups, the ranks of this rank's group alone.
    """

    def __init__(self, groups: Sequence[Sequence[int]] = (), *, regroups: bool = False) -> None:
        """Initialize Horovod.

        Args:
            groups: the ranks of each group, each rank in one of them; empty: one group of all.
            regroups: whether ``regroup`` will be called.
        """
        hvd = horovod.collectives()
        if regroups:
            environment.prepare_process_sets()
        self._hvd = hvd
        self._library = hvd.mpi_ops.MPI_MXNET_LIB_CTYPES
        self._outputs: dict[str, deque[Any]] = {}
        self._sets = self._process_sets(groups)
        hvd.init(process_sets=self._sets)
        _check_size(hvd.size())
        self._ops = {"sum": hvd.Sum, "mean": hvd.Average, "max": hvd.Max}
        self.local_rank: int = hvd.local_rank()
        self._join_set()

    def regroup(self, groups: Sequence[Sequence[int]]) -> None:
        """Form other groups; all ranks call this together, with no collective under way."""
        for group in self._sets:
            self._hvd.remove_process_set(group)
        self._sets = self._process_sets(groups)
        for group in self._sets:
            self._hvd.add_process_set(group)
        self._join_set()

    def all_ranks(self) -> HorovodWorld:
        """The ranks of all groups, as a world."""
        world = copy.copy(self)
        world._sets = []
        world._join_set()
        return world

    @override
    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        if self.size > 1:
            self._hvd.allreduce_(array, name=name, op=self._ops[op], process_set=self._set)
        return array

    @override
    def allreduce_all(
        self, arrays: Sequence[Any], name: str, op: str = "sum", wire: Wire = PLAIN
    ) -> None:
        if self.size == 1:
            return
        compression = self._hvd.Compression.fp16 if wire.is_float16 else self._hvd.Compression.none
        for index, array in enumerate(arrays):
            sent, dtype = compression.compress(array)
            # Backward finishes the last layers first, but the next forward pass needs the first.
            self._hvd.allreduce_(
                sent,
                name=f"{name}.{index}",
                op=self._ops[op],
                priority=-index,
                prescale_factor=1.0 / wire.predivide_factor,
                postscale_factor=wire.predivide_factor,
                process_set=self._set,
            )
            if sent is not array:
                array[:] = compression.decompress(sent, dtype)

    @override
    def allgather(self, array: Any, name: str) -> Any:
        if self.size == 1:
            return array
        shape = (self.size * array.shape[0], *array.shape[1:])
        gathered = mx.nd.empty(shape, ctx=array.context, dtype=array.dtype)
        # Horovod's own function waits, because it finds out the length of the result while it runs.
        # Here the length is known. Horovod writes it into the array that it is given, when the
        # collective runs, and so gets another one on the same memory.
        output = gathered.reshape(shape)
        mx.base.check_call(
            self._library.horovod_mxnet_allgather_async(
                ctypes.byref(array.handle),
                ctypes.byref(output.handle),
                mx.base.c_str(name),
                0,
                self._set.process_set_id,
                1,
            )
        )
        self._keep(name, output)
        return gathered

    def _keep(self, name: str, output: Any) -> None:
        """Keep what Horovod writes into until it has: it holds a pointer, no reference.

        Two arrays for each name: one of the last update, which may still run, and one of this.
        """
        outputs = self._outputs.setdefault(name, deque())
        outputs.append(output)
        if len(outputs) > 2:
            outputs.popleft().wait_to_read()

    @override
    def allgather_uneven(self, array: Any, name: str) -> Any:
        if self.size == 1:
            return array
        return self._hvd.allgather(array, name=name, process_set=self._set)

    def close(self) -> None:
        """Shut Horovod down, on the ranks of all groups: none may be in a collective any more."""
        self._hvd.shutdown()

    def _process_sets(self, groups: Sequence[Sequence[int]]) -> list[Any]:
        """One for each group; none for a single group: Horovod has the set of all ranks already."""
        return [self._hvd.ProcessSet(list(group)) for group in groups] if len(groups) > 1 else []

    def _join_set(self) -> None:
        """Choose the process set that contains this rank, and its rank and size there."""
        all_ranks = self._hvd.global_process_set
        self._set = next((group for group in self._sets if group.included()), all_ranks)
        self.rank = self._set.rank()
        self.size = self._set.size()


def join_ranks() -> World:
    """Return the ranks that a launcher has started, or a single one.

    A single rank needs no network, and Horovod would end the process (SIGABRT) where the host's own
    name has no address.
    """
    return HorovodWorld() if is_launched() else LoneWorld()


class TimedWorld(World):
    """Counts a collective as communication from the moment this rank's own array is ready.

    A collective begins when the arrays of all ranks are ready; the time until this rank's is ready
    is its own work. Reductions that are meant to overlap with other work are not waited for at
    once: the head waits for its gradient when it needs it, the backbone's gradients are waited for
    in ``Stopwatch.settle``. Where the stopwatch does not measure, no device is waited for.
    """

    def __init__(self, world: World, stopwatch: Stopwatch) -> None:
        self._world = world
        self._stopwatch = stopwatch
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank

    @override
    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        if not self._stopwatch.measures:
            return self._world.allreduce(array, name, op)
        ready = _marker(array)
        self._world.allreduce(array, name, op)
        if name not in OVERLAPPING:
            ready.wait_to_read()
            self.wait(array)
        return array

    @override
    def wait(self, array: Any) -> None:
        if self._stopwatch.measures:
            with self._stopwatch.part(COMMUNICATION):
                array.wait_to_read()

    @override
    def allreduce_all(
        self, arrays: Sequence[Any], name: str, op: str = "sum", wire: Wire = PLAIN
    ) -> None:
        # These are gradients: the backward pass ends at the first layer, so arrays[0] is the last
        # to become ready.
        if not self._stopwatch.measures:
            self._world.allreduce_all(arrays, name, op, wire)
            return
        ready = _marker(arrays[0])
        self._world.allreduce_all(arrays, name, op, wire)
        self._stopwatch.defer(ready.wait_to_read)
        for array in arrays:
            self._stopwatch.defer(array.wait_to_read, COMMUNICATION)

    @override
    def allgather(self, array: Any, name: str) -> Any:
        # What lies on the host is read at once, so its wait is counted in any update: the watchdog
        # shall say of a rank that waits for another one that it is in communication.
        if not self._stopwatch.measures and not is_host(array.context):
            return self._world.allgather(array, name)
        array.wait_to_read()
        with self._stopwatch.part(COMMUNICATION):
            gathered = self._world.allgather(array, name)
            gathered.wait_to_read()
        return gathered

    @override
    def allgather_uneven(self, array: Any, name: str) -> Any:
        return self._world.allgather_uneven(array, name)


def _marker(array: Any) -> Any:
    """A copied row, which is ready when ``array`` is computed and before it is reduced.

    MXNet's engine runs the operators on an array in the order in which they are queued, and this
    copy is queued before the reduction.
    """
    return array[:1].copy()


def _check_size(size: int) -> None:
    """Refuse to run beside other processes that each train alone on the whole data.

    This happens when a setting for a single process reaches the ranks of a launcher.
    """
    started = launcher_number(("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"), default=1)
    if size != started:
        raise ConfigError(
            f"the launcher started {started} ranks, but Horovod sees {size}; "
            "unset HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS, or start with horovodrun"
        )
