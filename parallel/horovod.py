"""The only module that imports Horovod: its collectives, and its rendezvous for ranks with Gloo.

The launcher serves the rendezvous, so importing this module loads neither MXNet nor Horovod. The
import of MXNet sets ``OMP_NUM_THREADS`` and other variables, which the workers would inherit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from runtime.loopback import hear_this_user


def collectives() -> Any:
    """Return Horovod's module for MXNet; the import loads MXNet, too."""
    import horovod.mxnet as hvd

    return hvd


@contextmanager
def rendezvous(
    address: str, interface: str, hosts: Sequence[str]
) -> Iterator[list[dict[str, str]]]:
    """Serve the rendezvous at which processes become the ranks of one job.

    Horovod's own ``RendezvousServer`` listens on all interfaces, this one on one address.

    Args:
        address: of this machine, at which the ranks reach it.
        interface: the network interface that every rank uses.
        hosts: the address of each rank.

    Yields:
        The environment variables of each rank. The server runs until the context is left.
    """
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    slots = _slots(hosts)
    server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
    hear_this_user(server)
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


def _slots(hosts: Sequence[str]) -> list[Any]:
    """Horovod's description of each rank; the ranks of a host need not be consecutive."""
    from horovod.runner.common.util.hosts import SlotInfo

    slots = []
    for rank, host in enumerate(hosts):
        local_rank = hosts[:rank].count(host)
        # The hosts that have a rank of this local rank.
        across = [one for one in dict.fromkeys(hosts) if hosts.count(one) > local_rank]
        slots.append(
            SlotInfo(
                hostname=host,
                rank=rank,
                size=len(hosts),
                local_rank=local_rank,
                local_size=hosts.count(host),
                cross_rank=across.index(host),
                cross_size=len(across),
            )
        )
    return slots
