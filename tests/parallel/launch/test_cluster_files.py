import re
from collections.abc import Callable
from pathlib import Path

import pytest

from parallel.host_lists import (
    PORT,
    ListedHost,
    read_file,
    read_list,
    slots_by_host,
)  # fmt: skip
from parallel.launch import cluster_files
from parallel.launch.cluster_files import (
    format_groups,
    format_shares,
    read_groups,
    read_hosts,
    read_servers,
    read_shares,
)
from parallel.parameter_server.assignment import Share
from runtime.errors import ConfigError, DataError

TWO = {"ip1": 8, "ip2": 4}
TWO_MACHINES = ("a", "b", "a", "b")
ONE = ("127.0.0.1",) * 3


def of_file(folder: Path, data: bytes, **options: str) -> tuple[ListedHost, ...]:
    file = folder / "hosts"
    file.write_bytes(data)
    return read_file(file, **options)


def test_a_file_means_the_same_in_every_spelling(tmp_path: Path) -> None:
    for data in (
        b"ip1 slots=8\rip2 slots=4\r",
        b"\xef\xbb\xbfip1 slots=8\nip2 slots=4",
        "\ufeffip1 slots=8\r\nip2 slots=4\r\n".encode("utf-16-le"),
        b"# ours\n\nip1 slots=8 # fast\n  \nip2 slots=4#slow\n",
        b"\tip1\tslots = 8\t\n ip2   slots= 4 \n",
        b"ip1 max_slots=9 slots=8\nip2 slots=4 max-slots = 4\n",
        b"ip1 slots=7\nip2 slots=2\nip1\nip2:2",
    ):
        assert slots_by_host(of_file(tmp_path, data)) == TWO


def test_entries_keep_their_lines_ports_and_what_was_left_out(tmp_path: Path) -> None:
    for text in (" ip1:8 , ip2:4 ", "ip1:8,ip2:4,", "ip1:8,ip2:3,ip2\n"):
        assert list(slots_by_host(read_list(text)).items()) == list(TWO.items())
    found = of_file(tmp_path, b"# ours\r\nip2\r\n\r\nip1 slots=3\r\n")
    assert found == (ListedHost(2, "ip2"), ListedHost(4, "ip1", slots=3))
    assert slots_by_host(found) == {"ip2": None, "ip1": 3}
    found = of_file(tmp_path, b"ip1:2222\nip2 slots=2\nip1:22 slots=3\n", colon=PORT)
    assert found == (
        ListedHost(1, "ip1", port=2222), ListedHost(2, "ip2", slots=2),
        ListedHost(3, "ip1", slots=3, port=22),
    )  # fmt: skip
    found = of_file(tmp_path, b"ip1:65535", colon=PORT)
    assert found == (ListedHost(1, "ip1", port=65535),)
    entries = read_list("127.0.0.1:2,ip2:3,localhost:1,me,ip2:1")
    own = {"localhost", "127.0.0.1", "me"}.__contains__
    assert slots_by_host(entries, own) == {"127.0.0.1": 4, "ip2": 4}


@pytest.mark.parametrize("line", [
    *("ip1 slots=0", "ip1 slots=-1", "ip1 slots=10000", "ip1 slots=２", "ip1 max_slots="),
    *("ip1:2 slots=3", "ip1:", "ip1 2", "me@ip1 slots=2", "[::1]", "fe80::1 slots=2"),
    *("-oProxyCommand=x", "ip1;reboot", "höst"),
])  # fmt: skip
def test_a_line_that_no_launcher_can_use_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(DataError) as raised:
        of_file(tmp_path, f"# ours\nip0 slots=1\n{line}\n".encode())
    said = str(raised.value)
    assert said.startswith(f"{tmp_path / 'hosts'}, line 3: {line!r} is not a host; write its name")
    assert len(said.splitlines()) == 1


def test_a_port_or_a_list_that_no_launcher_can_use(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'ip1:65536' is not a host"):
        of_file(tmp_path, b"ip1:65536", colon=PORT)
    for text, entry in ((",", "host 1: ''"), ("a,,b", "host 2: ''"), ("a b", "host 1: 'a b'")):
        for name in ("-H", "HOSTS"):
            with pytest.raises(ConfigError) as raised:
                read_list(text, name=name)
            assert str(raised.value).startswith(f"{name} {text!r}, {entry} is not a host; write")


def test_what_is_not_a_file_of_hosts(tmp_path: Path) -> None:
    for name, data, reason in (
        ("hosts", b"\xef\xbb\xbf\r\n# ip1\n", "has no host; add a line for each"),
        ("hosts", b"\x80\x81", "it is not text in UTF-8 or UTF-16"),
        ("hosts", b"ip1\n" * 300_000, "it has more than 1,048,576 bytes"),
        ("none", b"", "cannot be read as a list of hosts, a line for each: No such file"),
        (".", b"", "it is not a regular file"),
        ("/dev/null", b"", "it is not a regular file"),
    ):
        if data:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=reason):
            read_file(tmp_path / name)


READERS: dict[str, Callable[[Path], object]] = {
    "hosts": lambda path: read_hosts(path, 2),
    "groups": lambda path: read_groups(path, TWO_MACHINES),
    "servers": lambda path: read_servers(path, 2, TWO_MACHINES),
    "shares": lambda path: read_shares(path, ONE),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.mark.parametrize(("content", "workers", "logins"), [
    ("\ufeffa\r\n\r\n\tb  # fast\r\n", 2, "a b"),
    ("a:2222 slots=1\nb:22\n", 2, "a:2222 b:22"),
    ("a\nb\nc\nd\n", 2, "a b"),
    ("a\nb\n", 5, "a b a b a"),
    # As often as there are slots: by turns, as dmlc-core's tracker does, while there are any.
    ("a slots=3\nb slots=1\n", 4, "a b a a"),
    ("a slots=1\nb slots=1\n", 3, "a b a"),
    ("a slots=1\nb\n", 4, "a b b b"),
])  # fmt: skip
def test_lines_of_hosts_are_the_workers_addresses(path, content, workers, logins) -> None:
    path.write_text(content)
    found = read_hosts(path, workers)
    assert found.logins == tuple(logins.split())
    assert found.addresses == tuple(login[0] for login in found.logins)


@pytest.mark.parametrize(("hosts", "content", "groups"), [
    (tuple("abcd"), "d b\na\nc\n", ((3, 1), (0,), (2,))),
    (TWO_MACHINES, "\ufeff# two\r\na:0\tb:0 # fast\r\n\r\na:1 b:1", ((0, 1), (2, 3))),
    (TWO_MACHINES, "a b\nb a\n", ((0, 1), (3, 2))),
    (TWO_MACHINES, "a:1 b\na b\n", ((2, 1), (0, 3))),
])  # fmt: skip
def test_a_line_is_a_group(path, hosts, content, groups) -> None:
    path.write_text(content)
    assert read_groups(path, hosts) == groups


def test_text_that_is_written_is_read_as_it_was(path: Path) -> None:
    """Slots have numbers only where MXNet-G, which knows addresses alone, could not read it."""
    assert format_groups([(2, 0), (1, 3)], TWO_MACHINES) == "a:1 a:0\nb b\n"
    assert format_groups([(0, 2), (1, 3)], TWO_MACHINES) == "a a\nb b\n"
    assert format_groups([(0, 1), (2, 3)], TWO_MACHINES) == "a:0 b:0\na:1 b:1\n"
    shares = (Share(0.5, 1.0), Share(1 / 3, 0.5), Share(0.0, 0.1), Share(0.1, 1 / 3))
    path.write_text(format_shares(shares, TWO_MACHINES))
    assert read_shares(path, TWO_MACHINES)[0] == shares
    path.write_text(cluster_files.format_servers(["b", "a", "b"], [2.5, 1, 2.5]))
    assert path.read_text() == "b 2.5\na 1\nb 2.5\n"
    assert read_servers(path, 3, TWO_MACHINES) == (("b", "a", "b"), (2.5, 1.0, 2.5))


@pytest.mark.parametrize(("name", "content", "message"), [
    ("hosts", "a\nb c\n", ", line 2: 'b c' is not a host"),
    ("hosts", "a\nb:ssh\n", ", line 2: 'b:ssh' is not a host"),
    ("groups", "", " is empty; each line holds the addresses of a group"),
    ("groups", "a:0 b:0\n\na:0 b:1\n", ", line 3: 'a:0' is no slot of a that is left; it has 2"),
    ("groups", "a b\na\n", ": 'b' of worker 3 is in no group; give it to one, or a line of"),
    ("groups", "a b\na c\n", ", line 2: 'c' is no address of a worker"),
    ("groups", "a:0 b:0\na:2 b:1\n", ", line 2: 'a:2' is no slot of a that is left"),
    ("groups", "a:² b:0\n", ", line 1: 'a:²' is no slot of a that is left"),
    ("servers", "a 1\nb 1 2\n", ", line 2: 'b 1 2' is not the address"),
    ("servers", "a 1\nc 1\n", ", line 2: 'c' is no address of a worker.*; they are a, b"),
    ("servers", "a 0\nb 1\n", ", line 1: '0' is not a speed"),
    ("servers", "a 1\nb inf\n", ", line 2: 'inf' is not a speed; give a positive number"),
    ("servers", "a 1\n", " has 1 lines, but there are 2 servers; .* or -s 1"),
    ("shares", "# none\n", " is empty; each line holds two numbers"),
    ("shares", "0 0.5\n0.5 1\n", " has 2 lines, but there are 3 workers"),
    ("shares", "0 0.5\n\n0.5 all\n0.5 1\n", ", line 3: '0.5 all' is not two numbers"),
    ("shares", "0 0.5\n0.5 inf\n0.5 1\n", ", line 2: '0.5 inf' is not two numbers"),
])  # fmt: skip
def test_a_mistake_is_named_with_its_line(path, name, content, message) -> None:
    path.write_text(content)
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}{message}") as caught:
        READERS[name](path)
    assert "\n" not in str(caught.value)


def test_other_mistakes(path: Path) -> None:
    path.write_text("fast\nslaw\n")
    with pytest.raises(DataError, match=r"line 2: 'slaw' .* \(did you mean 'slow'\?\)"):
        read_groups(path, ("fast", "slow"))
    path.write_bytes(b"\xff\xfe\n")
    for read in READERS.values():
        with pytest.raises(DataError, match="file cannot be read as .*: it is not text"):
            read(path)
        with pytest.raises(DataError, match="none cannot be read as .*: No such file"):
            read(path.with_name("none"))


def test_lines_go_to_addresses_in_descending_order(path: Path) -> None:
    # "9" is above "2" and "10": addresses are compared as text.
    cluster = ("10.0.0.10", "10.0.0.9", "10.0.0.2", "10.0.0.9")
    content = "\ufeff# shares\r\n0 0.1\r\n\r\n0.1\t0.3 # slow\n0.3 .60\n 6e-1 1\n"
    path.write_text(content)
    shares, said = read_shares(path, cluster)
    assert shares == ((0.6, 1), (0, 0.1), (0.3, 0.6), (0.1, 0.3))
    assert said[0] == f"worker 1 on 10.0.0.9 reads 0 to 0.1 of the data ({path}, line 2)"
    assert [line.split()[1] for line in said] == ["1", "3", "2", "0"]


@pytest.mark.parametrize(("content", "warnings"), [
    ("0.1 0.5\n0.5 0.7\n0.7 0.96\n", ["nobody reads 14 % of the data"]),
    ("0 0.5\n0.4 0.7\n0.7 1\n", ["several workers read 10 % of the data"]),
    ("0 0.2\n0.1 0.3\n0.4 1\n", ["nobody reads 10 %", "several workers read 10 %"]),
    # Decimal fractions that were added up, and rounded to more than the whole.
    ("0 0.1\n0.1 0.30000000000000004\n0.3 1.0000000000000002\n", []),
    # A worker without images; an end above the whole; a start below 0.
    ("0 .5\n.5 1.03\n1.03 .98\n", []),
    ("-0.01 .5\n.5 .7\n.9 .7\n", ["nobody reads 30 %"]),
    ("0 .2\n.2 .5\n.5 .7\n# spare\n.7 1\n", ["nobody reads 30 %"]),
    # It reads the first two words of a line.
    ("0 .2 a\n.2 .5 0.9 b\n.5 1\n", []),
])  # fmt: skip
def test_what_mxnet_g_accepts_is_accepted_with_a_warning(path, content, warnings) -> None:
    path.write_text(content)
    _, lines = read_shares(path, ONE)
    found = [line for line in lines if line.startswith("warning: ")]
    assert len(found) == len(warnings), found
    assert all(part in line for part, line in zip(warnings, found)), found
