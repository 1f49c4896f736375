"""The files of a cluster: what is read, written and refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel.launch.cluster_files import (
    format_groups,
    format_servers,
    format_shares,
    read_groups,
    read_hosts,
    read_servers,
    read_shares,
)
from parallel.parameter_server.assignment import Share
from runtime.errors import DataError

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

FOUR = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
ONE_MACHINE = ("127.0.0.1",) * 4
TWO_MACHINES = ("a", "b", "a", "b")


def hosts_in(folder, content):
    path = folder / "hosts"
    path.write_text(content)
    return read_hosts(path, 2)


def groups_in(folder, content, hosts):
    path = folder / "groups"
    path.write_text(content)
    return read_groups(path, hosts)


def shares_in(folder, content):
    path = folder / "data_sharding"
    path.write_text(content)
    return read_shares(path, 3)


def test_a_line_is_a_workers_address(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("10.0.0.1\nfast-1.lab\n  10.0.0.1\n")
    assert read_hosts(path, 3) == ("10.0.0.1", "fast-1.lab", "10.0.0.1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "hosts is empty; each line holds one address"),
        ("a\n\nb\n", "hosts, line 2 is empty; each line holds one address"),
        ("a\nb c\n", "hosts, line 2: 'b c' is more than one address"),
        ("a\n-oProxyCommand=x\n", "hosts, line 2: '-oProxyCommand=x' is no address"),
        ("a\nb:2\n", "hosts, line 2: 'b:2' is no address"),
        ("a\n", "hosts has 1 lines, but there are 2 workers; .* or -n 1"),
        ("a\nb\nc\n", "hosts has 3 lines, but there are 2 workers"),
    ],
)
def test_a_mistake_in_hosts_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}/{message}"):
        hosts_in(tmp_path, content)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(DataError, match="hosts cannot be read: No such file"):
        read_hosts(tmp_path / "hosts", 2)
    (tmp_path / "hosts").write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match="hosts is no text file"):
        read_hosts(tmp_path / "hosts", 2)


@UNHURRIED
@given(content=st.text(max_size=40), workers=st.integers(1, 3))
def test_any_content_is_hosts_or_one_error(tmp_path_factory, content, workers):
    path = tmp_path_factory.getbasetemp() / "any-hosts"
    path.write_bytes(content.encode())
    try:
        addresses = read_hosts(path, workers)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert len(addresses) == workers and not any(one.startswith("-") for one in addresses)


def test_a_line_is_a_group(tmp_path):
    content = "10.0.0.4 10.0.0.2\n10.0.0.1\n10.0.0.3\n"
    assert groups_in(tmp_path, content, FOUR) == ((3, 1), (0,), (2,))


def test_an_address_means_its_next_slot(tmp_path):
    content = "127.0.0.1 127.0.0.1\n127.0.0.1 127.0.0.1\n"
    assert groups_in(tmp_path, content, ONE_MACHINE) == ((0, 1), (2, 3))
    assert groups_in(tmp_path, "a b\nb a\n", TWO_MACHINES) == ((0, 1), (3, 2))


def test_a_slot_can_be_named(tmp_path):
    content = "127.0.0.1:3 127.0.0.1:0\n127.0.0.1:1 127.0.0.1:2\n"
    assert groups_in(tmp_path, content, ONE_MACHINE) == ((3, 0), (1, 2))
    assert groups_in(tmp_path, "a:1 b\na:0 b\n", TWO_MACHINES) == ((2, 1), (0, 3))


@pytest.mark.parametrize(
    ("hosts", "content", "message"),
    [
        (FOUR, "", "groups is empty; each line holds the addresses of a group"),
        (FOUR, "10.0.0.1\n\n", "groups, line 2 is empty"),
        (
            FOUR,
            "10.0.0.1 10.0.0.2\n10.0.0.3 10.0.0.2\n",
            r"groups, line 2: '10.0.0.2' is in the group of line 1 already; a worker belongs to",
        ),
        (
            ONE_MACHINE,
            "127.0.0.1 127.0.0.1 127.0.0.1\n127.0.0.1 127.0.0.1\n",
            r"groups, line 2: '127.0.0.1' stands 5 times, up to line 2 for all of its 4 slots",
        ),
        (
            TWO_MACHINES,
            "a:0 b:0\na:0 b:1\n",
            "groups, line 2: 'a:0' is in the group of line 1 already",
        ),
        (
            FOUR,
            "10.0.0.1 10.0.0.2\n10.0.0.3\n",
            "groups: '10.0.0.4' of worker 3 is in no group; give it to one, or a line of its own",
        ),
        (
            ("fast", "slow"),
            "fast\nslaw\n",
            r"groups, line 2: 'slaw' is no address of a worker \(did you mean 'slow'\?\)",
        ),
        (TWO_MACHINES, "a:0 b:0\na:2 b:1\n", "groups, line 2: '2' is no slot of a, .* 0 to 1"),
        (TWO_MACHINES, "a:x b:0\n", "groups, line 1: 'x' is no slot of a, which has 0 to 1"),
        (TWO_MACHINES, "a:0 b\na b\n", "groups, line 2: 'a', but a stands both with the number"),
    ],
)
def test_a_mistake_in_groups_is_named_with_its_line(tmp_path, hosts, content, message):
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}/{message}"):
        groups_in(tmp_path, content, hosts)


@UNHURRIED
@given(data=st.data())
def test_groups_are_read_as_they_were_written(tmp_path_factory, data):
    hosts = data.draw(st.lists(st.sampled_from(["a", "b", "127.0.0.1"]), min_size=1, max_size=8))
    order = data.draw(st.permutations(range(len(hosts))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(hosts)))) | {len(hosts)})
    made = tuple(tuple(order[a:b]) for a, b in zip([0, *cuts], cuts))
    path = tmp_path_factory.getbasetemp() / "written-groups"
    path.write_text(format_groups(made, hosts))
    assert read_groups(path, hosts) == made


@UNHURRIED
@given(content=st.text(st.sampled_from("ab:012 \nx²٣"), max_size=30))
def test_any_content_is_groups_or_one_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any-groups"
    path.write_text(content)
    try:
        found = read_groups(path, TWO_MACHINES)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert sorted(worker for group in found for worker in group) == [0, 1, 2, 3]


def test_line_k_is_the_share_of_worker_k_in_any_order(tmp_path):
    assert shares_in(tmp_path, "0.5 1\n0 0.2\n0.2 0.5\n") == ((0.5, 1), (0, 0.2), (0.2, 0.5))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "data_sharding is empty; each line holds two numbers"),
        ("0 0.5\n\n0.5 1\n", "data_sharding, line 2 is empty"),
        ("0 0.5\n0.5 1\n", "data_sharding has 2 lines, but there are 3 workers"),
        ("0 .2\n.2 .5\n.5 .7\n.7 1\n", "data_sharding has 4 lines, but there are 3 workers"),
        ("0 0.5\n0.5\n0.5 1\n", "data_sharding, line 2: '0.5' is not two numbers"),
        ("0 0.5\n0.5 all\n0.5 1\n", "data_sharding, line 2: 'all' is not a number from 0 to 1"),
        ("0 nan\n0.5 1\n0.5 1\n", "data_sharding, line 1: 'nan' is not a number from 0 to 1"),
        ("0 0.5\n0.7 0.5\n0.7 1\n", "data_sharding, line 2: '0.7 0.5' must rise and lie from 0"),
        ("0 0.5\n0.5 0.7\n0.7 2\n", "data_sharding, line 3: '0.7 2' must rise and lie from 0"),
        (
            "0 0.5\n0.4 0.7\n0.7 1\n",
            "data_sharding, line 2 begins at 0.4, but line 1 ends at 0.5: the shares overlap",
        ),
        (
            "0 0.5\n0.7 1\n0.6 0.7\n",
            "data_sharding, line 3 begins at 0.6, but line 1 ends at 0.5: no worker reads the data",
        ),
        ("0.1 0.5\n0.5 0.7\n0.7 1\n", "data_sharding, line 1 begins at 0.1, but the data begins"),
        ("0 0.5\n0.5 0.7\n0.7 0.9\n", "data_sharding: line 3 ends at 0.9, and no worker reads"),
    ],
)
def test_a_mistake_in_shares_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}/{message}"):
        shares_in(tmp_path, content)


@UNHURRIED
@given(
    cuts=st.sets(st.floats(0, 1, exclude_min=True, exclude_max=True), max_size=6), data=st.data()
)
def test_shares_are_read_as_they_were_written(tmp_path_factory, cuts, data):
    edges = [0.0, *sorted(cuts), 1.0]
    shares = data.draw(st.permutations([Share(*edge) for edge in zip(edges, edges[1:])]))
    path = tmp_path_factory.getbasetemp() / "written-shares"
    path.write_text(format_shares(shares))
    assert read_shares(path, len(shares)) == tuple(shares)


@UNHURRIED
@given(content=st.text(st.sampled_from("0.15 \n-ex"), max_size=20))
def test_any_content_is_all_of_the_data_or_one_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any-shares"
    path.write_text(content)
    try:
        shares = read_shares(path, 2)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert sum(share.end - share.start for share in shares) == pytest.approx(1)


def test_a_line_of_servers_is_an_address_and_a_speed(tmp_path):
    path = tmp_path / "servers"
    path.write_text(format_servers(["b", "a", "b"], [2.5, 1, 2.5]))
    assert path.read_text() == "b 2.5\na 1\nb 2.5\n"
    assert read_servers(path, 3, TWO_MACHINES) == (("b", "a", "b"), (2.5, 1.0, 2.5))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\nb 1\n", "servers, line 1: 'a' is not the address of a server and its speed"),
        ("a 1\nb 1 2\n", "servers, line 2: 'b 1 2' is not the address"),
        ("a 1\nc 1\n", "servers, line 2: 'c' is no address of a worker.*; they are a, b"),
        ("a 1\nb x\n", "servers, line 2: 'x' is not a speed; give a positive number"),
        ("a 0\nb 1\n", "servers, line 1: '0' is not a speed"),
        ("a 1\nb inf\n", "servers, line 2: 'inf' is not a speed"),
        ("a 1\n", "servers has 1 lines, but there are 2 servers; .* or -s 1"),
        ("", "servers is empty; each line holds the address of a server"),
    ],
)
def test_mistakes_in_servers_are_named_with_their_line(tmp_path, content, message):
    path = tmp_path / "servers"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_servers(path, 2, TWO_MACHINES)
    assert "\n" not in str(caught.value)
