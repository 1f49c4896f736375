"""The command on checkpoints whose class centers are in a store; the rest is in test_files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.shard import Shard
from partial_fc.store import header as headers
from runtime.errors import DataError
from runtime.state import REPLICATED, Stored
from tests.support.stored_head import CLASSES, EMBEDDING, reference, trained
from tests.training.checkpoint.test_files import write
from training.checkpoint.__main__ import main

UPDATE = 4


def publish(root: Path, head: dict[str, Any]) -> Path:
    arrays = {"net/weight": Stored(REPLICATED, np.ones(3, np.float32))}
    about = {"configuration": {"center_store": "./centers"}}
    return write(root, UPDATE, 1, arrays=lambda *_: arrays, values={"head": head}, about=about)


def saved(root: Path, ranks: int = 1) -> tuple[Path, list[str]]:
    """A checkpoint, and the option of the last rank's store, which has gone on after it."""
    # Ranks of as many hosts: each has a folder of its own.
    folders = [root / "centers" / str(rank) for rank in range(ranks)]
    values = trained(*folders, updates=UPDATE).values()
    return publish(root, values), ["--center-store", str(folders[-1])]


def test_verify_info_and_merge_read_the_store(tmp_path: Path, capsys) -> None:
    path, store = saved(tmp_path)
    main(["info", str(path)])
    main(["info", str(path), *store])
    said = capsys.readouterr().out
    assert "class centers in a store: add --center-store DIR, for its run ./centers" in said
    assert f"{store[1]}, {CLASSES:,} classes, of each centers float32 ({EMBEDDING},)" in said
    for action in ("verify", "merge"):
        with pytest.raises(DataError, match="in a store.*add --center-store DIR, for its run"):
            main([action, str(path)])
    assert not list(path.parent.glob("*.npz"))
    expected = reference(UPDATE)
    main(["verify", str(path), *store])
    main(["merge", str(path), *store])
    written = np.count_nonzero(expected["momenta"].any(axis=1))
    said = capsys.readouterr().out
    assert f"is intact: {written:,} rows of {CLASSES:,} classes" in said and "3 arrays" in said
    with np.load(path.with_suffix(".npz")) as arrays:
        assert set(arrays) == {"net/weight", "head/centers", "head/momenta"}
        for name, rows in expected.items():
            np.testing.assert_array_equal(arrays[f"head/{name}"], rows)
            assert arrays[f"head/{name}"].dtype == rows.dtype
    # Of another store, and of none.
    for head, said in (
        ({headers.STORE: 17}, "is not the store of this checkpoint"),
        ({}, "is not needed: the checkpoint has its class centers"),
    ):
        other = publish(tmp_path / f"other{len(head)}", head)
        for action in ("info", "verify", "merge"):
            with pytest.raises(DataError, match=said):
                main([action, str(other), *store])
    records = Path(store[1]) / headers.RECORDS
    records.write_bytes(bytes(records.stat().st_size))
    with pytest.raises(DataError, match="does not match its checksum"):
        main(["verify", str(path), *store])


def test_a_store_of_some_classes_is_verified_and_not_merged(tmp_path: Path, capsys) -> None:
    """Other hosts have the others: here the store of the second of two."""
    path, store = saved(tmp_path, ranks=2)
    own = Shard(1, 2, CLASSES)
    main(["verify", str(path), *store])
    assert f"rows of classes {own.start} to {own.stop - 1} of 1,000" in capsys.readouterr().out
    with pytest.raises(DataError, match="as other hosts have the others"):
        main(["merge", str(path), *store])
    assert not list(tmp_path.rglob("*.npz"))


def test_merge_overwrites_no_other_file(tmp_path: Path) -> None:
    path = publish(tmp_path, {})
    (tmp_path / "user").write_bytes(b"precious")
    for name in (".merged.npz.part", "merged.npz"):
        (tmp_path / name).symlink_to("user")
    main(["merge", str(path), "--output", str(tmp_path / "merged.npz")])
    assert (tmp_path / "user").read_bytes() == b"precious"
    assert np.load(tmp_path / "merged.npz")["net/weight"].tolist() == [1, 1, 1]
