"""Which runs are compared, and what the report says of them; most of the runs are made up."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import measure, precision
from benchmarks.precision import End
from runtime import processors
from runtime.environment import Bfloat16Unit
from runtime.errors import ConfigError


def write_run(folder: Path, losses: list[float], accuracy: float) -> None:
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = [
        {"update": number + 1, "loss": loss, "lr": 0.1, "images_per_second": 1.0}
        for number, loss in enumerate(losses)
    ]
    pairs = {"target": "unseen", "accuracy_std": 0.0, "best": 0.9, "tar_at_far_0.001": 0.1}
    lines.insert(1, {"update": 1, "accuracy": 0.5, **pairs})
    lines.append({"update": len(losses), "accuracy": accuracy, **pairs})
    text = "".join(json.dumps({"time": 1.0, **line}) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)


def test_the_end_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [9.0] * 30 + [4.0] * 10 + [2.0] * 10, 0.75)
    assert precision.end(tmp_path / "run") == End(3.0, 0.75, measure.commit())


def test_forms_differ_in_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[tuple[list[str], dict[str, str]]] = []
    ends = {
        "float32-1": (4.0, 0.95),
        "float32-2": (2.0, 0.93),
        "avx2-1": (4.2, 0.94),
        "avx2-2": (1.8, 0.93),
        "bfloat16-1": (4.0, 0.95),
        "bfloat16-2": (2.2, 0.94),
    }

    def run(words: list[str], **options: Any) -> SimpleNamespace:
        runs.append((words, options["env"]))
        folder = Path(words[words.index("--models-root") + 1])
        loss, accuracy = ends[folder.name]
        write_run(folder, [loss] * 25, accuracy)
        return SimpleNamespace(returncode=0)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", run)
        patched.setattr(precision, "bfloat16_unit", lambda: None)
        patched.setattr(processors, "has_avx512", lambda: True)
        patched.setattr(measure, "machine", lambda: "a machine")
        patched.setattr(measure, "commit", lambda: "abc")
        options = ["--folder", str(tmp_path), "--forms", "float32,avx2,bfloat16", "--seeds", "1,2"]
        written = tmp_path / "rows.json"
        precision.main([*options, "--json", str(written)])
        first = capsys.readouterr().out
        assert [Path(words[3]).name for words, _ in runs] == [
            *("float32-1", "avx2-1", "bfloat16-1", "float32-2", "avx2-2", "bfloat16-2")
        ]
        for words, environment in runs:
            form, seed = Path(words[3]).name.split("-")
            assert words[:3] == ["bash", "run.sh", "--models-root"]
            assert words[4:8] == ["--seed", seed, "--frequent", "1"]
            assert words[8:] == [*precision.FORMS[form].options]
            emulates = "emulated_tiles" in environment.get("PYTHONPATH", "")
            assert emulates == (form == "bfloat16")
            if form == "avx2":
                assert environment["DNNL_MAX_CPU_ISA"] == "AVX2"
        # What is complete is not trained again, also at another commit, which the report names.
        patched.setattr(measure, "commit", lambda: "def")
        precision.main(options)
        assert len(runs) == 6 and capsys.readouterr().out == first
        # The same folder with other faces has runs of its own.
        precision.main([*options, "--rec", str(tmp_path / "set"), "--seeds", "1"])
        assert len(runs) == 9
        assert "Trained at def." in capsys.readouterr().out
    assert "| float32 | 0.9500, 0.9300 |  |  | 4.000, 2.000 |  |  |" in first
    # Ratios 1.05 and 0.9, differences -0.01 and 0.
    assert "| -0.0050 ± 0.0050 | -0.0100 | 4.200, 1.800 | 0.975 ± 0.075 | 0.900 |" in first
    assert "| +0.0050 ± 0.0050 | +0.0100 | 4.000, 2.200 | 1.050 ± 0.050 | 1.100 |" in first
    assert "as if there were AMX tiles. Trained at abc." in first
    found = {(row["case"], row["name"]): row["value"] for row in json.loads(written.read_text())}
    assert found["quick-start", "avx2, loss"] == pytest.approx(3.0)
    assert found["quick-start", "bfloat16, accuracy"] == pytest.approx(0.945)


def test_own_faces_have_their_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (precision.ROOT / "README.md").read_text(encoding="utf-8")
    start = readme.index("--val-targets holdout")
    said = readme[start : readme.index("```", start)].replace("\\", " ").split("…")[0].split()
    assert said[-2:] == ["--verbose", "125"]
    assert ["--network", "tiny", *said[:-2]] == list(precision._OWN_FACES)

    def run(words: list[str], **_: Any) -> SimpleNamespace:
        assert words[words.index("--rec") + 1] == str(tmp_path / "set")
        write_run(Path(words[3]), [1.0] * 25, 0.5)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(measure, "commit", lambda: "abc")
    ends = precision.train(tmp_path / "float32-1", "float32", 1, tmp_path / "set")
    assert ends == End(1.0, 0.5, "abc")


def test_a_run_that_fails_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=3))
    with pytest.raises(SystemExit) as ended:
        precision.train(tmp_path / "float32-1", "float32", 1, None)
    assert ended.value.code == 3 and not (tmp_path / "float32-1").exists()


def test_one_seed_has_no_error() -> None:
    assert precision.of_differences([1.0]) == (1.0, math.inf)
    mean, error = precision.of_differences([1.0, 3.0])
    assert (mean, error) == pytest.approx((2.0, 1.0))


@pytest.mark.parametrize(("option", "value"), [("--forms", "bfloat16"), ("--forms", "float32,x")])
def test_forms_are_checked(option: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=value):
        precision._parse(["--folder", str(tmp_path), option, value])


def test_tiles_are_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "bfloat16_unit", lambda: None)
    monkeypatch.setattr(processors, "has_avx512", lambda: True)
    code = "from runtime import processors; print(processors.request_tiles())"
    environment = {**os.environ, **precision.environment("bfloat16")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"


@pytest.mark.parametrize("unit", list(Bfloat16Unit))
def test_what_there_is_computes(unit: Bfloat16Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "bfloat16_unit", lambda: unit)
    assert precision.environment("bfloat16") == {}
    monkeypatch.setattr(measure, "machine", lambda: "a machine")
    runs = {form: [End(1.0, 0.5, "abc")] for form in ("float32", "bfloat16")}
    assert f"with {unit.value}. Trained" in precision.report("quick start", [1], runs)


def test_without_avx512_there_is_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "bfloat16_unit", lambda: None)
    monkeypatch.setattr(processors, "has_avx512", lambda: False)
    with pytest.raises(ConfigError, match="--forms bfloat16: .*leave it out"):
        precision.environment("bfloat16")
    assert precision.environment("centers") == {}
