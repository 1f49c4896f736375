"""The assignment of the launcher to each process of a job, and the four schemes of exchange.

The launcher writes an assignment (role, number, group, data) as environment variables, and the
processes read it back. MXNet itself reads the variables that begin with ``DMLC``.

Each process of training is a worker of MXNet's store; those that push send gradients and get
weights. The schemes differ in how many workers' gradients make one update, and in the bound on a
worker's lead over the others. MXNet is not imported here: a wrong name is answered at once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

from parallel.parameter_server.buckets import LARGEST
from runtime.errors import ConfigError

WORKER, SERVER, SCHEDULER = "worker", "server", "scheduler"
ROLE = "DMLC_ROLE"
_KEY_BYTES = 32
_OF_MXNET = {
    "role": ROLE,
    "root_host": "DMLC_PS_ROOT_URI",
    "root_port": "DMLC_PS_ROOT_PORT",
    "node_host": "DMLC_NODE_HOST",
    "interface": "DMLC_INTERFACE",
    "num_workers": "DMLC_NUM_WORKER",
    "num_servers": "DMLC_NUM_SERVER",
}

# MXNet divides larger arrays among the servers, which would separate a bucket from its tail.
_NEVER_DIVIDED = str(2**31 - 1)


class Share(NamedTuple):
    """The images of each epoch that a worker reads, as fractions: from start to below end."""

    start: float
    end: float


@dataclass(frozen=True)
class Assignment:
    """The assignment of one process in a job with parameter servers."""

    role: str
    """Worker, server or scheduler."""
    root_host: str
    """Address of the scheduler."""
    root_port: int
    """Port of the scheduler."""
    node_host: str
    """Address of this process, at which the others reach it."""
    interface: str
    """The network interface that it listens on."""
    num_workers: int
    num_servers: int
    worker: int = 0
    """Number of this worker, 0 … num_workers - 1."""
    local_worker: int = 0
    """Number of this worker among those of its host; also the number of its GPU."""
    groups: tuple[tuple[int, ...], ...] = ()
    """The workers of each group, each worker in one; empty if no groups were given."""
    shares: tuple[Share, ...] = ()
    """The share of each worker; empty if no shares were given."""
    tolerates: bool = False
    """Whether the job continues without a worker that has died."""
    server_speeds: tuple[float, ...] = ()
    """Relative speed of each server, in the order of MXNet's numbers; empty: all are equal.

    MXNet numbers its servers by their addresses, as strings in descending order, and those of one
    address by their ports.
    """
    bucket_elements: int = LARGEST
    """Elements of the largest bucket."""
    trace: str = ""
    """Folder of the record of pushes and pulls, see ``messages``; empty: none is written."""
    key: str = field(default_factory=lambda: secrets.token_hex(_KEY_BYTES), repr=False)
    """Known to the processes of this job alone, see ``connections``; never an argument."""

    def variables(self) -> dict[str, str]:
        """The environment variables from which ``find`` reads this assignment."""
        own = {_variable(name): value for name, value in vars(self).items()}
        return {
            # A user's shell may set these: the scheduler would listen on all addresses, or every
            # process at a Unix socket in /tmp.
            "DMLC_USE_KUBERNETES": "0",
            "DMLC_LOCAL": "0",
            "MXNET_KVSTORE_BIGARRAY_BOUND": _NEVER_DIVIDED,
            **{name: one if isinstance(one, str) else json.dumps(one) for name, one in own.items()},
        }


def find(environment: Mapping[str, str]) -> Optional[Assignment]:
    """Read the assignment of the process with these variables; None outside of a job.

    Raises:
        ConfigError: some of the variables are missing or malformed.
    """
    if ROLE not in environment:
        return None
    try:
        found: dict[str, Any] = {
            one.name: environment[_variable(one.name)]
            if one.type == "str"
            else json.loads(environment[_variable(one.name)])
            for one in fields(Assignment)
        }
        found["groups"] = tuple(map(tuple, found["groups"]))
        found["shares"] = tuple(Share(*share) for share in found["shares"])
        found["server_speeds"] = tuple(found["server_speeds"])
        return Assignment(**found)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{ROLE} is set, but what else a job with parameter servers needs is not ({error}); "
            "start it with python -m parallel.launch, or unset it"
        ) from None


def _variable(name: str) -> str:
    """The variable of a field; numbers and tuples are written as JSON."""
    return _OF_MXNET.get(name, f"GROUPING_{name.upper()}")


@dataclass(frozen=True)
class Scheme:
    """How workers exchange gradients and weights."""

    is_synchronous: bool = False
    """True if the servers add the pushes of all workers before they update."""
    has_groups: bool = False
    """True if the workers of a group add their gradients, and one of them pushes."""
    is_bounded: bool = False
    """True if a worker waits for the slowest when it is too far ahead."""

    def pushers(self, assignment: Assignment) -> tuple[tuple[int, ...], ...]:
        """The workers of each pusher, by its number; the first of them pushes."""
        if self.has_groups:
            return tuple(tuple(sorted(group)) for group in assignment.groups)
        return tuple((worker,) for worker in range(assignment.num_workers))

    def synchronous_groups(self, assignment: Assignment) -> tuple[tuple[int, ...], ...]:
        """Divide all workers into groups; the batches of a group make one update together."""
        if self.is_synchronous:
            return (tuple(range(assignment.num_workers)),)
        return self.pushers(assignment)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        # BSP, ASP, SSP and GSP, by their usual names.
        "dist_sync": Scheme(is_synchronous=True),
        "dist_async": Scheme(),
        "dist_ssync": Scheme(is_bounded=True),
        "dist_gsync": Scheme(has_groups=True),
    }
)


def group_of(groups: tuple[tuple[int, ...], ...], worker: int) -> int:
    """The number of the group that contains a worker."""
    return next(number for number, group in enumerate(groups) if worker in group)
