from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel.launch import groups
from runtime.errors import DataError

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

FOUR = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
ONE_MACHINE = ("127.0.0.1",) * 4
TWO_MACHINES = ("a", "b", "a", "b")


def read(folder, content, hosts):
    path = folder / "groups"
    path.write_text(content)
    return groups.read(path, hosts)


def test_a_line_is_a_group(tmp_path):
    content = "10.0.0.4 10.0.0.2\n10.0.0.1\n10.0.0.3\n"
    assert read(tmp_path, content, FOUR) == ((3, 1), (0,), (2,))


def test_an_address_means_its_next_slot(tmp_path):
    content = "127.0.0.1 127.0.0.1\n127.0.0.1 127.0.0.1\n"
    assert read(tmp_path, content, ONE_MACHINE) == ((0, 1), (2, 3))
    assert read(tmp_path, "a b\nb a\n", TWO_MACHINES) == ((0, 1), (3, 2))


def test_a_slot_can_be_named(tmp_path):
    content = "127.0.0.1:3 127.0.0.1:0\n127.0.0.1:1 127.0.0.1:2\n"
    assert read(tmp_path, content, ONE_MACHINE) == ((3, 0), (1, 2))
    assert read(tmp_path, "a:1 b\na:0 b\n", TWO_MACHINES) == ((2, 1), (0, 3))


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
def test_a_mistake_is_named_with_its_line(tmp_path, hosts, content, message):
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}/{message}"):
        read(tmp_path, content, hosts)


@UNHURRIED
@given(data=st.data())
def test_what_is_written_is_read(tmp_path_factory, data):
    hosts = data.draw(st.lists(st.sampled_from(["a", "b", "127.0.0.1"]), min_size=1, max_size=8))
    order = data.draw(st.permutations(range(len(hosts))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(hosts)))) | {len(hosts)})
    made = tuple(tuple(order[a:b]) for a, b in zip([0, *cuts], cuts))
    path = tmp_path_factory.getbasetemp() / "written-groups"
    path.write_text(groups.text(made, hosts))
    assert groups.read(path, hosts) == made


@UNHURRIED
@given(content=st.text(st.sampled_from("ab:012 \nx²٣"), max_size=30))
def test_any_content_is_groups_or_one_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any-groups"
    path.write_text(content)
    try:
        found = groups.read(path, TWO_MACHINES)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert sorted(worker for group in found for worker in group) == [0, 1, 2, 3]
