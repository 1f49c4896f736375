from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel.launch import hosts
from runtime.errors import DataError

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_a_line_is_a_workers_address(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("10.0.0.1\nfast-1.lab\n  10.0.0.1\n")
    assert hosts.read(path, 3) == ("10.0.0.1", "fast-1.lab", "10.0.0.1")


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
def test_a_mistake_is_named_with_its_line(tmp_path, content, message):
    path = tmp_path / "hosts"
    path.write_text(content)
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}/{message}"):
        hosts.read(path, 2)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(DataError, match="hosts cannot be read: No such file"):
        hosts.read(tmp_path / "hosts", 2)
    (tmp_path / "hosts").write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match="hosts is no text file"):
        hosts.read(tmp_path / "hosts", 2)


@UNHURRIED
@given(content=st.text(max_size=40), workers=st.integers(1, 3))
def test_any_content_is_hosts_or_one_error(tmp_path_factory, content, workers):
    path = tmp_path_factory.getbasetemp() / "any-hosts"
    path.write_bytes(content.encode())
    try:
        addresses = hosts.read(path, workers)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert len(addresses) == workers and not any(one.startswith("-") for one in addresses)
