"""Reports of runs: the files that they are made of, figures, charts, pages and the command."""

from __future__ import annotations

import base64
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluation.report import __main__ as report
from evaluation.report import charts, elements, figures
from evaluation.report.__main__ import with_names, write_page
from evaluation.report.charts import Series
from evaluation.report.figures import accuracy
from evaluation.report.run_files import column, read, scores_file
from evaluation.verification.curves import FOLDS
from tests.evaluation.support import check_refusal, npy
from tests.support import made_up_runs
from tests.support.launch import ROOT, clean_environment
from tests.support.made_up_runs import training_record, verification, write_faces, write_images
from tests.support.sets import assert_refused

COLORS = [elements.color(number) for number in range(8)]
EVIL = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>$\\frac{1}{0}$"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_faces(tmp_path / "run")


def test_of_updates_that_were_made_again_the_later_report_counts(tmp_path: Path) -> None:
    first = [training_record(update, loss=1.0) for update in (10, 20, 30, 40)]
    again = [training_record(update, loss=2.0) for update in (30, 40, 50)]
    first.insert(2, verification("lfw", 20, 0.5))
    first.append(verification("lfw", 40, 0.6))
    again.append(verification("lfw", 50, 0.7))
    # A run that began anew in the folder has nothing of the former.
    anew = [verification("lfw", 0, 0.5), training_record(15, 3.0)]
    for name, last, losses, accuracies in (
        ("a", again, {10: 1.0, 20: 1.0, 30: 2.0, 40: 2.0, 50: 2.0}, {20: 0.5, 50: 0.7}),
        ("b", anew, {15: 3.0}, {0: 0.5}),
    ):
        made_up_runs.write(tmp_path / name, [*first, *last], {})
        found = read(tmp_path / name)
        assert {one["update"]: one["loss"] for one in found.training} == losses
        assert {one["update"]: one["accuracy"] for one in found.targets["lfw"]} == accuracies


def test_what_is_not_there(run: Path, tmp_path: Path) -> None:
    """Files of the folder ``report``; and a last line may still be written."""
    found = read(write_images(tmp_path / "images"))
    assert not found.scores and found.samples is None and not found.parts
    with (run / "metrics.jsonl").open("a") as file:
        # No file can have this name, so there are no scores.
        file.write(json.dumps(verification("a" * 300, 2000, 0.9)) + '\n{"time": 1.0, "upd')
    found = read(run)
    assert found.training[-1]["update"] == 2000 and [*found.scores] == ["unseen"]
    assert "a" * 300 in found.targets and scores_file("../x y") == "scores-..%2Fx%20y.npy"
    assert_refused("no folder of a run: it has no metrics.jsonl; give the", read, tmp_path)
    # Scores of one kind of pairs.
    (run / "report/scores-unseen.npy").write_bytes(npy([[1.0, 1]] * 4))
    assert not read(run).scores


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", b'{"update": 1}\nnonsense\n'),
        ("metrics.jsonl", b'{"update": -1}\n'),
        ("metrics.jsonl", b'{"loss": 1}\n'),
        ("metrics.jsonl", b"[" * 100_000 + b"\n"),
        ("config.json", b'{"rec": ' + b"[" * 900 + b"]" * 900 + b"}"),
        ("config.json", b"[]"),
        ("report/parts.jsonl", b'{"host": "a"}\n'),
        ("report/samples.jpg", b"<svg onload='alert(1)'/>"),
        ("report/scores-unseen.npy", b"nonsense"),
        ("report/scores-unseen.npy", npy(np.zeros((4, 3)))),
        *(("report/scores-unseen.npy", npy([[0.5, 1], pair])) for pair in
          ([0.5, 0.5], [-2, 0], [np.nan, 0])),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    assert_refused(f"{Path(name).name} is damaged, .* or move it away", read, run)


def test_numbers_that_cannot_be_drawn_are_not_numbers() -> None:
    values = [1, 2.5, None, "3", True, 1e305, json.loads("NaN"), 10**400]
    found = column([{"loss": value} for value in values], "loss")
    assert found[:2].tolist() == [1, 2.5] and np.isnan(found[2:]).all()


def test_intervals_of_verifications_and_validations() -> None:
    """Of many verifications whose folds scatter, 95 % of the intervals hold the true accuracy."""
    generator = np.random.default_rng(1)
    folds = generator.normal(0.8, 0.02, (4000, FOLDS))
    found = [accuracy({"accuracy": one.mean(), "accuracy_std": one.std()}) for one in folds]
    share = np.mean([one.low <= 0.8 <= one.high for one in found])
    assert share == pytest.approx(0.95, abs=0.012)
    # Wilson's interval: Brown, Cai and DasGupta (2001) have such numbers, 8 of 10.
    wilson = accuracy({"accuracy": 0.8, "correct": 8, "total": 10})
    assert wilson == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    assert accuracy({"accuracy": 1.0, "total": 100}).high == pytest.approx(1.0)
    assert str(accuracy({})) == "–"


def test_what_scores_say() -> None:
    """Twenty pairs, of which one of different people is above two of one person."""
    same = np.tile([1.0, 0.0], 10)
    cosines = np.where(same == 1, 0.8, 0.1) + np.arange(20) / 1000
    cosines[1], cosines[[0, 2]] = 0.7, 0.6
    scores = np.stack([cosines, same], axis=1)
    # A chart begins at the power of ten below the rate of one pair.
    run: Any = SimpleNamespace(name="run", scores={"x": scores})
    roc, _ = figures.of_scores([run])
    svg = base64.b64decode(re.findall(r'base64,([^"]*)', roc)[0])
    assert b">0.1</text>" in svg and b">0.01</text>" not in svg
    assert re.findall(r"background:(.*?)\"></span>(\w+)</li>", roc) == [(COLORS[0], "run")]


def test_times_of_a_run(tmp_path: Path) -> None:
    """The first report compiles; the third took three times as long as the second.

    The time between two parts of a run does not count.
    """
    records = [training_record(10 * n, 1.0) for n in (1, 2, 3)]
    for record, rate, waiting in zip(records, (1, 300, 100), (0.9, 0.0, 0.2)):
        record |= {"images_per_second": rate, "waiting": waiting, "backbone": 0.5}
        record |= {"head": 0.0, "communication": 0.0}
    made_up_runs.write(tmp_path / "run", records, {})
    run = read(tmp_path / "run")
    shares = figures.time_shares(run)
    assert shares["waiting"] == pytest.approx(0.15) and shares["backbone"] == pytest.approx(0.5)
    assert sum(shares.values()) == pytest.approx(1)
    assert figures.images_per_second(run) == 200
    training = [{"time": 110}, {"time": 1020}]
    parts = [{"time": 100}, {"time": 1000}]
    for made, begun, expected in ((training, parts, 30), (training, [], 910), ([], [], None)):
        run = replace(run, training=made, parts=begun)
        assert figures.duration(run) == (expected and timedelta(seconds=expected))


def drawn(svg: bytes, *style: str) -> list[np.ndarray]:
    """The points [n, 2] of each line in a chart whose style has these words."""
    lines = r'<path d="([^"]*)" clip-path[^>]*? style="(fill: none[^"]*)"'
    chosen = [
        points
        for points, said in re.findall(lines, svg.decode())
        if all(one in said for one in style)
    ]
    return [np.array(re.findall(r"[-.\d]+", one), float).reshape(-1, 2) for one in chosen]


def test_lines_are_where_their_numbers_are() -> None:
    x, y = np.array([10.0, 20, 40]), np.array([1.0, 3, 2])
    one = Series("a", 0, x, y, y - 0.5, y + 0.5)
    svg = charts.lines("loss", [one], marks=[20.0], from_zero=True)
    (line,), (mark,) = drawn(svg, COLORS[0], "width: 1.8"), drawn(svg, "dasharray: 2,3")
    assert np.corrcoef(line[:, 0], x)[0, 1] == pytest.approx(1)
    scale, zero = np.polyfit(y, line[:, 1], 1)
    # The axis goes from 0 to a little above the largest.
    assert [zero, zero + 1.08 * 3 * scale] == pytest.approx(mark[:, 1])
    assert mark[:, 0] == pytest.approx(line[1, 0]) and svg.count(b"fill-opacity: 0.18") == 1
    curve = Series("a", 0, np.array([0, 0.01, 0.1, 1]), np.array([0, 0.5, 0.8, 1]))
    (line,) = drawn(charts.curves_of_rates([curve], 1e-3), COLORS[0])
    assert len(line) == 3 and np.ptp(np.diff(line[:, 0])) == pytest.approx(0, abs=1e-3)
    assert np.corrcoef(line[:, 1], curve.y[1:])[0, 1] == pytest.approx(-1)
    svg = charts.histograms([np.arange(9.0), np.ones(4)])
    (first,), (second,) = drawn(svg, COLORS[0]), drawn(svg, COLORS[1])
    low = first[0, 1]
    # A ninth of the one in nine of fifty bins, and all of the other in one.
    assert np.ptp(first[:, 1]) == pytest.approx(np.ptp(second[:, 1]) / 9, rel=1e-3)
    assert ((first[:, 1] < low).sum(), (second[:, 1] < low).sum()) == (18, 2)


def check(html: str) -> Any:
    """Parse a page, which loads nothing, runs nothing, and calls nothing twice by one name.

    All elements but ``meta`` and ``img`` are closed, so that it can be read as XML.
    """
    root = ElementTree.fromstring(re.sub(r"(<(meta|img)\b[^>]*)>", r"\1/>", html))
    elements = [(one.tag, one.attrib) for one in root.iter()]
    assert not {tag for tag, _ in elements} & {"script", "link", "iframe", "object", "base", "form"}
    names = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(names) == len(set(names))
    for tag, attributes in elements:
        assert not [name for name in attributes if name.startswith("on") or name == "href"], tag
        assert attributes.get("src", "data:image/").startswith("data:image/"), (tag, attributes)
    (policy,) = (a["content"] for _, a in elements if a.get("http-equiv"))
    for said in ("default-src 'none'", "base-uri 'none'", "form-action 'none'"):
        assert said in policy
    assert not re.search(r"@import|url\(|https?:", html)
    # For telephones, and charts in the dark.
    for said in ('<meta name="viewport"', "prefers-color-scheme: dark", "filter: invert(1)"):
        assert said in html
    assert set(re.findall(r"var\((--\w+)\)", html)) <= set(re.findall(r"(--\w+):", html))
    for style in root.iter("style"):
        style.clear()
    figures = " ".join(attributes["id"] for tag, attributes in elements if tag == "figure")
    return SimpleNamespace(elements=elements, text="".join(root.itertext()), figures=figures)


@pytest.mark.parametrize(("write", "figures", "texts"), [
    (
        lambda folder: write_faces(folder, targets=("a", "b")),
        "accuracy-0 accuracy-1 roc-0 scores-0 roc-1 scores-1 loss learning-rate throughput samples",
        ["0.9545", "backbone 70.0%", "host1", "host2", "a processor", "margins", "1.0,0.5,0.0",
         "python train.py --dataset synthetic", "area under ROC", "numpy 1", "TAR@FAR",
         "where the run went on", "2023-11-14T22:13:20 UTC"],
    ),
    (
        write_images,
        "accuracy-0 validation-loss loss learning-rate throughput",
        ["0.8000 [0.7741, 0.8236]", "loss of the last report0.5000"],
    ),
], ids=["faces", "images"])  # fmt: skip
def test_the_report_of_a_run_has_everything(tmp_path: Path, write, figures, texts) -> None:
    page = check(write_page([read(write(tmp_path / "run"))]))
    assert page.figures == figures
    assert sum(tag == "img" for tag, _ in page.elements) == len(figures.split())
    assert not [said for said in texts if said not in page.text]
    assert ("TAR@FAR" in page.text) == ("roc-0" in figures)


def test_nothing_in_a_run_becomes_a_tag(tmp_path: Path) -> None:
    """Not its name, not names and values of options, not sets, hosts, commands and versions."""
    evil_options: dict[str, Any] = {EVIL: EVIL, "network": EVIL}
    folder = write_faces(tmp_path / "plain", **evil_options)
    record = verification(EVIL, 2000, 0.9) | {f"tar_at_far_{EVIL}": 0.5}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    evil = {**made_up_runs.PART, "host": EVIL, "command": EVIL, "versions": {EVIL: EVIL}}
    made_up_runs.write_lines(folder / "report" / "parts.jsonl", [evil])
    run = read(folder.rename(tmp_path / EVIL.replace("/", "∕")))
    other = read(write_faces(tmp_path / "other"))
    for html in (write_page([run]), write_page([run, other])):
        page = check(html)
        assert EVIL in page.text and run.name in page.text


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    """The interval of an accuracy that is no share would be the root of a negative number."""
    made_up_runs.write(tmp_path / "begun", [], {})
    page = check(write_page([read(tmp_path / "begun")]))
    assert page.figures == "" and "begun" in page.text
    records = [training_record(update, 1.0) for update in range(1, 100)]
    records[50]["loss"] = records[98]["loss"] = None
    records[98]["time"] = 1e250
    for name, share, total in (("a", 2.0, 10), ("b", -1e200, 1e-200), ("c", 1e299, None)):
        records.append(verification(name, 99, share) | {"total": total})
    for update, share in ((97, math.nan), (98, 0.75), (99, 0.5)):
        records.append(verification("d", update, share))
    made_up_runs.write(tmp_path / "bad", records, {})
    text = check(write_page([read(tmp_path / "bad")])).text
    assert "0.7500 at 98" in text
    assert "nan" not in text and "time0:01:39" in text
    assert not any(f"accuracy {name}" in text for name in "abc")


def test_a_comparison_has_curves_differences_and_final_figures(tmp_path: Path) -> None:
    write_faces(tmp_path / "one", targets=("lfw",))
    write_faces(tmp_path / "two", targets=("lfw", "cfp"), lr=0.25, extra=1)
    html = write_page([read(tmp_path / name) for name in ("one", "two")])
    page = check(html)
    assert "<title>one · two</title>" in html and "2 runs" in page.text
    assert page.figures == "accuracy-0 accuracy-1 roc-0 roc-1 loss learning-rate throughput"
    table = html[html.index("Differences in configuration") :]
    rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", table)
    assert rows == [("lr", "0.1", "0.25"), ("extra", "–", "1")]
    assert "area under ROC cfp" in page.text and "TAR@FAR lfw" in page.text
    # Runs of equal options and names.
    runs = [read(write_images(tmp_path / name / "run")) for name in "ab"]
    assert "Differences" not in check(write_page(runs)).text
    assert [run.name for run in with_names(runs)] == [str(tmp_path / n / "run") for n in "ab"]


def test_one_page_of_several_runs_and_mistakes(run: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(run.parent)
    write_images(Path("b"))
    report.main(["run", "b"])
    assert capsys.readouterr().out == "comparison.html\n"
    assert "Comparison of runs" in Path("comparison.html").read_text(encoding="utf-8")
    check_refusal(report.main, ["."], "no folder of a run")
    message = "missing/a.html cannot be written: .* with --out"
    check_refusal(report.main, ["run", "--out", "missing/a.html"], message)
    check_refusal(report.main, [], "RUN")
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    check_refusal(report.main, ["run"], "needs matplotlib, .* requirements.txt")
    assert not Path("run/report.html").exists()


def test_a_page_needs_neither_mxnet_nor_horovod(tmp_path: Path) -> None:
    """On any machine with a copy of the folder; and a wrong one is answered before matplotlib."""
    run = write_images(tmp_path / "run")
    code = """if True:
        import sys
        from evaluation.report.__main__ import main
        assert not {'matplotlib', 'sklearn'} & set(sys.modules)
        main(sys.argv[1:])
        print(sorted({'mxnet', 'horovod', 'cv2', 'numba'} & set(sys.modules)))"""
    words, environment = [sys.executable, "-c", code, str(run)], clean_environment()
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == f"{run}/report.html\n[]\n", done.stderr
