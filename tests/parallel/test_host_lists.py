from __future__ import annotations

from pathlib import Path

import pytest

from parallel.host_lists import PORT, ListedHost, read_file, read_list, slots_by_host
from runtime.errors import ConfigError, DataError

TWO = {"ip1": 8, "ip2": 4}


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
    assert read_list("ip1:65535", colon=PORT) == (ListedHost(1, "ip1", port=65535),)
    # Names of this host are one host.
    entries = read_list("127.0.0.1:2,ip2:3,localhost:1,me,ip2:1")
    own = {"localhost", "127.0.0.1", "me"}.__contains__
    assert slots_by_host(entries, own) == {"127.0.0.1": 4, "ip2": 4}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ip1 slots=0", "has '0' for slots; give a number from 1 to 9999"),
        ("ip1 slots=-1", "has '-1' for slots"),
        ("ip1 slots=10000", "has '10000' for slots"),
        ("ip1 slots=２", "has '２' for slots"),
        ("ip1 max_slots=", "has '' for max_slots"),
        ("ip1 slots=4 max_slots=3", "has more slots than max_slots=3"),
        ("ip1 slots=2 slots=3", "has two numbers of slots"),
        ("ip1:2 slots=3", "has two numbers of slots"),
        ("ip1:", "has '' for slots"),
        ("ip1 2", "'2' is not understood; write a line as in \"ip1 slots=8\""),
        ("me@ip1 slots=2", "names a user; write the host alone, and the user in ~/.ssh/config"),
        ("[::1]", "IPv6 does not work between ranks: give a name or an IPv4 address"),
        ("fe80::1 slots=2", "IPv6"),
        ("-oProxyCommand=x", "is not a host"),
        ("ip1;reboot", "is not a host"),
        ("höst", "is not a host"),
    ],
)
def test_a_line_that_no_launcher_can_use_is_named(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(DataError) as raised:
        of_file(tmp_path, f"# ours\nip0 slots=1\n{line}\n".encode())
    said = str(raised.value)
    assert said.startswith(f"{tmp_path / 'hosts'}, line 3: {line!r} ") and reason in said
    assert len(said.splitlines()) == 1


def test_a_list_that_no_launcher_can_use() -> None:
    with pytest.raises(ConfigError, match="has '65536' for port; give a number from 1 to 65535"):
        read_list("ip1:65536", colon=PORT)
    for text, reason in ((",", "is empty"), ("a,,b", "host 2: '' is empty"), ("a b", "'b' is not")):
        with pytest.raises(ConfigError) as raised:
            read_list(text)
        said = str(raised.value)
        assert reason in said and said.startswith(f"-H {text!r}{', ' if ',,' in text else ' '}")
        with pytest.raises(ConfigError, match="^HOSTS "):
            read_list(text, name="HOSTS")


def test_what_is_not_a_file_of_hosts(tmp_path: Path) -> None:
    for name, data, reason in (
        ("hosts", b"\xef\xbb\xbf\r\n# ip1\n", "has no host; add a line for each"),
        ("hosts", b"\x80\x81", "it is not text in UTF-8 or UTF-16"),
        ("hosts", b"ip1\n" * 300_000, "it has more than 1,048,576 bytes"),
        ("none", b"", "cannot be read as a list of hosts, a line for each .*: No such file"),
        (".", b"", "it is not a regular file"),
        ("/dev/null", b"", "it is not a regular file"),
    ):
        if data:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=reason):
            read_file(tmp_path / name)
