"""Folders of runs that never were, with the files that training writes, for reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

PAIRS = 600
CONFIG = {
    "dataset": "synthetic", "network": "tiny", "loss": "arcface", "optimizer": "sgd", "lr": 0.1,
    "margins": [1.0, 0.5, 0.0], "rec": ["./datasets/faces"], "freeze": None, "debug": False,
    "warmup": 0,
}  # fmt: skip
PART: dict[str, Any] = {
    "time": 1.7e9, "update": 0, "total_updates": 2000, "ranks": 2, "device": "cpu(0)",
    "host": "host1", "processor": "a processor", "processors": 2,
    "command": "python train.py --dataset synthetic", "versions": {"Python": "3.9.1", "numpy": "1"},
}  # fmt: skip


def write_faces(
    folder: Path, *, updates: int = 2000, targets: tuple[str, ...] = ("unseen",), **options: Any
) -> Path:
    """A run of train.py that was verified five times, and went on once; returns the folder."""
    generator = np.random.default_rng(len(str(folder)))
    records: list[dict[str, Any]] = []
    for update in range(20, updates + 1, 20):
        loss = 20 * np.exp(-update / updates) + generator.random()
        records.append(training_record(update, loss))
        if update % (updates // 5) == 0:
            accuracy = 0.5 + update / updates / 2.2
            records += [verification(name, update, accuracy) for name in targets]
    write(folder, records, {**CONFIG, **options})
    half = {**PART, "time": PART["time"] + 1000, "update": updates // 2, "host": "host2"}
    write_lines(folder / "report" / "parts.jsonl", [PART, half])
    sheet = generator.integers(0, 256, (64, 64, 3), np.uint8)
    (folder / "report" / "samples.jpg").write_bytes(bytes(cv2.imencode(".jpg", sheet)[1]))
    for name in targets:
        same = np.arange(PAIRS) // 30 % 2
        cosines = np.clip(generator.normal(0.1 + 0.5 * same, 0.15), -1, 1)
        scores = np.stack([cosines, same], axis=1).astype(np.float32)
        np.save(folder / "report" / f"scores-{name}.npy", scores)
    return folder


def write_images(folder: Path, **options: Any) -> Path:
    """A run of classify.py of four epochs, with metrics alone; returns the folder."""
    records: list[dict[str, Any]] = []
    for epoch in range(1, 5):
        records.append(training_record(100 * epoch, loss=2 / epoch))
        records.append({
            "time": 1.7e9 + epoch, "update": 100 * epoch, "target": "validation", "epoch": epoch,
            "training_loss": 2 / epoch, "training_accuracy": 0.8, "loss": 2.2 / epoch,
            "accuracy": epoch / 5, "correct": 200 * epoch, "total": 1000, "best": epoch / 5,
        })  # fmt: skip
    write(folder, records, {"dataset": "mnist", "model": "LeNet", "lr": 0.01, **options})
    return folder


def training_record(update: int, loss: float) -> dict[str, Any]:
    return {
        "time": 1.7e9 + update, "update": update, "loss": loss, "lr": 0.1 / update,
        "images_per_second": 400 + update % 7, "waiting": 0.05, "backbone": 0.7, "head": 0.1,
        "communication": 0.1, "seconds_left": 1.0,
    }  # fmt: skip


def verification(name: str, update: int, accuracy: float) -> dict[str, Any]:
    return {
        "time": 1.7e9 + update + 1, "update": update, "target": name, "accuracy": accuracy,
        "accuracy_std": 0.03, "best": accuracy, "tar_at_far_0.001": accuracy / 2, "xnorm": 10.0,
    }  # fmt: skip


def write(folder: Path, records: list[dict[str, Any]], config: dict[str, Any]) -> None:
    (folder / "report").mkdir(parents=True)
    write_lines(folder / "metrics.jsonl", records)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
