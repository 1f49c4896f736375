"""The files of a cluster: what is read, written and refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel.launch.cluster_files import (
    format_groups,
    format_servers,
    read_groups,
    read_hosts,
    read_servers,
)
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


def test_a_line_is_a_workers_address(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("10.0.0.1\nfast-1.lab\n  10.0.0.1\n")
    found = read_hosts(path, 3)
    assert found.addresses == found.logins == ("10.0.0.1", "fast-1.lab", "10.0.0.1")
    assert found.notes == ()


# What dmlc-core's tracker, which MXNet-G uses, reads from each of these files.
SPELLINGS = [
    b"a\nb\n",
    b"a\r\nb\r\n",
    b"a\rb",
    b"\xef\xbb\xbfa\nb\n",
    "a\nb\n".encode("utf-16"),
    b"# both\n\na # fast\n\n\tb  \n\n",
    b"a slots=1\nb slots=1\n",
    b"a:2222\nb:22\n",
    b"a:2222 slots=1\nb:22\tslots=1\n",
]


@pytest.mark.parametrize("content", SPELLINGS)
def test_every_spelling_of_hosts(tmp_path, content):
    (tmp_path / "hosts").write_bytes(content)
    found = read_hosts(tmp_path / "hosts", 2)
    assert found.addresses == ("a", "b") and not found.notes
    assert found.logins == (("a:2222", "b:22") if b":" in content else ("a", "b"))


@pytest.mark.parametrize(
    ("content", "workers", "addresses", "note"),
    [
        ("a\nb\nc\nd\n", 2, "ab", "4 lines for 2 workers: c (line 3) and 1 more at its end have"),
        ("a\nb\nc\n", 2, "ab", "hosts has 3 lines for 2 workers: c (line 3) at its end have no"),
        ("a\nb\n", 5, "ababa", "2 lines for 5 workers, which take them in turn: 3 on a, 2 on b"),
        ("a\n", 3, "aaa", "hosts has 1 lines for 3 workers, which take them in turn: 3 on a"),
        # As often as there are slots: by turns, as the tracker does, while there are any.
        ("a slots=2\nb slots=2\n", 4, "abab", "2 lines for 4 workers"),
        ("a slots=3\nb slots=1\n", 4, "abaa", "in turn: 3 on a, 1 on b"),
        ("a slots=1\nb slots=1\n", 3, "aba", "in turn: 2 on a, 1 on b"),
        ("a slots=1\nb\n", 4, "abbb", "in turn: 1 on a, 3 on b"),
    ],
)
def test_more_or_fewer_lines_than_workers(tmp_path, content, workers, addresses, note):
    (tmp_path / "hosts").write_text(content)
    found = read_hosts(tmp_path / "hosts", workers)
    assert found.addresses == tuple(addresses)
    assert len(found.notes) == 1 and note in found.notes[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "hosts has no host"),
        ("# a\n", "hosts has no host"),
        ("a\nb c\n", "hosts, line 2: 'b c' is not a host"),
        ("a\n-oProxyCommand=x\n", "hosts, line 2: '-oProxyCommand=x' is not a host"),
        ("a\n::1\n", "hosts, line 2: '::1' is not a name or an IPv4 address"),
        ("a\nb:ssh\n", "hosts, line 2: 'b:ssh' has 'ssh' for port"),
    ],
)
def test_a_mistake_in_hosts_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}/{message}"):
        hosts_in(tmp_path, content)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(DataError, match="hosts cannot be read as a list of hosts.*: No such file"):
        read_hosts(tmp_path / "hosts", 2)
    with pytest.raises(DataError, match="groups cannot be read as .*: No such file"):
        read_groups(tmp_path / "groups", FOUR)
    for name in ("hosts", "groups"):
        (tmp_path / name).write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match="hosts cannot .*: it is not text"):
        read_hosts(tmp_path / "hosts", 2)
    with pytest.raises(DataError, match="groups cannot .*: it is not text"):
        read_groups(tmp_path / "groups", FOUR)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", " \t\n\n# none\n"])
def test_every_spelling_of_groups_and_servers(tmp_path, encoding, end):
    path = tmp_path / "file"
    path.write_bytes(f"# two{end}a:0\tb:0 # fast{end}a:1 b:1{end}".encode(encoding))
    assert read_groups(path, TWO_MACHINES) == ((0, 1), (2, 3))
    path.write_bytes(f"b 2.5{end}a\t1".encode(encoding))
    assert read_servers(path, 2, TWO_MACHINES) == (("b", "a"), (2.5, 1.0))


@UNHURRIED
@given(content=st.text(max_size=40), workers=st.integers(1, 3))
def test_any_content_is_hosts_or_one_error(tmp_path_factory, content, workers):
    path = tmp_path_factory.getbasetemp() / "any-hosts"
    path.write_bytes(content.encode())
    try:
        found = read_hosts(path, workers)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert len(found.addresses) == len(found.logins) == workers
        assert not any(one.startswith("-") for one in found.logins)


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
        (
            FOUR,
            # The empty line counts.
            "10.0.0.1 10.0.0.2\n\n10.0.0.3 10.0.0.2\n",
            r"groups, line 3: '10.0.0.2' is in the group of line 1 already; a worker belongs to",
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


def test_slots_have_numbers_only_where_mxnet_g_could_not_read_the_groups_either():
    """It knows addresses alone, and all workers of one are in one group."""
    assert format_groups([(2, 0), (1, 3)], TWO_MACHINES) == "a:1 a:0\nb b\n"
    assert format_groups([(0, 2), (1, 3)], TWO_MACHINES) == "a a\nb b\n"
    assert format_groups([(0, 1), (2, 3)], TWO_MACHINES) == "a:0 b:0\na:1 b:1\n"


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
