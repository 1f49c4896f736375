"""Whatever a manifest's bytes are: a manifest whose arrays lie in their files, or a DataError."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.errors import DataError
from training.checkpoint import layout


def body() -> dict[str, Any]:
    def entry(name, kind, shape, start=0, total=0, offset=0):
        return {**locals(), "dtype": "float32", "checksum": 5}

    first = [
        entry("head/centers", "sharded", [2, 4], 0, 3),
        entry("net/weight", "replicated", [4], offset=32),
        entry("net/mean", "own", [1], offset=48),
    ]
    second = [entry("head/centers", "sharded", [1, 4], 2, 3), entry("net/mean", "own", [1])]
    files = {str(rank): {"size": 64, "entries": each} for rank, each in enumerate([first, second])}
    return {
        "format": layout.FORMAT, "update": 3, "serial": 1, "save": "word", "hosts": [],
        "values": {}, "about": {}, "files": files,
    }  # fmt: skip


def part_body() -> dict[str, Any]:
    """Of the second of three hosts that share no folder."""
    content = {**body(), "hosts": ["one", "two", "three"]}
    content["files"] = {"1": body()["files"]["1"]}
    entries_of(content, 1)[0]["total"] = 4
    return content


def entries_of(content: dict[str, Any], rank: int) -> Any:
    return content["files"][str(rank)]["entries"]


def parse(content: Any) -> layout.Part:
    """Read a manifest with a right checksum, so that its rules are what is tested."""
    if isinstance(content, dict):
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content = json.dumps({**content, "checksum": zlib.crc32(text.encode())}).encode()
    return layout.parse(content, "manifest.json")


def test_what_is_valid_is_written_and_read(tmp_path: Path) -> None:
    for make, ranks, world_size in ((body, [0, 1], 2), (part_body, [1], 3)):
        part = parse(make())
        assert [*part.files] == ranks and part.world_size == world_size and part.update == 3
        assert layout.parse(part.dump().encode(), "again") == part
    content = body()
    for rank in (0, 1):
        shape = entries_of(content, rank)[0]["shape"]
        shape += [1] * (8 - len(shape))
    parse(content)
    # A gap is no mistake where the file between is elsewhere.
    content = part_body()
    content["files"]["2"] = body()["files"]["1"]
    entries_of(content, 2)[0].update(start=3, total=4)
    parse(content)


@pytest.mark.parametrize(
    ("make", "change", "rule"),
    [
        (body, lambda b: entries_of(b, 1)[0].update(start=1), "gap in 'head/centers'"),
        (body, lambda b: entries_of(b, 0)[0].update(start=1), "gap in 'head/centers'"),
        (body, lambda b: entries_of(b, 0)[0].update(total=4), "another 'head/centers'"),
        (body, lambda b: entries_of(b, 1)[0].update(dtype="int32"), "another 'head/centers'"),
        (body, lambda b: entries_of(b, 1)[1].update(shape=[2]), "different shapes of 'net/mean'"),
        (body, lambda b: b["files"].pop("1"), "lacks rows of 'head/centers'"),
        (body, lambda b: b["files"].clear(), "or none"),
        (body, lambda b: entries_of(b, 0)[0].update(offset=60), "outside its file"),
        (body, lambda b: entries_of(b, 0)[0].update(shape=[2**62, 2**62]), "outside its file"),
        (body, lambda b: entries_of(b, 0)[0].update(shape=[-1, 4]), "wrong shape"),
        (body, lambda b: entries_of(b, 0)[0].update(shape=[2, 4] + 7 * [1]), "wrong shape"),
        (body, lambda b: entries_of(b, 0)[0].update(shape=[]), "wrong shape"),
        (body, lambda b: entries_of(b, 0)[0].update(dtype="object"), "wrong dtype"),
        (body, lambda b: entries_of(b, 0)[0].update(kind=["own"]), "wrong kind"),
        (body, lambda b: entries_of(b, 0)[0].update(name=5), "wrong name"),
        (body, lambda b: entries_of(b, 0)[0].update(start="0"), "wrong start"),
        (body, lambda b: entries_of(b, 0)[0].pop("start"), "an array of other fields"),
        (body, lambda b: entries_of(b, 0)[1].update(name="head/centers"), "twice"),
        (body, lambda b: entries_of(b, 1).pop(), "other arrays on rank 1"),
        (body, lambda b: b["files"]["0"].pop("size"), "a file of other fields"),
        (body, lambda b: b["files"]["0"].pop("entries"), "a file of other fields"),
        (body, lambda b: b.update(update=True), "wrong update"),
        (body, lambda b: b.update(update=-1), "wrong update"),
        (body, lambda b: b.update(serial=2**63), "wrong serial"),
        (body, lambda b: b.update(more=1), "a table of other fields"),
        (body, lambda b: b.update(values=[]), "wrong values"),
        (body, lambda b: b.update(format="1"), "no format"),
        (body, lambda b: b.update(format=1), f"has format 1, this program reads {layout.FORMAT}"),
        (body, lambda b: b.update(save=5), "wrong save"),
        (part_body, lambda b: b.update(hosts=["one", 2]), "wrong hosts"),
        (part_body, lambda b: b.update(hosts=["one", "t\nwo"]), "wrong hosts"),
        (part_body, lambda b: b.update(hosts=["one"] * 100_001), "wrong hosts"),
        (part_body, lambda b: b.update(hosts=["one"]), "a file of no rank"),
        (part_body, lambda b: b.update(files={"01": b["files"]["1"]}), "a file of no rank"),
        (part_body, lambda b: entries_of(b, 1)[0].update(start=4), "lacks rows of 'head/centers'"),
    ],
)
def test_each_broken_rule_is_named(make, change, rule: str) -> None:
    content = make()
    change(content)
    with pytest.raises(DataError, match=rule):
        parse(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(make=st.sampled_from([body, part_body]), data=st.data())
def test_any_value_in_any_place(make, data: st.DataObject) -> None:
    content: Any = make()
    place = content
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    try:
        part = parse(content)
    except DataError as error:
        assert "\n" not in str(error)
        return
    for file in part.files.values():
        for entry in file.entries:
            assert 0 <= entry.offset <= entry.offset + entry.num_bytes <= file.size


def test_content_that_json_parsers_fail_on(tmp_path: Path) -> None:
    for content in (b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b"\xff", b"[]"):
        with pytest.raises(DataError):
            parse(content)
    with pytest.raises(DataError, match="does not match its checksum"):
        parse(json.dumps({**body(), "checksum": 1}).encode())
    manifest = tmp_path / layout.FILE_NAME
    manifest.touch()
    os.truncate(manifest, layout.MAX_BYTES + 1)
    with pytest.raises(DataError, match="manifest.json cannot be read .it has more than"):
        layout.read_part(tmp_path)


def test_files_on_other_hosts_are_named() -> None:
    first = "rank-0000.bin of a, rank-0001.bin of b, rank-0002.bin of c"
    assert layout.lacking(range(3), "abcde") == first
    assert layout.lacking(range(5), "abcde") == f"{first} and 2 others"
