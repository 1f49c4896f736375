"""The ranks of a training run, behind one small interface.

The only module that imports Horovod. Everything else is handed a ``World``, so that the
mathematics can be tested with ranks that are threads, and so that the names of the collectives,
their reductions and their blocking behavior are decided in one place. Each collective needs a
name that is the same at every step: Horovod caches responses by name, and generated names have
made long runs thrash that cache.
"""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.errors import ConfigError, launcher_number
from runtime.mxnet import mx


class Wire(NamedTuple):
    """How sums travel between the ranks.

    Attributes:
        is_float16: in half precision, whatever the arrays are.
        predivide_factor: divides the addends and multiplies the sum, so that it stays small on the
            way.
    """

    is_float16: bool = False
    predivide_factor: float = 1.0


PLAIN = Wire()


class World(Protocol):
    """What one rank can ask of all ranks."""

    rank: int
    """The number of this rank, 0 … size - 1."""
    size: int
    """The number of ranks."""
    local_rank: int
    """The number of this rank among those on its host."""

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        """Reduce an NDArray over the ranks, in place.

        Asynchronous: the reduction is queued as an operation of MXNet's engine, and whoever reads
        the array waits for it.

        Args:
            array: an NDArray of the same shape and type on every rank.
            name: the stable name of this collective.
            op: "sum", "mean" or "max".
        """

    def wait(self, array: Any) -> None:
        """Wait for the reduction of an array, after all work that can hide it."""

    def allreduce_all(
        self, arrays: Sequence[Any], name: str, op: str = "sum", wire: Wire = PLAIN
    ) -> None:
        """Reduce several arrays; all are queued before any is waited for."""

    def allgather(self, array: Any, name: str) -> Any:
        """Concatenate NDArrays of all ranks along their first axis, in rank order; blocks."""

    def broadcast(self, array: Any, name: str) -> None:
        """Overwrite an NDArray with that of rank 0, in place; blocks."""

    def broadcast_object(self, value: Any, name: str) -> Any:
        """The value of rank 0, on every rank; blocks."""

    def barrier(self) -> None:
        """Wait until every rank is here."""


class LoneWorld:
    """One rank by itself, without Horovod: nobody else's end can take it along."""

    def __init__(self, local_rank: int = 0) -> None:
        """Args: local_rank: among the processes of this host."""
        self.rank, self.size, self.local_rank = 0, 1, local_rank

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        """See ``World.allreduce``."""
        return array

    def wait(self, array: Any) -> None:
        """See ``World.wait``."""
        array.wait_to_read()

    def allreduce_all(
        self, arrays: Sequence[Any], name: str, op: str = "sum", wire: Wire = PLAIN
    ) -> None:
        """See ``World.allreduce_all``."""

    def allgather(self, array: Any, name: str) -> Any:
        """See ``World.allgather``."""
        return array

    def broadcast(self, array: Any, name: str) -> None:
        """See ``World.broadcast``."""

    def broadcast_object(self, value: Any, name: str) -> Any:
        """See ``World.broadcast_object``."""
        return value

    def barrier(self) -> None:
        """See ``World.barrier``."""


class HorovodWorld:
    """The ranks that ``horovodrun`` or ``mpirun`` started; one rank when nobody did.

    With groups, those of this rank's group alone.
    """

    def __init__(self, groups: Sequence[Sequence[int]] = (), *, regroups: bool = False) -> None:
        """Initializes Horovod.

        Args:
            groups: the ranks of each group, each rank in one of them; none make one of all ranks.
            regroups: whether ``regroup`` will be called.
        """
        import horovod.mxnet as hvd

        if regroups:
            os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        self._hvd = hvd
        self._sets = self._process_sets(groups)
        hvd.init(process_sets=self._sets)
        _check_size(hvd.size())
        self._ops = {"sum": hvd.Sum, "mean": hvd.Average, "max": hvd.Max}
        self.local_rank: int = hvd.local_rank()
        self._enter()

    def regroup(self, groups: Sequence[Sequence[int]]) -> None:
        """Make other groups; the ranks of all come here together, with no collective under way."""
        for former in self._sets:
            self._hvd.remove_process_set(former)
        self._sets = self._process_sets(groups)
        for group in self._sets:
            self._hvd.add_process_set(group)
        self._enter()

    def everybody(self) -> HorovodWorld:
        """The ranks of all groups, as a world."""
        world = copy.copy(self)
        world._sets = []
        world._enter()
        return world

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        """See ``World.allreduce``."""
        if self.size > 1:
            self._hvd.allreduce_(array, name=name, op=self._ops[op], process_set=self._set)
        return array

    def wait(self, array: Any) -> None:
        """See ``World.wait``."""
        array.wait_to_read()

    def allreduce_all(
        self, arrays: Sequence[Any], name: str, op: str = "sum", wire: Wire = PLAIN
    ) -> None:
        """See ``World.allreduce_all``."""
        if self.size == 1:
            return
        compression = self._hvd.Compression.fp16 if wire.is_float16 else self._hvd.Compression.none
        for index, array in enumerate(arrays):
            sent, dtype = compression.compress(array)
            # Backward finishes the last layers first, but the first are needed first.
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

    def allgather(self, array: Any, name: str) -> Any:
        """See ``World.allgather``."""
        if self.size == 1:
            return array
        return self._hvd.allgather(array, name=name, process_set=self._set)

    def broadcast(self, array: Any, name: str) -> None:
        """See ``World.broadcast``."""
        if self.size == 1:
            return
        # Horovod 0.28.1 has a broadcast, which reads its name once more after it has handed the
        # work to another thread, which may have finished and freed it by then: on a busy machine a
        # segmentation fault now and then (EnqueueTensorBroadcast; the other collectives do not).
        flat = array.reshape((-1,))
        sent = flat if self.rank == 0 else flat[:1]
        gathered = self._hvd.allgather(sent, name=name, process_set=self._set)
        gathered.wait_to_read()
        array[:] = gathered[: array.size].reshape(array.shape)

    def broadcast_object(self, value: Any, name: str) -> Any:
        """See ``World.broadcast_object``."""
        if self.size == 1:
            return value
        # Horovod's own knows no groups.
        content = pickle.dumps(value)
        length = mx.nd.array([len(content)], dtype="int64")
        self.broadcast(length, f"{name}.length")
        sent = mx.nd.zeros((int(length.asscalar()),), dtype="uint8")
        if self.rank == 0:
            sent[:] = np.frombuffer(content, np.uint8)
        self.broadcast(sent, name)
        return pickle.loads(sent.asnumpy().tobytes())

    def barrier(self) -> None:
        """See ``World.barrier``."""
        self.allgather(mx.nd.zeros((1,)), "world.barrier").wait_to_read()

    def close(self) -> None:
        """End Horovod, for the ranks of all groups: none may need another any more."""
        self._hvd.shutdown()

    def _process_sets(self, groups: Sequence[Sequence[int]]) -> list[Any]:
        """Horovod has the set of all ranks already, and takes it no second time."""
        return [self._hvd.ProcessSet(list(group)) for group in groups] if len(groups) > 1 else []

    def _enter(self) -> None:
        """Belong to one's own among the sets."""
        whole = self._hvd.global_process_set
        self._set = next((group for group in self._sets if group.included()), whole)
        self.rank: int = self._set.rank()
        self.size: int = self._set.size()


def _check_size(size: int) -> None:
    """Refuse to train alone beside others that train alone, each on the whole data.

    That is what happens when a setting for one process by itself reaches the ranks of a launcher.
    """
    started = launcher_number(("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"), default=1)
    if size != started:
        raise ConfigError(
            f"the launcher started {started} ranks, but Horovod sees {size}; "
            "unset HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS, or start with horovodrun"
        )


def allgather_numpy(world: World, array: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    """Concatenate float32 NumPy arrays of all ranks along their first axis."""
    assert array.dtype == np.float32, array.dtype
    gathered: NDArray[np.float32] = world.allgather(mx.nd.array(array), name).asnumpy()
    return gathered


@contextmanager
def rendezvous(
    address: str, interface: str, hosts: Sequence[str]
) -> Iterator[list[dict[str, str]]]:
    """Let processes that a launcher starts meet as the ranks of one Horovod job, by Gloo.

    Horovod's own ``RendezvousServer`` listens on all interfaces, this one on one address.

    Args:
        address: of this machine, at which the ranks reach it.
        interface: the network interface that every rank uses.
        hosts: the address of each rank.

    Yields:
        The environment variables of each rank. The ranks can meet until the context is left.
    """
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    slots = [SlotInfo(**numbers) for numbers in _slots(hosts)]
    server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
    server.init(slots)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    common = create_run_env_vars(address, [interface], server.server_address[1])
    try:
        yield [
            {name: str(value) for name, value in {**common, **create_slot_env_vars(slot)}.items()}
            for slot in slots
        ]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _slots(hosts: Sequence[str]) -> list[dict[str, Any]]:
    """What Horovod knows of each rank; hosts may come in any order."""
    addresses = list(dict.fromkeys(hosts))
    found = []
    for rank, host in enumerate(hosts):
        local_rank = hosts[:rank].count(host)
        # Those that are the rank's equals on their hosts.
        across = [address for address in addresses if hosts.count(address) > local_rank]
        found.append(
            {
                "hostname": host,
                "rank": rank,
                "size": len(hosts),
                "local_rank": local_rank,
                "local_size": hosts.count(host),
                "cross_rank": across.index(host),
                "cross_size": len(across),
            }
        )
    return found
