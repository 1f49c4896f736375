"""What is kept of a run of the quick start."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import quick_start
from evaluation.network import FaceNetwork
from tests.support import made_up_runs


def clusters() -> tuple[np.ndarray, np.ndarray]:
    """Two people of twenty images each, far apart."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 8)) * 0.1
    rows[:20, 0] += 1
    rows[20:, 1] += 1
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return units.astype(np.float32), np.repeat([0, 1], 20)


def test_neighbors_and_layout() -> None:
    embeddings, people = clusters()
    assert quick_start.neighbors(embeddings, people) == 1.0
    assert quick_start.neighbors(embeddings, people[np.r_[0:40:2, 1:40:2]]) < 0.8
    points = np.array(quick_start.in_two_dimensions(embeddings))
    assert points.shape == (40, 2)
    centers = [points[people == person].mean(axis=0) for person in (0, 1)]
    spread = max(points[people == person].std() for person in (0, 1))
    assert np.linalg.norm(centers[0] - centers[1]) > 2 * spread


def test_people_are_drawn_and_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_start, "PEOPLE", 2)
    monkeypatch.setattr(quick_start, "IMAGES", 3)
    images, people = quick_start.draw_people()
    assert images.shape == (6, 3, 112, 112) and people.tolist() == [0, 0, 0, 1, 1, 1]
    means = FaceNetwork(lambda batch: batch.mean(axis=(2, 3)).astype(np.float32), (112, 112), "m")
    rows = quick_start.rows(means, images)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)


def test_a_run_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made_up_runs.write_faces(tmp_path / "run", updates=200)
    (folder / "logs").mkdir()
    said = "verification unseen: accuracy untrained 0.5513, trained 0.9500, best 0.9500"
    (folder / "logs" / "rank-0000.log").write_text(f"2026 rank 0 INFO: {said}\n")
    embeddings, people = clusters()
    monkeypatch.setattr(quick_start, "networks", lambda folder: ("before", "after"))
    monkeypatch.setattr(quick_start, "draw_people", lambda: (None, people))
    monkeypatch.setattr(quick_start, "rows", lambda network, images: embeddings)
    quick_start.main(["--run", str(folder), "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["said"] == said and len(found["loss"]) == 10
    assert [update for update, *_ in found["verification"]] == [40, 80, 120, 160, 200]
    assert found["neighbors_after"] == 1.0 and len(found["before"]) == 40
    assert "usable" in found["machine"] and found["commit"] and found["gigabytes"] > 0


def test_what_a_folder_takes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(bytes(2000))
    (tmp_path / "link").symlink_to(tmp_path / "a" / "file")
    assert quick_start.gigabytes(tmp_path) == 2e-6
    assert quick_start.gigabytes(tmp_path / "missing") == 0


def test_the_networks_of_a_run(tmp_path: Path) -> None:
    """The first is that of the seed, the last that of the file."""
    from backbones.model import Backbone
    from training.config import faces

    config = faces.parse(["--dataset", "synthetic", "--seed", "5"])
    values = {"dataset": "synthetic", "seed": 5, "network": "tiny", "embedding_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(values))
    size = (112, 112)
    Backbone.create(config.backbone, image_size=size, seed=6, ctx=None).export(tmp_path / "model")
    image = np.random.default_rng(0).integers(0, 256, (1, 3, *size), np.uint8)
    before, after = (one.extract(image) for one in quick_start.networks(tmp_path))
    expected = Backbone.create(config.backbone, image_size=size, seed=5, ctx=None)
    np.testing.assert_allclose(before, expected.inference()(image), rtol=1e-5)
    assert np.abs(before - after).max() > 1e-3
