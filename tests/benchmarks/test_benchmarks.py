"""Every benchmark runs with its smallest sizes and reports finite numbers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.support.launch import finish

# {files} has what the fixture makes, {folder} is an empty folder.
CASES = {
    "backbone": "--network tiny --batch 2 --variants ours,plain --threads 1 --rounds 1",
    "classifiers": "--model LeNet --batch 2 --rounds 1 --threads 1",
    "end_to_end": "--network tiny --classes 300 --ratio 0.5 --batch 4 --updates 1 --rounds 1",
    # A scheme that does not reach the target has an infinite time.
    "grouping": "--data-dir {data}/mnist --slowdown 1,2 --epochs 1 --seeds 1 --target 0.9",
    "head": "--classes 300 --ratio 0.5 --batch 8 --threads 1 --rounds 1",
    "identities": "--folder {folder} --classes 2000 --ranks 1 --ratios 0.1 --updates 1",
    "input": "--images 64 --threads 1 --rounds 1",
    "learning": "--data-dir {files}/cifar --model resnet20:1 --models-root {folder}/models",
    "scaling": "--model LeNet --batch 4 --ranks 1,2 --updates 60 --rounds 1 --threads 1",
    "verification": "--network tiny --batch 2 --rounds 1 --threads 1",
}
pytestmark = [pytest.mark.launcher, pytest.mark.measurements, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10 as folders of images."""
    root = tmp_path_factory.mktemp("files")
    generator = np.random.default_rng(2)
    for part, count in (("train", 13), ("test", 2)):
        for number in range(10 * count):
            path = root / f"cifar/{part}/class{number % 10}/{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), generator.integers(256, size=(32, 32, 3), dtype=np.uint8))
    return root


@pytest.mark.parametrize("name", CASES)
def test_a_small_measurement_reports_finite_numbers(
    name: str, files: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data = request.getfixturevalue("toolkit_data") if "{data}" in CASES[name] else ""
    options = CASES[name].format(files=files, folder=tmp_path, data=data).split()
    said = finish(sys.executable, "-m", f"benchmarks.{name}", *options, seconds=3600).stdout
    # Rows of tables, without titles.
    table = re.findall(r"^\|(?! :--).*\|$(?!\n\| :--)", said, re.MULTILINE)
    assert table and all(re.search(r"\d", line) for line in table), said
    assert not re.search(r"\b(nan|inf)\b", "\n".join(table)), said
