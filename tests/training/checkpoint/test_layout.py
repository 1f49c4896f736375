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

FEW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def body():
    def entry(name, kind, shape, start=0, total=0, offset=0):
        return {
            "name": name, "kind": kind, "dtype": "float32", "shape": shape, "start": start,
            "total": total, "offset": offset, "checksum": 5,
        }  # fmt: skip

    return {
        "format": 1,
        "update": 3,
        "serial": 1,
        "values": {},
        "about": {},
        "files": [
            {
                "size": 64,
                "entries": [
                    entry("head/centers", "sharded", [2, 4], 0, 3),
                    entry("net/weight", "replicated", [4], offset=32),
                    entry("net/mean", "own", [1], offset=48),
                ],
            },
            {
                "size": 64,
                "entries": [
                    entry("head/centers", "sharded", [1, 4], 2, 3),
                    entry("net/mean", "own", [1], offset=48),
                ],
            },
        ],
    }


def part_body():
    """Of the second rank's host, where hosts share no folder."""
    files = {"1": body()["files"][1]}
    return {**body(), "format": 2, "save": "word-1", "hosts": ["one", "two"], "files": files}


def read(folder, content, reader=layout.read):
    """Read a manifest with a right checksum, so that its rules are what is tested."""
    if isinstance(content, dict):
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content = json.dumps({**content, "checksum": zlib.crc32(text.encode())}).encode()
    (folder / "manifest.json").write_bytes(content)
    return reader(folder)


def test_a_part_says_who_has_the_rest(tmp_path):
    part = read(tmp_path, part_body(), layout.read_part)
    assert [*part.files] == [1] and part.world_size == 2 and part.key == "word-1"
    (tmp_path / "manifest.json").write_text(part.dump())
    assert layout.read_part(tmp_path) == part
    with pytest.raises(DataError, match="lacks rank-0000.bin of one; .* gather -H one,two "):
        layout.read(tmp_path)
    first = read(tmp_path, {**part_body(), "files": {"0": body()["files"][0]}}, layout.read_part)
    assert layout.join([part, first]) == read(tmp_path, body())
    with pytest.raises(DataError, match=r"update 3 has a gap in 'head/centers'"):
        layout.join([part, replace(first, files={0: part.files[1]})])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda b: b.update(save=""), "no save"),
        (lambda b: b.update(hosts=[]), "no hosts"),
        (lambda b: b.update(hosts=["one", 2]), "no hosts"),
        (lambda b: b.update(hosts=["one", "t\nwo"]), "no hosts"),
        (lambda b: b.update(files=[]), "no files"),
        (lambda b: b.update(hosts=["one"]), "a file of no rank"),
        (lambda b: b.update(files={"01": b["files"]["1"]}), "a file of no rank"),
        (lambda b: b["files"]["1"].pop("size"), "without a size"),
    ],
)
def test_each_broken_rule_of_a_part_is_named(change, rule, tmp_path):
    content = part_body()
    change(content)
    with pytest.raises(DataError, match=rule):
        read(tmp_path, content, layout.read_part)


def test_the_body_of_these_tests_is_valid(tmp_path):
    manifest = read(tmp_path, body())
    assert manifest.world_size == 2 and manifest.update == 3
    assert [(rank, entry.start) for rank, entry in manifest.slices("head/centers")] == [
        (0, 0),
        (1, 2),
    ]
    (tmp_path / "manifest.json").write_text(manifest.dump())
    assert layout.read(tmp_path) == manifest


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda b: b["files"][1]["entries"][0].update(start=1), "gap in 'head/centers'"),
        (lambda b: b["files"][0]["entries"][0].update(total=4), "another 'head/centers'"),
        (lambda b: b["files"].pop(), "lacks rows of 'head/centers'"),
        (lambda b: b["files"].clear(), "no files"),
        (lambda b: b["files"][0]["entries"][0].update(offset=60), "outside its file"),
        (lambda b: b["files"][0]["entries"][0].update(shape=[2**62, 2**62]), "outside its file"),
        (lambda b: b["files"][0]["entries"][0].update(shape=[-1, 4]), "wrong shape"),
        (lambda b: b["files"][0]["entries"][0].update(dtype="object"), "wrong type"),
        (lambda b: b["files"][0]["entries"][0].update(kind=["own"]), "wrong kind"),
        (lambda b: b["files"][0]["entries"][1].update(name="head/centers"), "twice"),
        (lambda b: b["files"][1]["entries"].pop(), "other arrays on rank 1"),
        (lambda b: b["files"][0].pop("size"), "without a size"),
        (lambda b: b.update(update=True), "no update"),
        (lambda b: b.update(format="1"), "no format"),
    ],
)
def test_each_broken_rule_is_named(change, rule, tmp_path):
    content = body()
    change(content)
    with pytest.raises(DataError, match=rule):
        read(tmp_path, content)


def test_arrays_have_up_to_eight_dimensions(tmp_path):
    content = body()
    for file in content["files"]:
        shape = file["entries"][0]["shape"]
        shape += [1] * (8 - len(shape))
    read(tmp_path, content)
    content["files"][0]["entries"][0]["shape"].append(1)
    with pytest.raises(DataError, match="wrong shape"):
        read(tmp_path, content)


def nodes(tree, path=()):
    """The paths to everything in a tree of dictionaries and lists."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, child in items if isinstance(tree, (dict, list)) else ():
        yield from nodes(child, (*path, key)) if isinstance(child, (dict, list)) else [(*path, key)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
BODIES = (body, part_body)
PATHS = [[path for path in nodes(make()) if path] for make in BODIES]


@FEW
@pytest.mark.parametrize("number", range(len(BODIES)))
@given(data=st.data())
def test_any_value_in_any_place(number, data, tmp_path):
    content = BODIES[number]()
    change = st.tuples(st.sampled_from(PATHS[number]), JSON)
    changes = data.draw(st.lists(change, min_size=1, max_size=3))
    for path, value in changes:
        place = content
        try:
            for key in path[:-1]:
                place = place[key]
            # An earlier change may have put a table where a list was; JSON has no such keys.
            if isinstance(place, list) == isinstance(path[-1], int):
                place[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    check(tmp_path, content)


@FEW
@given(content=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(content, tmp_path):
    check(tmp_path, content)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b"\xff"],
    ids=["lists", "tables", "digits", "no text"],
)
def test_content_that_json_parsers_fail_on(content, tmp_path):
    with pytest.raises(DataError):
        read(tmp_path, content)


def check(folder, content):
    try:
        manifest = read(folder, content, layout.read_part)
    except DataError as error:
        assert "\n" not in str(error)
        return
    for file in manifest.files.values():
        for entry in file.entries:
            assert 0 <= entry.offset <= entry.offset + entry.num_bytes <= file.size
