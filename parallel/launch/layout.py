"""Environment variables and order of the processes of a job, by the rules of MXNet and Horovod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from parallel import horovod
from parallel.launch.job import ProcessSpec
from parallel.launch.network_interface import NetworkInterface
from parallel.parameter_server.assignment import WORKER, Assignment
from parallel.parameter_server.schemes import SCHEMES
from runtime.errors import ConfigError
from runtime.process.loopback import loopback_variables


@contextmanager
def rendezvous(
    interface: NetworkInterface, workers: Sequence[str], scheme: str
) -> Iterator[list[dict[str, str]]]:
    """Yield the variables by which each worker becomes a rank of Horovod, which groups need."""
    if not SCHEMES[scheme].has_groups:
        yield [{} for _ in workers]
        return
    more = loopback_variables() if interface.is_loopback else {}
    with horovod.rendezvous(interface.address, interface.name, workers) as variables:
        yield [{**one, **more} for one in variables]


def speeds_in_mxnet_order(
    servers: Sequence[str], speeds: Sequence[float], address_of: Mapping[str, str]
) -> tuple[float, ...]:
    """Put speeds in the order of MXNet's server numbers; see ``Assignment.server_speeds``."""
    if not speeds:
        return ()
    if len(speeds) != len(servers):
        raise ConfigError(
            f"--server-speeds has {len(speeds)} numbers, but there are {len(servers)} servers; "
            "give it one for each"
        )
    addresses = [address_of[server] for server in servers]
    speed_of: dict[str, float] = {}
    for host, address, speed in zip(servers, addresses, speeds):
        # MXNet numbers the servers of a machine by ports that are not known yet.
        if speed_of.setdefault(address, speed) != speed:
            raise ConfigError(
                f"two servers on {host} have the speeds {speed_of[address]:g} and "
                f"{speed:g}; those of one machine need the same"
            )
    return tuple(speed_of[address] for address in sorted(addresses, reverse=True))


def specs(
    scheduler: Assignment,
    hosts: Mapping[str, Sequence[str]],
    address_of: Mapping[str, str],
    commands: Mapping[str, Sequence[str]],
    worker_variables: Sequence[Mapping[str, str]],
) -> Iterator[ProcessSpec]:
    """Yield scheduler, servers and workers.

    Args:
        scheduler: the assignment of the scheduler.
        hosts: where the processes of each role log in.
        address_of: the address of each of these hosts on the job's interface.
        commands: by role.
        worker_variables: more environment variables of each worker.
    """
    workers = [address_of[host] for host in hosts[WORKER]]
    for role, hosts_of_role in hosts.items():
        for number, host in enumerate(hosts_of_role):
            is_worker, address = role == WORKER, address_of[host]
            assignment = replace(
                scheduler,
                role=role,
                worker=number if is_worker else 0,
                local_worker=workers[:number].count(address) if is_worker else 0,
                node_host=address,
            )
            variables = {
                # Lines are sent when they are printed, although a pipe is no terminal.
                "PYTHONUNBUFFERED": "1",
                **assignment.variables(),
                **(worker_variables[number] if is_worker else {}),
            }
            sharers = max(1, workers.count(address))
            yield ProcessSpec(role, number, host, sharers, commands[role], variables)
