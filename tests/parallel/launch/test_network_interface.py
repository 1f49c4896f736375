"""The interface that a job uses, and the hosts that it reaches."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pytest

from parallel.launch.network_interface import NetworkInterface, free_port, is_own_name, resolve
from runtime.errors import ConfigError

LOOPBACK = NetworkInterface("lo", "127.0.0.1")
ETHERNET = NetworkInterface("eth0", "192.0.2.5")


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a loopback, a network that is no IPv4, and one whose second address is."""

    def entry(family, address):
        return SimpleNamespace(family=family, address=address)

    known = {
        "lo": [entry(socket.AF_INET, "127.0.0.1")],
        "wifi": [entry(socket.AF_INET6, "fe80::1")],
        "eth0": [entry(socket.AF_INET6, "fe80::2"), entry(socket.AF_INET, "10.0.0.5")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: known)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("eth1", r"-i eth1: no such .*\(did you mean 'eth0'\?\); this machine has lo, wifi, eth0"),
        ("wifi", "-i wifi has no IPv4 address"),
        *((name, "no such network interface") for name in ("..", "", "../net/lo", "lo" * 99)),
    ],
)
def test_an_interface_has_an_ipv4_address(interfaces: None, name: str, message: str) -> None:
    assert NetworkInterface.find("eth0") == NetworkInterface("eth0", "10.0.0.5")
    with pytest.raises(ConfigError, match=message):
        NetworkInterface.find(name)


def test_hosts_have_addresses() -> None:
    assert resolve("127.0.0.3") == "127.0.0.3"
    with pytest.raises(ConfigError, match="host no.such.host.invalid has no known address .*-H"):
        resolve("no.such.host.invalid")


@pytest.mark.parametrize(
    "network, hosts, is_local, message",
    [
        (LOOPBACK, ["127.0.0.1", "127.0.0.2"], True, None),
        (LOOPBACK, ["127.0.0.1", "192.0.2.1"], False, "192.0.2.1 cannot be reached on -i lo, 127"),
        (ETHERNET, ["192.0.2.1", "127.0.0.1", "known to ssh"], False, None),
        (ETHERNET, ["127.0.0.1"], True, "127.0.0.1 cannot be reached on -i"),
        (ETHERNET, ["192.0.2.1"], True, "not this machine; give --launcher"),
    ],
)
def test_hosts_are_on_the_network(network, hosts, is_local, message) -> None:
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        network.check(hosts, is_local)


def test_a_free_port_can_be_bound() -> None:
    port = free_port("127.0.0.1")
    assert port > 1023
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))


def test_names_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(is_own_name, ("localhost", "127.0.0.1", "127.3.2.1")))
    assert not any(map(is_own_name, ("192.0.2.77", "no-such-name.invalid")))
    # A name that its resolver does not know.
    monkeypatch.setattr(socket, "gethostname", lambda: "me.invalid")
    assert is_own_name("me.invalid")
