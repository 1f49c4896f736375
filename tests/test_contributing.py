"""The checklists of CONTRIBUTING.md: a row of each, or a part that is made up here."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import backbones
import tests.partial_fc.test_head as head_tests
from benchmarks import grouping_runs
from data import options as data_options
from parallel.parameter_server.schemes import SCHEMES
from partial_fc import margin as margins
from partial_fc import optimizers
from partial_fc.head import PartialFC
from partial_fc.options import LOSSES, HeadOptions
from runtime.errors import ConfigError
from runtime.mxnet import mx
from runtime.state import State
from tests.soak import soak
from tests.support.thread_world import ThreadWorld, run_ranks
from tests.test_architecture import ROOT, modules, nodes
from tests.test_documents import REFERENCE, names_in
from training import image_data
from training.config import images
from training.config.presets import RECIPES


@pytest.mark.documents
def test_every_row_of_a_checklist_names_its_place_and_a_test() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Checklists")[2]
    titles = ["A margin", "A backbone", "A data set", "An exchange scheme"]
    assert re.findall("^### (.*)$", text, re.MULTILINE) == titles
    lines = re.findall(r"^\| (?!do ).*", text, re.MULTILINE)
    assert len(lines) > 20
    for line in lines:
        do, where, fails = re.split(r"(?<!\\)\|", line)[1:-1]
        tests = REFERENCE.findall(fails)
        are_tests = [path[:6] == "tests/" and name[:5] == "test_" for path, name in tests]
        # What is only measured has no test that fails.
        assert REFERENCE.findall(where) and (all(are_tests) if tests else "is measured" in do), do


def test_every_margin_has_a_row() -> None:
    has_state = {"__call__", "export_state", "load_state"}
    classes = {
        name
        for name, found in vars(margins).items()
        if inspect.isclass(found) and found is not margins.Margin and has_state <= set(dir(found))
    }
    assert classes == {loss.margin for loss in LOSSES.values()}


def test_every_margin_is_tested() -> None:
    """At the head, against float64 on several ranks; the test of slopes takes all losses."""
    tested = {**head_tests.LOSSES, **head_tests.ADAPTIVE_LOSSES}.values()
    made = {type(loss.margin()).__name__ for loss in tested}
    missing = {loss.margin for loss in LOSSES.values()} - made
    assert not missing, f"tests/partial_fc/test_head.py has no row for {missing}"


def as_saved(state: State) -> Any:
    """A state as it comes back from a checkpoint."""
    arrays = {name: stored.array for name, stored in state.arrays.items()}
    return SimpleNamespace(
        names=lambda: list(arrays),
        has=state.values.__contains__,
        replicated=lambda name, shape: arrays[name].reshape(shape),
        pieces=lambda name, *_: [(0, arrays[name])],
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_a_margin_continues_where_it_was_saved(loss: str) -> None:
    def step(head: PartialFC, update: int) -> list[Any]:
        generator = np.random.default_rng(update)
        features, labels = generator.normal(size=(6, 4)), generator.integers(10, size=6)
        result = head.step(mx.nd.array(features), labels, update, 0.1)
        return [float(result.loss.asscalar()), *result.gradient.asnumpy().ravel().tolist()]

    def rank_main(world: ThreadWorld) -> None:
        options, shape = HeadOptions(loss=loss, scale=16.0, sample_ratio=0.5), (10, 4)
        head, resumed = (
            PartialFC.create(options, shape, world, mx.cpu(), optimizer=rows, seed=1)
            for rows in (optimizers.build("sgd", 0.9, 5e-4), optimizers.build("sgd", 0.9, 5e-4))
        )
        for update in range(3):
            step(head, update)
        resumed.load_state(as_saved(head.export_state(3)))
        assert step(resumed, 3) == step(head, 3)

    run_ranks(1, rank_main)


def test_every_body_has_a_row() -> None:
    bodies = {path.stem for path in (ROOT / "backbones").glob("*.py") if "body" in names_in(path)}
    assert bodies == {architecture.module for architecture in backbones._ARCHITECTURES.values()}


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


def test_nothing_asks_for_a_scheme_by_its_name() -> None:
    paths = (*modules("parallel", "training"), ROOT / "train.py", ROOT / "classify.py")
    for path, node in nodes(paths, ast.Compare):
        compared = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
        assert not compared & set(SCHEMES), f"{path}:{node.lineno}"


def test_every_scheme_is_tested() -> None:
    """Whole jobs: deaths, the replay of staleness (BSP has none), time to an accuracy."""
    assert set(grouping_runs.SCHEMES) == set(SCHEMES)
    soaked = {words[words.index("--kv-store") + 1] for words in soak.SCHEMES.values()}
    assert soaked == {name for name, scheme in SCHEMES.items() if not scheme.is_synchronous}
    deaths = (ROOT / "tests" / "parallel" / "test_deaths.py").read_text(encoding="utf-8")
    assert [name for name in SCHEMES if f'"{name}"' not in deaths] == []
