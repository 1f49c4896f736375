"""Names, interfaces, links and clocks: healthy hosts, and one change each."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from parallel.check.findings import findings
from parallel.check.network import Link
from parallel.check.network_findings import BRIDGES
from parallel.check.survey import Clock, Pair, Survey
from tests.support.healthy_hosts import healthy

ROOT = Path(__file__).resolve().parents[3]


def lines(survey: Survey) -> list[str]:
    return [str(one) for one in findings(survey)]


def changed(survey: Survey, host: str, **changes) -> Survey:
    survey.facts[host] = replace(survey.facts[host], **changes)
    return survey


def with_link(survey: Survey, sender: str, receiver: str, pair: Pair) -> Survey:
    survey.pairs[:] = [
        pair if (one.sender, one.receiver) == (sender, receiver) else one for one in survey.pairs
    ]
    return survey


def linked(survey: Survey, sender: str, receiver: str, *link: float) -> Survey:
    return with_link(survey, sender, receiver, Pair(sender, receiver, Link(*link)))


def test_names() -> None:
    (line,) = lines(changed(healthy({"a": 1, "b": 1}), "b", hostname="node0"))
    assert line.startswith("b: its hostname is node0, as that of a: Horovod takes them for one; ")
    (line,) = lines(changed(healthy({"a": 1, "b": 1}), "b", name_address="127.0.1.1"))
    assert line.startswith("b: its name node1 stands for 127.0.1.1, which other hosts do not reach")
    (line,) = lines(changed(healthy({"a": 1, "b": 1}), "b", name_address=None))
    assert line.startswith("b: its name node1 is unknown to itself; ")
    (line,) = lines(changed(healthy({"a": 1, "b": 1}), "b", name_address="10.9.9.9"))
    assert line.startswith("b: its name node1 stands for 10.9.9.9, which is no address of it; ")


@pytest.mark.parametrize("address", ["127.0.1.1", None, "10.9.9.9"])
def test_the_name_of_a_single_host_does_not_matter(address: str) -> None:
    assert lines(changed(healthy({"a": 4}), "a", name_address=address)) == []


def test_the_chosen_interface() -> None:
    both = {"a": 1, "b": 1}
    assert lines(healthy(both, nic="eth0")) == []
    others = {"lo": "127.0.0.1", "eth5": "10.0.0.1"}
    survey = changed(healthy(both, nic="eth0"), "b", interfaces=others)
    (line,) = lines(survey)
    assert line.startswith("b: it has no interface eth0 with an IPv4 address; ")
    assert line.endswith("it has lo, eth5")


def test_the_same_address_on_two_hosts() -> None:
    survey = healthy({"a": 1, "b": 1})
    for host in survey.slots:
        shared = {**survey.facts[host].interfaces, "br-12": "172.18.0.1"}
        changed(survey, host, interfaces=shared)
    (line,) = lines(survey)
    assert line.startswith("b: its interface br-12 has the address 172.18.0.1, as that of a: ")
    assert lines(replace(survey, nic="eth0")) == []


def test_bridges_that_do_not_matter_are_those_that_the_launcher_leaves_out() -> None:
    text = (ROOT / "setup-utils/launchers/mpirun").read_text()
    (left_out,) = re.findall(r"btl_tcp_if_exclude=(127\S+)", text)
    assert {*left_out.split(",")} - {"127.0.0.1/8", "sppp"} == {*BRIDGES} - {"lo"}


def test_a_host_that_others_do_not_reach_is_one_finding() -> None:
    survey = healthy({"a": 1, "b": 1, "c": 1})
    for sender in "ab":
        with_link(survey, sender, "c", Pair(sender, "c", None, "timed out"))
    (line,) = lines(survey)
    assert line.startswith("c: a port of it is not reached from a, b (timed out); ranks listen on")


def test_slow_links() -> None:
    survey = linked(healthy({"a": 1, "b": 1}), "b", "a", 0.0002, 49e6)
    (line,) = lines(survey)
    assert line.startswith("b: it sends 49 MB/s to a, and 50 are expected; ")
    assert lines(linked(survey, "b", "a", 0.0002, 51e6)) == []


def test_a_link_slower_than_the_others() -> None:
    """1 Gbit/s in a network of ten times as much."""
    survey = healthy({"a": 1, "b": 1, "c": 1})
    for receiver in "ab":
        linked(survey, "c", receiver, 0.0002, 118e6)
    (line,) = lines(survey)
    assert line.startswith("c: it sends 118 MB/s to a, b, and 275 are expected; ")
    # Two hosts do not say which of them is usual.
    assert lines(linked(healthy({"a": 1, "b": 1}), "b", "a", 0.0002, 118e6)) == []


def test_links_with_a_long_round_trip() -> None:
    survey = linked(healthy({"a": 1, "b": 1}), "a", "b", 0.05, 1e9)
    (line,) = lines(survey)
    assert line.startswith("a: b answers after 50 ms: each collective would wait for that; ")


def test_clocks() -> None:
    survey = healthy({"a": 1, "b": 1})
    survey.clocks["b"] = Clock(1.2, 0.01)
    (line,) = lines(survey)
    assert line.startswith("b: its clock is 1.2 s ahead of that of a: ")
    survey.clocks["b"] = Clock(-90.0, 0.01)
    (line,) = lines(survey)
    assert line.startswith("b: its clock is 90.0 s behind that of a: ")
    # So long took the question.
    survey.clocks["b"] = Clock(1.2, 0.5)
    assert lines(survey) == []
    # The launcher's clock is not that of a host.
    survey.clocks.update(a=Clock(90.0, 0.01), b=Clock(90.1, 0.01))
    assert lines(survey) == []
