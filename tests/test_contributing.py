"""The checklists of CONTRIBUTING.md, followed with parts that are made up here."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from easydict import EasyDict

import backbones
import tests.partial_fc.test_head as head_tests
from backbones.layers import convolution
from backbones.maps import Maps
from backbones.model import Backbone
from benchmarks import grouping_runs
from data import options as data_options
from data.images.image_set import ImagesInMemory
from parallel.parameter_server.schemes import SCHEMES
from partial_fc import margin as margins
from partial_fc import optimizers
from partial_fc.head import PartialFC
from partial_fc.margin import CombinedMargin, Margin
from partial_fc.options import LOSSES, HeadOptions, Loss
from runtime.errors import ConfigError
from runtime.mxnet import mx
from runtime.state import State
from tests.soak import soak
from tests.support.thread_world import ThreadWorld, run_ranks
from tests.test_documents import REFERENCE, names_in
from training import dry_run, image_data
from training.config import faces, images
from training.config.presets import PRESETS, RECIPES

ROOT = Path(__file__).resolve().parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROGRAMS = ("train.py", "classify.py")

_CELL = re.compile(r"(?<!\\)\|")


class Row(NamedTuple):
    """A step of a checklist."""

    do: str
    where: list[tuple[str, str]]
    tests: list[tuple[str, str]]


def _checklists() -> dict[str, list[Row]]:
    """The rows of each checklist, by its title."""
    _, _, text = CONTRIBUTING.partition("## Checklists")
    found: dict[str, list[Row]] = {}
    for section in text.split("\n### ")[1:]:
        title, _, body = section.partition("\n")
        rows = [_CELL.split(line)[1:-1] for line in body.splitlines() if line.startswith("|")]
        found[title] = [
            Row(do, REFERENCE.findall(where), REFERENCE.findall(tests))
            for do, where, tests in rows
            if do.strip() not in ("do", "---")
        ]
    return found


CHECKLISTS = _checklists()


@pytest.mark.documents
def test_every_row_of_a_checklist_names_its_place_and_a_test() -> None:
    assert set(CHECKLISTS) == {"A margin", "A backbone", "A data set", "An exchange scheme"}
    wrong = [
        row.do
        for rows in CHECKLISTS.values()
        for row in rows
        if not row.where
        or not row.tests
        or not all(path.startswith("tests/") and name[:5] == "test_" for path, name in row.tests)
    ]
    # What is only measured has no test that fails.
    assert len(wrong) == 1 and "is measured" in wrong[0]


# A margin.


class GentleFace(CombinedMargin):
    """CosFace with a small margin."""

    def __init__(self) -> None:
        super().__init__(m3=0.1)


@pytest.fixture
def gentle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class and its row, and nothing else."""
    monkeypatch.setattr(margins, "GentleFace", GentleFace, raising=False)
    monkeypatch.setitem(LOSSES, "gentleface", Loss("GentleFace"))


def make_head(loss: str, world: ThreadWorld, **more: Any) -> PartialFC:
    options = HeadOptions(loss=loss, scale=16.0, sample_ratio=0.5, **more)
    rows = optimizers.build(faces.parse("--dataset 100w --dry-run".split()).optimizer)
    return PartialFC.create(options, (10, 4), world, mx.cpu(), optimizer=rows, seed=1)


def step(head: PartialFC, world: ThreadWorld, update: int) -> tuple[float, np.ndarray]:
    generator = np.random.default_rng(update)
    features, labels = generator.normal(size=(6, 4)), generator.integers(10, size=6)
    own = slice(6 // world.size * world.rank, 6 // world.size * (world.rank + 1))
    result = head.step(mx.nd.array(features[own]), labels[own], update, 0.1)
    return float(result.loss.asscalar()), result.gradient.asnumpy()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_margin(gentle: None, ranks: int) -> None:
    """Command line, dry run, builder, a step of the head; and the numbers are those of its kind."""
    line = "--dataset 100w --loss gentleface --dry-run"
    config = faces.parse(line.split())
    assert config.head.loss == config.values()["loss"] == "gentleface"
    assert "head.features" in dry_run.describe(config)
    with pytest.raises(ConfigError, match=r"did you mean 'gentleface'\?"):
        faces.parse("--dataset 100w --loss gentelface --dry-run".split())
    with pytest.raises(ConfigError, match="--loss gentleface"):
        faces.parse([*line.split(), "--margins", "1,0,0.1"])
    assert isinstance(margins.build(config.head), GentleFace)

    def rank_main(world: ThreadWorld) -> tuple[Any, Any]:
        own = make_head("gentleface", world)
        same = make_head("softmax", world, margins=(1.0, 0.0, 0.1))
        return step(own, world, 0), step(same, world, 0)

    for (loss, gradient), (same_loss, same_gradient) in run_ranks(ranks, rank_main):
        assert loss == same_loss and np.isfinite(loss)
        np.testing.assert_array_equal(gradient, same_gradient)


def margin_classes() -> set[str]:
    """The classes that can be called with targets."""
    return {
        name
        for name, found in vars(margins).items()
        if inspect.isclass(found)
        and found is not Margin
        and {"__call__", "export_state", "load_state"} <= set(dir(found))
    }


def test_every_margin_has_a_row() -> None:
    assert margin_classes() == {loss.margin for loss in LOSSES.values()}


def test_every_margin_is_tested() -> None:
    """At the head, against float64 on several ranks; the test of slopes takes all losses."""
    tested = {**head_tests.LOSSES, **head_tests.ADAPTIVE_LOSSES}.values()
    made = {type(loss.margin()).__name__ for loss in tested}
    missing = {loss.margin for loss in LOSSES.values()} - made
    assert not missing, f"tests/partial_fc/test_head.py has no row for {missing}"


class Remembered:
    """A state as it comes back from a checkpoint."""

    def __init__(self, state: State) -> None:
        self._arrays = {name: stored.array for name, stored in state.arrays.items()}
        self._values = state.values

    def names(self) -> list[str]:
        return list(self._arrays)

    def has(self, name: str) -> bool:
        return name in self._values

    def replicated(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        assert self._arrays[name].shape == shape
        return self._arrays[name]

    def pieces(self, name: str, *_: Any) -> Iterator[tuple[int, np.ndarray]]:
        yield 0, self._arrays[name]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_margin_continues_where_it_was_saved(loss: str) -> None:
    def rank_main(world: ThreadWorld) -> None:
        head, resumed = make_head(loss, world), make_head(loss, world)
        for update in range(3):
            step(head, world, update)
        resumed.load_state(Remembered(head.export_state(3)))  # type: ignore[arg-type]
        (expected, gradient), (loss_again, again) = (
            step(each, world, 3) for each in (head, resumed)
        )
        assert loss_again == expected
        np.testing.assert_array_equal(again, gradient)

    run_ranks(1, rank_main)


# A backbone.


def _body(x: Any) -> Any:
    return convolution(x, "conv0", 4, kernel=16, stride=16)


MINUTE = replace(
    backbones._ARCHITECTURES["tiny"],
    module="minute",
    maps=Maps(4, 8),
)


@pytest.fixture
def minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module and its row, and nothing else."""
    module = ModuleType("backbones.minute")
    module.body = _body  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(backbones._ARCHITECTURES, "minute", MINUTE)


def test_a_backbone(minute: None) -> None:
    """Command line, dry run, graph, and a forward and backward pass."""
    config = faces.parse("--dataset 100w --network minute --embedding-size 8 --dry-run".split())
    assert "network minute, embedding 8" in dry_run.describe(config)
    with pytest.raises(ConfigError, match=r"did you mean 'minute'\?"):
        faces.parse("--dataset 100w --network minuet --dry-run".split())
    # The convolution; the embedding with its bias, and a BatchNorm.
    assert backbones.parameter_count("minute", 8) == 4 * 3 * 16 * 16 + 4 * 8 * 8 * 8 + 3 * 8

    network = Backbone.create(config.backbone, image_size=(112, 112), seed=1, ctx=mx.cpu())
    pixels = mx.nd.array(np.random.default_rng(0).integers(0, 256, (2, 3, 112, 112)), dtype="uint8")
    with mx.autograd.record():
        features = network(pixels)
    network.backward(features, mx.nd.ones_like(features))
    assert features.shape == (2, 8) and np.isfinite(features.asnumpy()).all()
    assert any("conv0_weight" in name for name in network.parameters)


def test_every_body_has_a_row() -> None:
    bodies = {path.stem for path in (ROOT / "backbones").glob("*.py") if "body" in names_in(path)}
    assert bodies == {architecture.module for architecture in backbones._ARCHITECTURES.values()}


# A data set.


def test_a_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = EasyDict(
        rec=(str(tmp_path),), num_classes=20, num_images=1000, network="tiny", loss="arcface",
        lr=0.05, lr_schedule="step", lr_steps=(10,), max_update=12,
    )  # fmt: skip
    monkeypatch.setitem(PRESETS, "friends", recipe)
    config = faces.parse(["--dataset", "friends"])
    assert (config.data.rec, config.schedule.lr_steps) == ((str(tmp_path),), (10,))
    assert config.run.models_root == "./models/friends-tiny"
    assert faces.parse("--dataset friends --loss softmax".split()).head.loss == "softmax"
    planned = dry_run.describe(faces.parse("--dataset friends --dry-run".split()))
    assert planned.startswith("friends: network tiny")
    with pytest.raises(ConfigError, match=r"did you mean 'friends'\?"):
        faces.parse("--dataset freinds".split())


def test_a_data_set_for_classifiers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = {"model": "LeNet", "batch_size": 2, "lr": 0.1, "wd": 0.0, "epochs": 1}
    line = ["--dataset", "letters", "--data-dir", str(tmp_path)]
    monkeypatch.setitem(RECIPES, "letters", recipe)
    with pytest.raises(ConfigError, match="--data-dir .* not with letters"):
        images.parse(line)
    table = data_options._DATASETS_OF_OPTIONS
    monkeypatch.setitem(table, "data_dir", (*table["data_dir"], "letters"))
    config = images.parse(line)
    assert (config.classifier.model, config.data.batch_size) == ("LeNet", 2)
    with pytest.raises(AssertionError):
        image_data.open_images(config.data, seed=1)


def test_a_set_of_images_is_what_its_loader_asks_for() -> None:
    """A reader returns an ``ImageSet``; this is the one that small sets use."""
    few = ImagesInMemory(np.zeros((5, 8, 8, 1), np.uint8), np.arange(5, dtype=np.uint8), 5)
    opened = replace(
        image_data.open_images(images.parse("--dataset synthetic".split()).data, seed=1),
        training=few, validation=few, shape=(1, 8, 8),
    )  # fmt: skip
    config = replace(images.parse("--dataset synthetic".split()).data, batch_size=2, threads=1)

    class Alone:
        rank, size = 0, 1

    batches = list(opened.validation_batches(config, Alone()))  # type: ignore[arg-type]
    labels = np.concatenate([batch.labels for batch in batches])
    assert labels[labels >= 0].tolist() == [0, 1, 2, 3, 4]


# An exchange scheme.

NEW_SCHEME = """
import os
from dataclasses import replace
from parallel.parameter_server import schemes
from parallel.parameter_server.schemes import Scheme
# The row, and nothing else.
schemes.SCHEMES = {**schemes.SCHEMES, "dist_bounded_gsync": Scheme(
    "BGSP", "dist_async", is_bounded=True, has_groups=True)}

from parallel.parameter_server.assignment import WORKER, Assignment
from runtime.errors import ConfigError
from training.config.exchange import check
from training.config.images import parse
from training.exchange.worker_groups import WorkerGroups
from parallel.launch.__main__ import main

job = Assignment(WORKER, "127.0.0.1", 9000, "127.0.0.1", "lo", num_workers=4, num_servers=1)
grouped = replace(job, groups=((0, 1), (2, 3)))
os.environ.update(grouped.variables())
line = "--dataset synthetic --kv-store dist_bounded_gsync"
config = parse(f"{line} --staleness 2 --rebalance 3".split())
check(config.exchange, config.classifier, config.optimizer, grouped)
print(config.exchange.bound, replace(config.exchange, staleness=None).bound)
for exchange, assignment in (
    (config.exchange, job),
    (config.exchange, replace(grouped, tolerates=True)),
):
    try:
        exchange.check()
        check(exchange, config.classifier, config.optimizer, assignment)
    except ConfigError as error:
        print(error)
try:
    main(["-n", "4", "-s", "1", "--", "python", "classify.py", *line.split()])
except ConfigError as error:
    print(error)
groups = WorkerGroups(schemes.SCHEMES["dist_bounded_gsync"], replace(grouped, worker=1), 10)
print(groups.contributors, groups.saves, groups.updates(400))
"""


def test_an_exchange_scheme() -> None:
    """Command line, checks, groups and launcher know a scheme by its row.

    In a process of its own: modules take the table when they are imported.
    """
    finished = subprocess.run(
        [sys.executable, "-c", NEW_SCHEME], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    bound, without_groups, tolerant, launched, numbers = finished.stdout.splitlines()
    assert bound == "2 0"
    assert "--kv-store dist_bounded_gsync needs groups" in without_groups
    assert "--tolerate-workers" in tolerant
    assert launched.startswith("--kv-store dist_bounded_gsync needs --groups FILE")
    # Two workers with a quarter of 400 images each, ten at a time.
    assert numbers == "2 True [10, 10]"


def test_nothing_asks_for_a_scheme_by_its_name() -> None:
    paths = [path for room in ("parallel", "training") for path in (ROOT / room).rglob("*.py")]
    for path in [*paths, *(ROOT / program for program in PROGRAMS)]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                compared = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                assert not compared & set(SCHEMES), f"{path}:{node.lineno}"


def test_every_scheme_is_tested() -> None:
    """Whole jobs: deaths, the replay of staleness (BSP has none), time to an accuracy."""
    assert set(grouping_runs.SCHEMES) == set(SCHEMES)
    soaked = {words[words.index("--kv-store") + 1] for words in soak.SCHEMES.values()}
    assert soaked == {name for name, scheme in SCHEMES.items() if not scheme.is_synchronous}
    deaths = (ROOT / "tests" / "parallel" / "test_deaths.py").read_text(encoding="utf-8")
    assert [name for name in SCHEMES if f'"{name}"' not in deaths] == []
