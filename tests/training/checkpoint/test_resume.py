"""Runs that stop and go on, bit for bit; and manifests, whatever their bytes are."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from backbones import layers
from backbones.model import Backbone
from data.batches.face_loader import Batch
from parallel.world import LoneWorld
from partial_fc.head import PartialFC
from partial_fc.optimizers import build as build_rows
from partial_fc.options import HeadOptions
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from runtime.state import REPLICATED, SHARDED, State, Stateful, Stored
from tests.support.thread_world import run_ranks
from training.checkpoint import layout, resume
from training.checkpoint.files import candidates
from training.checkpoint.reader import Checkpoint, SavedPart
from training.checkpoint.writer import Checkpointer
from training.config.faces import FaceOptimizerOptions
from training.run_folder import Storage
from training.update.face_step import FaceStep
from training.update.optimizer import BackboneOptimizer

GLOBAL_BATCH, CLASSES, EMBEDDING = 12, 31, 16
ABOUT: Any = {"identity": {"--network": "r18", "classes": 31}, "configuration": {"lr": 0.1}}


def make_backbone(batch_norm=False, seed=0):
    x = layers.convolution(layers.pixels("float32"), "conv0", 4, kernel=3)
    if batch_norm:
        x = layers.batch_norm(x, "bn0")
    x = layers.convolution(layers.relu(x, "relu0"), "conv1", 8, kernel=3, stride=2)
    symbol = mx.sym.FullyConnected(layers.relu(x, "relu1"), num_hidden=EMBEDDING, name="fc1")
    generator = np.random.default_rng(seed)
    arguments, _, statistics = symbol.infer_shape(data=(1, 3, 8, 8))
    shapes = dict(zip(symbol.list_arguments(), arguments))
    shapes.update(zip(symbol.list_auxiliary_states(), statistics))
    del shapes["data"]
    weights = {name: generator.normal(size=shape) * 0.1 for name, shape in shapes.items()}
    weights = {n: mx.nd.array(abs(w) if n.startswith("bn") else w) for n, w in weights.items()}
    return Backbone(symbol, symbol, weights, mx.cpu())


class Clock:
    update = 0

    def export_state(self, update):
        return State(values={"update": update})

    def load_state(self, saved):
        self.update = saved.count("update")


class Run:
    def __init__(self, world, root, loss="arcface", rule="sgd", batch_norm=False, go_on="auto"):
        self.world, self.clock = world, Clock()
        backbone = make_backbone(batch_norm)
        backbone.hybridize()
        self.head = PartialFC.create(
            HeadOptions(loss, scale=16.0), (CLASSES, EMBEDDING), world, mx.cpu(),
            optimizer=build_rows(rule, 0.9, 5e-4), seed=7,
        )  # fmt: skip
        options = FaceOptimizerOptions(momentum=0.9, wd=5e-4, optimizer=rule)
        trainer = BackboneOptimizer(options, backbone.parameters, world, dtype="float32")
        self.parts = {"backbone": backbone, "optimizer": trainer, "head": self.head}
        self.parts["progress"] = self.clock
        storage = Storage.find(root, world)
        saved = resume.find(str(go_on), storage, ABOUT)
        if saved is not None:
            saved.restore(self.parts)
        last = saved and saved.path
        self.saves = Checkpointer(self.parts, storage, keep=99, about=ABOUT, resumed=last)
        self.step = FaceStep(backbone, self.head, trainer, center_lr_factor=2.0)

    def train(self, until):
        losses = []
        batch = GLOBAL_BATCH // self.world.size
        own = slice(self.world.rank * batch, (self.world.rank + 1) * batch)
        for update in range(self.clock.update, until):
            generator = np.random.default_rng((1, update))
            images = generator.integers(256, size=(GLOBAL_BATCH, 3, 8, 8)).astype(np.uint8)
            labels = generator.integers(CLASSES, size=GLOBAL_BATCH)
            losses.append(self.step(Batch(images[own], labels[own]), update, lr=0.02).asscalar())
        self.step.finish()
        self.clock.update = until
        return losses

    def save(self):
        self.saves.save(self.clock.update)
        self.saves.finish()


@pytest.mark.parametrize(("ranks", "loss", "optimizer"), [
    (1, "adaface", "adam"), (2, "curricularface", "adamw"), (3, "arcface", "sgd"),
])  # fmt: skip
def test_a_resumed_run_is_the_same_bit_for_bit(ranks, loss, optimizer, tmp_path):
    def train(world, name, **options):
        run = Run(world, tmp_path / name, loss, optimizer, batch_norm=True, **options)
        losses = run.train(3)
        run.saves.save(3)
        losses += run.train(6)
        run.save()
        return losses

    saved = tmp_path / "a" / "checkpoints" / "update-00000003"
    before = run_ranks(ranks, lambda world: train(world, "a"))[0]
    after = run_ranks(ranks, lambda world: train(world, "b", go_on=saved))[0]
    assert after == before[3:] and len(set(before)) == 6
    newest = [candidates(tmp_path / name / "checkpoints")[0][0] for name in "ab"]
    files = [Checkpoint(path).manifest.files for path in newest]
    assert files[0] == files[1]


def test_a_run_continues_on_three_two_one_and_three_ranks(tmp_path, caplog):
    caplog.set_level("INFO")
    expected = run_ranks(3, lambda world: Run(world, tmp_path / "whole").train(8))[0]
    losses, root = [], tmp_path / "parts"
    for start, ranks in ((0, 3), (2, 2), (4, 1), (6, 3)):

        def goes_on(world, start=start):
            run = Run(world, root)
            assert run.clock.update == start
            found = run.train(start + 2)
            run.save()
            return found

        losses += run_ranks(ranks, goes_on)[0]
        assert (f"re-cut for {ranks}\n" in caplog.text) == (start > 0)
        path = root / f"checkpoints/update-0000000{start + 2}"
        assert Checkpoint(path).manifest.world_size == ranks
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def find(folder, go_on="auto", about=ABOUT, ranks=2):
    def rank_main(world):
        saved = resume.find(str(go_on), Storage.find(folder, world), about)
        return saved and saved.path.name

    return run_ranks(ranks, rank_main)[0]


def test_a_broken_checkpoint_is_logged_and_the_one_before_is_used(tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO")
    assert find(tmp_path) is None

    def save_twice(world):
        run = Run(world, tmp_path)
        for update in (1, 2):
            run.train(update)
            run.save()
        manifest = run.saves.last / "manifest.json"
        written = manifest.stat().st_mtime_ns
        run.save()
        assert manifest.stat().st_mtime_ns == written

    run_ranks(2, save_twice)
    last = tmp_path / "checkpoints" / "update-00000002"
    before = last.with_name("update-00000001")
    assert find(tmp_path, about={**ABOUT, "configuration": {"lr": 0.2}}) == "update-00000002"
    assert "--lr was 0.1 and is 0.2" in caplog.text
    assert find(tmp_path, "never") is None
    file = last / "rank-0001.bin"
    file.write_bytes(file.read_bytes()[:-4] + b"abcd")
    with pytest.raises(DataError, match=r"rank-0001.bin.*checksum|another rank found"):
        find(tmp_path, last)
    with monkeypatch.context() as change:
        change.setattr(Path, "rename", Mock(side_effect=PermissionError(13, "not allowed")))
        with pytest.raises(DataError, match="--models-root .* cannot be written .*not allowed"):
            find(tmp_path)
    assert find(tmp_path, before) == find(tmp_path, ranks=3) == before.name
    assert "BROKEN CHECKPOINT" in caplog.text and "rank-0001.bin" in caplog.text
    assert {path.name for path in last.parent.iterdir()} == {before.name, f"{last.name}.broken"}


def alone(folder, part, about=ABOUT):
    storage = Storage.find(folder, LoneWorld())
    saves = Checkpointer({"part": part} if part else {}, storage, keep=1, about=about)
    saves.save(2)
    saves.finish()
    return resume.find("auto", storage, about)


def test_another_model_is_refused_with_all_differences(tmp_path):
    there = {**ABOUT["identity"], "--net-output": "E"}
    about = {"identity": there, "configuration": {}}
    alone(tmp_path, None, about)
    for here, said in (
        ({**there, "classes": 30, "--net-output": "FC"}, "classes 31 there and 30 here, .* E th"),
        (ABOUT["identity"], "output E there and None here"),
        ({**there, "--bn": 1}, "model: --bn None there and 1 here; use the same"),
    ):
        with pytest.raises(ConfigError, match=said):
            find(tmp_path, about={**about, "identity": here}, ranks=1)


class Part(Stateful):
    def export_state(self, update):
        rows = np.ones((4, 3), np.float32)
        arrays = {"rows": Stored(SHARDED, rows, 0, 4), "same": Stored(REPLICATED, rows)}
        return State(arrays, {"count": 3, "loss": 0.5, "words": {"a": "b"}, "nan": float("nan")})

    def load_state(self, saved):
        raise NotImplementedError


def test_what_a_part_does_not_find_is_named(tmp_path):
    saved = SavedPart(alone(tmp_path, Part()), "part")
    assert saved.count("count") == 3 and saved.number("loss") == 0.5 and saved.update == 2
    assert saved.run == tmp_path and saved.has("loss") and not saved.has("loss2")
    assert saved.values_in(tmp_path)[0]["count"] == 3 and saved.values_in(tmp_path / "x") == []
    for method, arguments, said in (
        ("count", ("loss",), "has no count part/loss"),
        ("number", ("nan",), "has no number part/nan"),
        ("numbers", ("words",), "has no numbers part/words"),
        ("replicated", ("same", (4, 4)), r"'part/same' replicated of shape \(4, 3\), not replic"),
        ("own", ("same", (4, 3)), "not own of"),
        ("replicated", ("other", (4, 3)), "lacks 'part/other'"),
        ("pieces", ("rows", 0, 5, 5, (3,)), "has 4 rows of 'part/rows', not 5"),
    ):
        with pytest.raises(DataError, match=said):
            getattr(saved, method)(*arguments)


def test_every_part_is_told_which_checkpoints_there_are(tmp_path):
    told = []

    class Telling(Part):
        def export_state(self, update):
            return State(values={"update": update}, when_saved=told.append)

    parts = {"one": Telling(), "none": Part(), "two": Telling()}
    storage = Storage.find(tmp_path, LoneWorld())
    saves = Checkpointer(parts, storage, keep=2, about=ABOUT)
    for update in (3, 5, 8):
        saves.save(update)
        saves.finish()
    assert told == [[3]] * 2 + [[3, 5]] * 2 + [[5, 8]] * 2
    saves = Checkpointer(parts, storage, keep=0, about=ABOUT)
    saves.save(9)
    assert saves.finish() is None and len(told) == 6


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
    if isinstance(content, dict):
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content = json.dumps({**content, "checksum": zlib.crc32(text.encode())}).encode()
    return layout.parse(content, "manifest.json")


@pytest.mark.parametrize(("make", "change", "rule"), [
    (body, lambda b: entries_of(b, 0)[0].update(total=4), "other arrays on rank 0"),
    (body, lambda b: b["files"].clear(), "or none"),
    (body, lambda b: entries_of(b, 0)[0].update(offset=60), "outside its file"),
    (body, lambda b: entries_of(b, 0)[0].update(shape=[2**62, 2**62]), "outside its file"),
    (body, lambda b: entries_of(b, 0)[0].update(shape=[-1, 4]), "wrong shape"),
    (body, lambda b: entries_of(b, 0)[0].update(shape=[]), "wrong shape"),
    (body, lambda b: entries_of(b, 0)[0].update(dtype="object"), "wrong dtype"),
    (body, lambda b: entries_of(b, 0)[0].update(kind=["own"]), "wrong kind"),
    (body, lambda b: entries_of(b, 0)[1].update(name="head/centers"), "twice"),
    (body, lambda b: entries_of(b, 1).pop(), "other arrays on rank 1"),
    (body, lambda b: b["files"]["0"].pop("size"), "a file of other fields"),
    (body, lambda b: b.update(update=True), "wrong update"),
    (body, lambda b: b.update(serial=2**63), "wrong serial"),
    (body, lambda b: b.update(more=1), "a table of other fields"),
    (body, lambda b: b.update(format="1"), f"is not of format {layout.FORMAT}"),
    (part_body, lambda b: b.update(hosts=["one", "t\nwo"]), "wrong hosts"),
    (part_body, lambda b: b.update(hosts=["one"] * 100_001), "wrong hosts"),
    (part_body, lambda b: b.update(hosts=["one"]), "a file of no rank"),
    (part_body, lambda b: b.update(files={"01": b["files"]["1"]}), "a file of no rank"),
])  # fmt: skip
def test_each_broken_rule_is_named(make, change, rule: str) -> None:
    content = make()
    change(content)
    with pytest.raises(DataError, match=rule):
        parse(content)


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
