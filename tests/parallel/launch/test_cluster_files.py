"""The files of a cluster: what is read, written and refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel.launch.cluster_files import (
    format_groups,
    format_servers,
    read_groups,
    read_hosts,
    read_servers,
)
from parallel.launch.data_sharding import read_shares
from runtime.errors import DataError

FOUR = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
ONE_MACHINE = ("127.0.0.1",) * 4
TWO_MACHINES = ("a", "b", "a", "b")
READERS: dict[str, Callable[[Path], object]] = {
    "hosts": lambda path: read_hosts(path, 2),
    "groups": lambda path: read_groups(path, TWO_MACHINES),
    "servers": lambda path: read_servers(path, 2, TWO_MACHINES),
    "data_sharding": lambda path: read_shares(path, TWO_MACHINES[:2]),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.mark.parametrize(
    "content",
    [
        b"a\nb\n",
        b"\xef\xbb\xbfa\r\n\r\n\tb  # fast\r\n",
        "a\nb\n".encode("utf-16"),
        b"a slots=1\nb slots=1\n",
        b"a:2222 slots=1\nb:22\n",
    ],
)
def test_a_line_of_hosts_is_a_workers_address(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    found = read_hosts(path, 2)
    assert found.addresses == ("a", "b") and found.notes == ()
    assert found.logins == (("a:2222", "b:22") if b":" in content else ("a", "b"))


@pytest.mark.parametrize(
    ("content", "workers", "addresses", "note"),
    [
        ("a\nb\nc\nd\n", 2, "ab", "4 lines for 2 workers: c (line 3) and 1 more at its end have"),
        ("a\nb\nc\n", 2, "ab", "file has 3 lines for 2 workers: c (line 3) at its end have no"),
        ("a\nb\n", 5, "ababa", "2 lines for 5 workers, which take them in turn: 3 on a, 2 on b"),
        # As often as there are slots: by turns, as dmlc-core's tracker does, while there are any.
        ("a slots=3\nb slots=1\n", 4, "abaa", "in turn: 3 on a, 1 on b"),
        ("a slots=1\nb slots=1\n", 3, "aba", "in turn: 2 on a, 1 on b"),
        ("a slots=1\nb\n", 4, "abbb", "in turn: 1 on a, 3 on b"),
    ],
)
def test_more_or_fewer_lines_than_workers(
    path: Path, content: str, workers: int, addresses: str, note: str
) -> None:
    path.write_text(content)
    found = read_hosts(path, workers)
    assert found.addresses == tuple(addresses)
    assert len(found.notes) == 1 and note in found.notes[0]


@pytest.mark.parametrize(
    ("hosts", "content", "groups"),
    [
        (FOUR, "10.0.0.4 10.0.0.2\n10.0.0.1\n10.0.0.3\n", ((3, 1), (0,), (2,))),
        (TWO_MACHINES, "\ufeff# two\r\na:0\tb:0 # fast\r\n\r\na:1 b:1", ((0, 1), (2, 3))),
        # An address means its next slot, or the one that is named.
        (ONE_MACHINE, "127.0.0.1 127.0.0.1\n127.0.0.1 127.0.0.1\n", ((0, 1), (2, 3))),
        (TWO_MACHINES, "a b\nb a\n", ((0, 1), (3, 2))),
        (ONE_MACHINE, "127.0.0.1:3 127.0.0.1:0\n127.0.0.1:1 127.0.0.1:2\n", ((3, 0), (1, 2))),
        (TWO_MACHINES, "a:1 b\na:0 b\n", ((2, 1), (0, 3))),
    ],
)
def test_a_line_is_a_group(
    path: Path, hosts: tuple[str, ...], content: str, groups: tuple[tuple[int, ...], ...]
) -> None:
    path.write_text(content)
    assert read_groups(path, hosts) == groups


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_groups_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    hosts = data.draw(st.lists(st.sampled_from(["a", "b", "127.0.0.1"]), min_size=1, max_size=8))
    order = data.draw(st.permutations(range(len(hosts))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(hosts)))) | {len(hosts)})
    made = tuple(tuple(order[a:b]) for a, b in zip([0, *cuts], cuts))
    path = tmp_path_factory.getbasetemp() / "written-groups"
    path.write_text(format_groups(made, hosts))
    assert read_groups(path, hosts) == made


def test_slots_have_numbers_only_where_mxnet_g_could_not_read_the_groups_either() -> None:
    """It knows addresses alone, and all workers of one are in one group."""
    assert format_groups([(2, 0), (1, 3)], TWO_MACHINES) == "a:1 a:0\nb b\n"
    assert format_groups([(0, 2), (1, 3)], TWO_MACHINES) == "a a\nb b\n"
    assert format_groups([(0, 1), (2, 3)], TWO_MACHINES) == "a:0 b:0\na:1 b:1\n"


def test_a_line_of_servers_is_an_address_and_a_speed(path: Path) -> None:
    path.write_text(format_servers(["b", "a", "b"], [2.5, 1, 2.5]))
    assert path.read_text() == "b 2.5\na 1\nb 2.5\n"
    assert read_servers(path, 3, TWO_MACHINES) == (("b", "a", "b"), (2.5, 1.0, 2.5))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("hosts", "# a\n", " has no host"),
        ("hosts", "a\nb c\n", ", line 2: 'b c' is not a host"),
        ("hosts", "a\n::1\n", ", line 2: '::1' is not a name or an IPv4 address"),
        ("hosts", "a\nb:ssh\n", ", line 2: 'b:ssh' has 'ssh' for port"),
        ("groups", "", " is empty; each line holds the addresses of a group"),
        # The empty line counts.
        ("groups", "a:0 b:0\n\na:0 b:1\n", ", line 3: 'a:0' is in the group of line 1 already"),
        ("groups", "a b a\nb a\n", ", line 2: 'a' stands 3 times, up to line 1 for all of its 2"),
        ("groups", "a b\na\n", ": 'b' of worker 3 is in no group; give it to one, or a line of"),
        ("groups", "a b\na c\n", ", line 2: 'c' is no address of a worker"),
        ("groups", "a:0 b:0\na:2 b:1\n", ", line 2: '2' is no slot of a, which has 0 to 1"),
        ("groups", "a:x b:0\n", ", line 1: 'x' is no slot of a"),
        ("groups", "a:² b:0\n", ", line 1: '²' is no slot of a"),
        ("groups", "a:1111111111 b:0\n", ", line 1: '1111111111' is no slot of a"),
        ("groups", "a:0 b\na b\n", ", line 2: 'a', but a stands both with the number"),
        ("servers", "a\nb 1\n", ", line 1: 'a' is not the address of a server and its speed"),
        ("servers", "a 1\nb 1 2\n", ", line 2: 'b 1 2' is not the address"),
        ("servers", "a 1\nc 1\n", ", line 2: 'c' is no address of a worker.*; they are a, b"),
        ("servers", "a 1\nb x\n", ", line 2: 'x' is not a speed; give a positive number"),
        ("servers", "a 0\nb 1\n", ", line 1: '0' is not a speed"),
        ("servers", "a 1\nb inf\n", ", line 2: 'inf' is not a speed"),
        ("servers", "a 1\n", " has 1 lines, but there are 2 servers; .* or -s 1"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    path: Path, name: str, content: str, message: str
) -> None:
    path.write_text(content)
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}{message}") as caught:
        READERS[name](path)
    assert "\n" not in str(caught.value)


def test_other_mistakes(path: Path) -> None:
    path.write_text("10.0.0.1 10.0.0.2\n10.0.0.3 10.0.0.2\n")
    with pytest.raises(DataError, match="line 2: '10.0.0.2' is in the group of line 1 already; a"):
        read_groups(path, FOUR)
    path.write_text("fast\nslaw\n")
    with pytest.raises(DataError, match=r"line 2: 'slaw' .* \(did you mean 'slow'\?\)"):
        read_groups(path, ("fast", "slow"))
    path.write_bytes(b"\xff\xfe\n")
    for read in READERS.values():
        with pytest.raises(DataError, match="file cannot be read as .*: it is not text"):
            read(path)
        with pytest.raises(DataError, match="none cannot be read as .*: No such file"):
            read(path.with_name("none"))
