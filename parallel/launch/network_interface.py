"""The network interface of a job, the only one on which its processes listen."""

from __future__ import annotations

import socket
from typing import NamedTuple

import psutil

from runtime.errors import ConfigError, did_you_mean
from runtime.process.loopback import is_loopback


class NetworkInterface(NamedTuple):
    """An interface of this machine."""

    name: str
    """The same on all machines of the job."""
    address: str
    """Its IPv4 address: MXNet's parameter servers support no other."""

    @classmethod
    def find(cls, name: str, option: str = "-i") -> NetworkInterface:
        """Look up the address of an interface.

        Args:
            name: of the interface.
            option: by which the user has given it.

        Raises:
            ConfigError: there is no such interface, or it has no IPv4 address.
        """
        known = psutil.net_if_addrs()
        if name not in known:
            raise ConfigError(
                f"{option} {name}: no such network interface{did_you_mean(name, known)}; "
                f"this machine has {', '.join(known)}"
            )
        found = [one.address for one in known[name] if one.family == socket.AF_INET]
        if not found:
            raise ConfigError(f"{option} {name} has no IPv4 address; choose another interface")
        return cls(name, found[0])

    @property
    def is_loopback(self) -> bool:
        """True if no other machine reaches it."""
        return is_loopback(self.address)


def resolve(host: str) -> str:
    """The IPv4 address of a host.

    Raises:
        ConfigError: it has none.
    """
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(f"host {host} has no known address ({error}); correct -H") from None


def free_port(address: str) -> int:
    """A port on which no process listens now."""
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
