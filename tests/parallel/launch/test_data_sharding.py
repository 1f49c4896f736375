from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel.launch import data_sharding
from parallel.parameter_server.assignment import Share
from runtime.errors import DataError

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read(folder, content, workers=3):
    path = folder / "data_sharding"
    path.write_text(content)
    return data_sharding.read(path, workers)


def test_line_k_is_what_worker_k_reads_in_any_order(tmp_path):
    assert read(tmp_path, "0.5 1\n0 0.2\n0.2 0.5\n") == ((0.5, 1), (0, 0.2), (0.2, 0.5))


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
            "data_sharding, line 3 begins at 0.6, but line 1 ends at 0.5: nobody reads what is",
        ),
        ("0.1 0.5\n0.5 0.7\n0.7 1\n", "data_sharding, line 1 begins at 0.1, but the data begins"),
        ("0 0.5\n0.5 0.7\n0.7 0.9\n", "data_sharding: line 3 ends at 0.9, and nobody reads"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}/{message}"):
        read(tmp_path, content)


@UNHURRIED
@given(
    cuts=st.sets(st.floats(0, 1, exclude_min=True, exclude_max=True), max_size=6), data=st.data()
)
def test_what_is_written_is_read(tmp_path_factory, cuts, data):
    edges = [0.0, *sorted(cuts), 1.0]
    shares = data.draw(st.permutations([Share(*edge) for edge in zip(edges, edges[1:])]))
    path = tmp_path_factory.getbasetemp() / "written-shares"
    path.write_text(data_sharding.text(shares))
    assert data_sharding.read(path, len(shares)) == tuple(shares)


@UNHURRIED
@given(content=st.text(st.sampled_from("0.15 \n-ex"), max_size=20))
def test_any_content_is_the_whole_or_one_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any-shares"
    path.write_text(content)
    try:
        shares = data_sharding.read(path, 2)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert sum(share.end - share.start for share in shares) == pytest.approx(1)
