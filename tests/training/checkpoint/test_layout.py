"""Whatever a manifest's bytes are: a manifest whose arrays lie in their files, or a DataError."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.errors import DataError
from training.checkpoint import layout


def body():
    def entry(name, kind, shape, start=0, total=0, offset=0):
        return {
            "name": name, "kind": kind, "dtype": "float32", "shape": shape, "start": start,
            "total": total, "offset": offset, "checksum": 5,
        }  # fmt: skip

    first = [
        entry("head/centers", "sharded", [2, 4], 0, 3),
        entry("net/weight", "replicated", [4], offset=32),
        entry("net/mean", "own", [1], offset=48),
    ]
    second = [entry("head/centers", "sharded", [1, 4], 2, 3), entry("net/mean", "own", [1])]
    files = [{"size": 64, "entries": entries} for entries in (first, second)]
    return {"format": 1, "update": 3, "serial": 1, "values": {}, "about": {}, "files": files}


def part_body():
    """Of the second rank's host, where hosts share no folder."""
    files = {"1": body()["files"][1]}
    return {**body(), "format": 2, "save": "word-1", "hosts": ["one", "two"], "files": files}


def read(folder, content, reader=layout.read_part):
    """Read a manifest with a right checksum, so that its rules are what is tested."""
    if isinstance(content, dict):
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content = json.dumps({**content, "checksum": zlib.crc32(text.encode())}).encode()
    (folder / "manifest.json").write_bytes(content)
    return reader(folder)


def test_a_part_says_who_has_the_rest(tmp_path):
    part = read(tmp_path, part_body())
    assert [*part.files] == [1] and part.world_size == 2 and part.key == "word-1"
    (tmp_path / "manifest.json").write_text(part.dump())
    assert layout.read_part(tmp_path) == part
    with pytest.raises(DataError, match="lacks rank-0000.bin of one; .* gather -H one,two "):
        layout.read(tmp_path)
    first = read(tmp_path, {**part_body(), "files": {"0": body()["files"][0]}})
    assert layout.join([part, first]) == read(tmp_path, body(), layout.read)
    with pytest.raises(DataError, match=r"update 3 has a gap in 'head/centers'"):
        layout.join([part, replace(first, files={0: part.files[1]})])


def test_the_body_of_these_tests_is_valid(tmp_path):
    manifest = read(tmp_path, body(), layout.read)
    assert manifest.world_size == 2 and manifest.update == 3
    slices = [(rank, entry.start) for rank, entry in manifest.slices("head/centers")]
    assert slices == [(0, 0), (1, 2)]
    (tmp_path / "manifest.json").write_text(manifest.dump())
    assert layout.read(tmp_path) == manifest


def entry_of(body, file, number):
    return body["files"][file]["entries"][number]


@pytest.mark.parametrize(
    ("make", "change", "rule"),
    [
        (body, lambda b: entry_of(b, 1, 0).update(start=1), "gap in 'head/centers'"),
        (body, lambda b: entry_of(b, 0, 0).update(total=4), "another 'head/centers'"),
        (body, lambda b: entry_of(b, 1, 1).update(shape=[2]), "different shapes of 'net/mean'"),
        (body, lambda b: b["files"].pop(), "lacks rows of 'head/centers'"),
        (body, lambda b: b["files"].clear(), "no files"),
        (body, lambda b: entry_of(b, 0, 0).update(offset=60), "outside its file"),
        (body, lambda b: entry_of(b, 0, 0).update(shape=[2**62, 2**62]), "outside its file"),
        (body, lambda b: entry_of(b, 0, 0).update(shape=[-1, 4]), "wrong shape"),
        (body, lambda b: entry_of(b, 0, 0).update(shape=[2, 4] + 7 * [1]), "wrong shape"),
        (body, lambda b: entry_of(b, 0, 0).update(dtype="object"), "wrong type"),
        (body, lambda b: entry_of(b, 0, 0).update(kind=["own"]), "wrong kind"),
        (body, lambda b: entry_of(b, 0, 1).update(name="head/centers"), "twice"),
        (body, lambda b: b["files"][1]["entries"].pop(), "other arrays on rank 1"),
        (body, lambda b: b["files"][0].pop("size"), "without a size"),
        (body, lambda b: b.update(update=True), "no update"),
        (body, lambda b: b.update(format="1"), "no format"),
        (part_body, lambda b: b.update(save=""), "no save"),
        (part_body, lambda b: b.update(hosts=[]), "no hosts"),
        (part_body, lambda b: b.update(hosts=["one", 2]), "no hosts"),
        (part_body, lambda b: b.update(hosts=["one", "t\nwo"]), "no hosts"),
        (part_body, lambda b: b.update(files=[]), "no files"),
        (part_body, lambda b: b.update(hosts=["one"]), "a file of no rank"),
        (part_body, lambda b: b.update(files={"01": b["files"]["1"]}), "a file of no rank"),
        (part_body, lambda b: b["files"]["1"].pop("size"), "without a size"),
    ],
)
def test_each_broken_rule_is_named(make, change, rule, tmp_path):
    content = make()
    change(content)
    with pytest.raises(DataError, match=rule):
        read(tmp_path, content)


def test_arrays_have_up_to_eight_dimensions(tmp_path):
    content = body()
    for file in content["files"]:
        shape = file["entries"][0]["shape"]
        shape += [1] * (8 - len(shape))
    read(tmp_path, content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("make", [body, part_body])
@given(data=st.data())
def test_any_value_in_any_place(make, data, tmp_path):
    content = place = make()
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    try:
        part = read(tmp_path, content)
    except DataError as error:
        assert "\n" not in str(error)
        return
    for file in part.files.values():
        for entry in file.entries:
            assert 0 <= entry.offset <= entry.offset + entry.num_bytes <= file.size


def test_content_that_json_parsers_fail_on(tmp_path):
    for content in (b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b"\xff"):
        with pytest.raises(DataError):
            read(tmp_path, content)
