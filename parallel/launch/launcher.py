"""Starts a job with parameter servers: checks of its options, files and hosts, and its processes.

Also used by ``parallel.autogroup``, whose job measures the workers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from parallel import horovod
from parallel.host_lists import address_on, free_port, is_own_name, resolve
from parallel.launch import job, ssh, sync
from parallel.launch.cluster_files import (
    WorkerHosts,
    in_mxnet_order,
    read_groups,
    read_hosts,
    read_servers,
    read_shares,
)
from parallel.launch.job import ProcessSpec
from parallel.launch.options import JobOptions, say
from parallel.parameter_server.assignment import (
    SCHEDULER,
    SCHEMES,
    SERVER,
    WORKER,
    Assignment,
    Scheme,
    Share,
)
from runtime import environment
from runtime.errors import ConfigError, did_you_mean
from runtime.loopback import is_loopback, loopback_variables

SERVE = (sys.executable, "-m", "parallel.parameter_server.server")
"""The command of servers and scheduler."""
# The schemes in which no worker waits for one that has died.
_ASYNCHRONOUS = tuple(
    name for name, scheme in SCHEMES.items() if not scheme.is_synchronous and not scheme.has_groups
)


def launch(options: JobOptions, serve: Sequence[str] = SERVE) -> int:
    """Run a job, whose servers and scheduler run the command ``serve``; returns its status.

    Raises:
        ConfigError: the options contradict each other or the machine.
        DataError: one of the files is wrong.
    """
    given = _options_of(options.command)
    options = _with_files_of_this_folder(options, given)
    scheme = _checked_scheme(options, given)
    own = address_on(options.interface)
    workers = worker_hosts(options)
    _check_hosts(options, workers)
    servers, speeds = _servers(options, workers)
    groups = read_groups(options.groups, workers.addresses) if options.groups else ()
    # After all checks of what was typed.
    if options.sync is not None:
        for line in sync.copy_to(list(dict.fromkeys(workers.logins)), options.sync):
            say(line)
    address_of = {own: own, **_addresses(options, workers, scheme.has_groups)}
    addresses = [address_of[host] for host in workers.logins]
    shares: tuple[Share, ...] = ()
    if options.data_sharding is not None:
        # MXNet numbers workers by these addresses, whatever names ``hosts`` has.
        shares, said = read_shares(options.data_sharding, addresses)
        for line in said:
            say(line)
    scheduler = Assignment(
        role=SCHEDULER,
        root_host=own,
        root_port=free_port(own),
        node_host=own,
        interface=options.interface,
        num_workers=options.workers,
        num_servers=options.servers,
        groups=groups,
        shares=shares,
        tolerates=options.tolerate_workers,
        server_speeds=_speeds_by_number([address_of[server] for server in servers], speeds),
        bucket_elements=options.bucket_elements,
        trace=str(options.trace.absolute()) if options.trace else "",
    )
    with ExitStack() as stack:
        variables: Sequence[Mapping[str, str]] = [{}] * options.workers
        if scheme.has_groups:
            # Each worker becomes a rank of Horovod.
            meeting = horovod.rendezvous(own, options.interface, addresses)
            more = loopback_variables() if is_loopback(own) else {}
            variables = [{**one, **more} for one in stack.enter_context(meeting)]
        processes = list(zip(workers.logins, variables))
        specs = _specs(options, serve, scheduler, servers, processes, address_of)
        return job.run(specs, tolerates=options.tolerate_workers)


def worker_hosts(options: JobOptions) -> WorkerHosts:
    """Return the machine of each worker."""
    if options.hosts is None:
        here = (address_on(options.interface),) * options.workers
        return WorkerHosts(here, here)
    return read_hosts(options.hosts, options.workers)


def addresses_of_workers(options: JobOptions) -> list[str]:
    """Ask the hosts for the address of each worker on the interface of the job.

    Raises:
        ConfigError: a host does not answer.
    """
    workers = worker_hosts(options)
    address_of = _addresses(options, workers, has_groups=False)
    return [address_of[host] for host in workers.logins]


def _check_hosts(options: JobOptions, workers: WorkerHosts) -> None:
    """Refuse hosts that are not here without ssh, and GPUs that other machines do not have."""
    if options.launcher == "local":
        for host in workers.addresses:
            if not is_own_name(host):
                raise ConfigError(
                    f"host {host} is not this machine; give --launcher ssh to start workers there, "
                    "and -i with the interface of the network that all hosts are on"
                )
        if options.sync is not None:
            raise ConfigError("--sync copies to other hosts: add --launcher ssh and -H FILE")
        return
    shown = environment.variables().get("CUDA_VISIBLE_DEVICES", "")
    if shown.strip("0123456789, -"):
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES={shown!r} names GPUs of a single host; with --launcher ssh give "
            "their numbers, as in CUDA_VISIBLE_DEVICES=0,1, or unset it"
        )


def _addresses(options: JobOptions, workers: WorkerHosts, has_groups: bool) -> dict[str, str]:
    """Return the address at which the others reach each machine's processes, by its login."""
    machines = list(dict.fromkeys(workers.logins))
    if options.launcher == "local":
        return {machine: resolve(machine.partition(":")[0]) for machine in machines}
    # Horovod connects the members of a group at the addresses of the machines' names.
    return ssh.ask(machines, options.interface, is_named=has_groups and len(machines) > 1)


def _servers(options: JobOptions, workers: WorkerHosts) -> tuple[Sequence[str], Sequence[float]]:
    """Return where each server logs in, by default at the workers' in turn, and speeds, if any."""
    if options.server_hosts is None:
        machines = list(dict.fromkeys(workers.logins))
        hosts = [machines[server % len(machines)] for server in range(options.servers)]
        if len(options.server_speeds) not in (0, options.servers):
            raise ConfigError(
                f"--server-speeds has {len(options.server_speeds)} numbers, but there are "
                f"{options.servers} servers; give it one for each"
            )
        return hosts, options.server_speeds
    if options.server_speeds:
        raise ConfigError(
            f"--server-hosts {options.server_hosts} has the speeds of the servers, too; leave "
            "--server-speeds out"
        )
    addresses, speeds = read_servers(options.server_hosts, options.servers, workers.addresses)
    login_of = dict(zip(reversed(workers.addresses), reversed(workers.logins)))
    return [login_of[address] for address in addresses], speeds


def _speeds_by_number(servers: Sequence[str], speeds: Sequence[float]) -> tuple[float, ...]:
    """Put speeds in the order of MXNet's server numbers; see ``Assignment.server_speeds``."""
    # MXNet numbers the servers of a machine by ports that are not known yet.
    if len(set(zip(servers, speeds))) > len(set(servers)):
        raise ConfigError("servers of one machine have different speeds; give them the same")
    return tuple(speeds[server] for server in in_mxnet_order(servers)) if speeds else ()


def _options_of(command: Sequence[str]) -> dict[str, str]:
    """Return the options in a command with their values; of one that is repeated, the last."""
    found = {}
    for word, following in zip(command, [*command[1:], ""]):
        name, has_value, value = word.partition("=")
        if name.startswith("--"):
            found[name] = value if has_value else following
    return found


def _with_files_of_this_folder(options: JobOptions, given: Mapping[str, str]) -> JobOptions:
    """Options with ``groups`` and ``data_sharding``, if the command needs them and they are here.

    These are the names under which ``autogroup`` and Grouping-SGD write them.
    """
    scheme = SCHEMES.get(given.get("--kv-store", ""))
    groups, shares = options.groups, options.data_sharding
    if scheme and scheme.has_groups and not groups and Path("groups").is_file():
        groups = Path("groups")
        say("--groups groups, which is in this folder")
    if given.get("--data-allocator") == "1" and not shares and Path("data_sharding").is_file():
        shares = Path("data_sharding")
        say("--data-sharding data_sharding, which is in this folder")
    return replace(options, groups=groups, data_sharding=shares)


def _checked_scheme(options: JobOptions, given: Mapping[str, str]) -> Scheme:
    """Return the --kv-store of the command, with which the options go together."""
    name = given.get("--kv-store", "")
    if name not in SCHEMES:
        raise ConfigError(
            f"the command's --kv-store {name!r} has no servers{did_you_mean(name, SCHEMES)}; give "
            f"it one of {', '.join(SCHEMES)}, or start it with horovodrun"
        )
    scheme = SCHEMES[name]
    if scheme.has_groups and options.groups is None:
        raise ConfigError(
            f"--kv-store {name} needs --groups FILE; python -m parallel.autogroup writes one"
        )
    if options.data_sharding and given.get("--data-allocator") != "1":
        raise ConfigError(
            f"--data-sharding {options.data_sharding} would be ignored; add --data-allocator 1 to "
            "the command, or leave it out"
        )
    if options.tolerate_workers and name not in _ASYNCHRONOUS:
        raise ConfigError(
            f"--tolerate-workers goes with --kv-store {' or '.join(_ASYNCHRONOUS)}: with {name} "
            "workers wait for each other; leave it out"
        )
    return scheme


def _specs(
    options: JobOptions,
    serve: Sequence[str],
    scheduler: Assignment,
    servers: Sequence[str],
    workers: Sequence[tuple[str, Mapping[str, str]]],
    address_of: Mapping[str, str],
) -> list[ProcessSpec]:
    """Return scheduler, servers and workers.

    Args:
        options: of the job.
        serve: the command of scheduler and servers.
        scheduler: the assignment of the scheduler, which runs on this machine.
        servers: where each server logs in.
        workers: where each worker logs in, and more environment variables of it.
        address_of: the address of each of these hosts on the job's interface.
    """
    addresses = [address_of[host] for host, _ in workers]
    specs = []

    def add(own: Assignment, number: int, host: str, more: Mapping[str, str]) -> None:
        sharers = max(1, addresses.count(own.node_host))
        guard = [sys.executable, "-m", "parallel.launch.guard", str(sharers)]
        command = [*guard, *(options.command if own.role == WORKER else serve)]
        # Lines are sent when they are printed, although a pipe is no terminal.
        sent = {"PYTHONUNBUFFERED": "1", **own.variables(), **more}
        is_remote = options.launcher == "ssh" and own.role != SCHEDULER
        specs.append(ProcessSpec(own.role, number, host, command, sent, is_remote))

    add(scheduler, 0, scheduler.node_host, {})
    for number, host in enumerate(servers):
        add(replace(scheduler, role=SERVER, node_host=address_of[host]), number, host, {})
    for number, (host, variables) in enumerate(workers):
        local = addresses[:number].count(addresses[number])
        own = replace(scheduler, role=WORKER, node_host=addresses[number], local_worker=local)
        add(replace(own, worker=number), number, host, variables)
    return specs
