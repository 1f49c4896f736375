"""The command on checkpoints whose class centers are in a store; the rest is in test_files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.shard import Shard
from partial_fc.store import header as headers
from partial_fc.store.header import STORE
from runtime.errors import ConfigError, DataError
from runtime.state import REPLICATED, Stored
from tests.support.stored_head import CLASSES, EMBEDDING, advance, create, reference
from tests.support.thread_world import run_ranks
from training.checkpoint import __main__ as command
from training.checkpoint import files
from training.checkpoint.layout import Part

UPDATE = 4


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint and its store, which has gone on after it."""
    store = tmp_path / "centers"

    def run(world: Any) -> dict[str, Any]:
        head = create(world, store)
        head.export_state(0)
        advance(world, head, 0, UPDATE)
        state = head.export_state(UPDATE)
        advance(world, head, UPDATE, UPDATE + 2)
        head.rows.close()
        return dict(state.values)

    values = run_ranks(1, run)[0]
    return publish(tmp_path, {"head": values}), store


def publish(root: Path, values: dict[str, Any]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    folder = files.hidden_folder(root / files.name_of(UPDATE), "a")
    files.write_rank(folder, 0, {"net/weight": Stored(REPLICATED, np.ones(3, np.float32))})
    about = {"configuration": {"center_store": "./centers"}}
    header = Part(UPDATE, files.newest_serial(root) + 1, "", (), {}, values, about)
    return files.publish(folder, header, range(1), 9)


def test_merge_takes_the_rows_of_the_store(saved: tuple[Path, Path], capsys) -> None:
    path, store = saved
    command.main(["merge", str(path), "--center-store", str(store)])
    assert "3 arrays" in capsys.readouterr().out
    expected = reference(UPDATE)
    with np.load(path.with_suffix(".npz")) as arrays:
        assert set(arrays) == {"net/weight", "head/centers", "head/momenta"}
        for name, rows in expected.items():
            np.testing.assert_array_equal(arrays[f"head/{name}"], rows)
            assert arrays[f"head/{name}"].dtype == rows.dtype


def test_verify_reads_the_store(saved: tuple[Path, Path], capsys) -> None:
    path, store = saved
    command.main(["verify", str(path), "--center-store", str(store)])
    said = capsys.readouterr().out
    written = np.count_nonzero(reference(UPDATE)["momenta"].any(axis=1))
    assert f"{store} is intact: {written:,} rows of {CLASSES:,} classes" in said
    records = store / headers.RECORDS
    records.write_bytes(bytes(records.stat().st_size))
    with pytest.raises(DataError, match="does not match its checksum"):
        command.main(["verify", str(path), "--center-store", str(store)])


def test_info_says_what_the_store_has(saved: tuple[Path, Path], capsys) -> None:
    path, store = saved
    command.main(["info", str(path)])
    assert "class centers in a store: add --center-store DIR, for its run ./centers" in (
        capsys.readouterr().out
    )
    command.main(["info", str(path), "--center-store", str(store)])
    said = capsys.readouterr().out
    assert f"{store}, {CLASSES:,} classes, of each centers float32 ({EMBEDDING},)" in said


@pytest.mark.parametrize("action", ["verify", "merge"])
def test_without_the_store_it_says_what_to_do(saved: tuple[Path, Path], action: str) -> None:
    with pytest.raises(DataError, match="in a store.*add --center-store DIR, for its run") as said:
        command.main([action, str(saved[0])])
    assert "\n" not in str(said.value)
    assert not list(saved[0].parent.glob("*.npz"))


def test_a_store_that_is_not_needed_or_another_one_is_refused(
    saved: tuple[Path, Path], tmp_path: Path
) -> None:
    path, store = saved
    for action in ("info", "verify", "merge"):
        other = publish(tmp_path / "other", {"head": {STORE: 17}})
        with pytest.raises(DataError, match="is not the store of this checkpoint"):
            command.main([action, str(other), "--center-store", str(store)])
        without = publish(tmp_path / "without", {"head": {}})
        with pytest.raises(DataError, match="is not needed: the checkpoint has its class centers"):
            command.main([action, str(without), "--center-store", str(store)])
    with pytest.raises(ConfigError, match="goes with info, verify and merge, not with gather"):
        command.main(["gather", str(path), "-H", "a", "--center-store", str(store)])


def test_a_store_of_some_classes_is_verified_and_not_merged(tmp_path: Path, capsys) -> None:
    """Other hosts have the others: here the store of the second of two."""
    store = tmp_path / "centers"

    def run(world: Any) -> dict[str, Any]:
        # Ranks of two hosts: each finds a folder of its own.
        head = create(world, store / str(world.rank))
        head.export_state(0)
        advance(world, head, 0, UPDATE)
        values = dict(head.export_state(UPDATE).values)
        head.rows.close()
        return values

    path = publish(tmp_path, {"head": run_ranks(2, run)[0]})
    own = Shard(1, 2, CLASSES)
    command.main(["verify", str(path), "--center-store", str(store / "1")])
    assert f"rows of classes {own.start} to {own.stop - 1} of 1,000" in capsys.readouterr().out
    with pytest.raises(DataError, match="as other hosts have the others"):
        command.main(["merge", str(path), "--center-store", str(store / "1")])
    assert not list(tmp_path.rglob("*.npz"))


def test_merge_overwrites_no_other_file(tmp_path: Path, capsys) -> None:
    path = publish(tmp_path, {})
    (tmp_path / "user").write_bytes(b"precious")
    for name in (".merged.npz.part", "merged.npz"):
        (tmp_path / name).symlink_to("user")
    command.main(["merge", str(path), "--output", str(tmp_path / "merged.npz")])
    assert (tmp_path / "user").read_bytes() == b"precious"
    assert np.load(tmp_path / "merged.npz")["net/weight"].tolist() == [1, 1, 1]
