"""The network interface of a job, the only one on which its processes listen."""

from __future__ import annotations

import socket

import psutil

from runtime.errors import ConfigError, did_you_mean


def address_on(interface: str, option: str = "-i") -> str:
    """Return this machine's IPv4 address on an interface: parameter servers support no other.

    Args:
        interface: its name, the same on all machines of the job.
        option: by which the user has given it.

    Raises:
        ConfigError: there is no such interface, or it has no IPv4 address.
    """
    known = psutil.net_if_addrs()
    if interface not in known:
        raise ConfigError(
            f"{option} {interface}: no such network interface{did_you_mean(interface, known)}; "
            f"this machine has {', '.join(known)}"
        )
    found = [one.address for one in known[interface] if one.family == socket.AF_INET]
    if not found:
        raise ConfigError(f"{option} {interface} has no IPv4 address; choose another interface")
    return str(found[0])


def resolve(host: str) -> str:
    """Return the IPv4 address of a host.

    Raises:
        ConfigError: it has none.
    """
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(f"host {host} has no known address ({error}); correct -H") from None


def free_port(address: str) -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def is_own_name(name: str) -> bool:
    """True if a name or address stands for this machine; ssh may know names that are unknown here.

    A machine's own name need not be known to its resolver.
    """
    try:
        # The address of another machine cannot be bound.
        return name == socket.gethostname() or free_port(resolve(name)) > 0
    except (ConfigError, OSError):
        return False
