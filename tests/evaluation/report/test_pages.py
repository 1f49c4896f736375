"""The pages, as a parser of HTML reads them: complete, without references, without scripts."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from typing_extensions import override

from evaluation.report.pages import with_names, write_comparison, write_page
from evaluation.report.run_files import read
from tests.support import made_up_runs
from tests.support.made_up_runs import training_record, verification

EVIL = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>$\\frac{1}{0}$"
_VOID = {"meta", "img", "br", "link"}


class Page(HTMLParser):
    """Elements with their attributes, and text; every element has to be closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    @override
    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    @override
    def handle_endtag(self, tag) -> None:
        assert self._open.pop() == tag

    @override
    def handle_data(self, data) -> None:
        if "style" not in self._open:
            self.text += data

    def figures(self) -> str:
        return " ".join(names["id"] or "" for tag, names in self.elements if tag == "figure")


def check(html: str) -> Page:
    """Parse a page, which loads nothing, runs nothing, and calls nothing twice by one name."""
    page = Page(html)
    kinds = {tag for tag, _ in page.elements}
    assert not kinds & {"script", "link", "iframe", "object", "base", "form", "a"}
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/jpeg;base64,")), (tag, value)
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv")) or ""
    assert policy.startswith("default-src 'none'")
    assert "base-uri 'none'" in policy and "form-action 'none'" in policy
    styles = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert not re.search(r"@import|url\((?!#)", html) and not re.search("https?:", html)
    assert set(re.findall(r"var\((--\w+)\)", html)) <= set(re.findall(r"(--\w+):", styles))
    return page


def test_the_report_of_a_face_run_has_everything(tmp_path: Path) -> None:
    page = check(write_page(read(made_up_runs.write_faces(tmp_path / "run", targets=("a", "b")))))
    assert page.figures() == (
        "accuracy-0 roc scores-0 scores-1 loss learning-rate throughput samples"
    )
    assert sum(tag == "svg" for tag, _ in page.elements) == 7
    for said in (
        *("0.9545", "backbone 70.0%", "host1", "host2", "a processor", "margins", "1.0,0.5,0.0"),
        *("python train.py --dataset synthetic", "of 2,000", "in 2 parts", "area under ROC"),
        *("TAR@FAR", "where the run went on", "2023-11-14 22:13 UTC"),
    ):
        assert said in page.text, said


def test_the_report_of_a_classifier_without_the_folder_report(tmp_path: Path) -> None:
    page = check(write_page(read(made_up_runs.write_images(tmp_path / "run"))))
    assert page.figures() == "accuracy-0 validation-loss loss learning-rate throughput"
    assert "0.8000 [0.7741, 0.8236]" in page.text and "TAR@FAR" not in page.text
    assert "loss0.5000of the last report" in page.text


def test_nothing_in_a_run_becomes_a_tag(tmp_path: Path) -> None:
    """Not its name, not names and values of options, not sets, hosts, commands and versions."""
    evil_options: dict[str, Any] = {EVIL: EVIL, "network": EVIL}
    folder = made_up_runs.write_faces(tmp_path / "plain", **evil_options)
    record = verification(EVIL, 2000, 0.9) | {f"tar_at_far_{EVIL}": 0.5}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    evil = {**made_up_runs.PART, "host": EVIL, "command": EVIL, "versions": {EVIL: EVIL}}
    made_up_runs.write_lines(folder / "report" / "parts.jsonl", [evil])
    run = read(folder.rename(tmp_path / EVIL.replace("/", "∕")))
    other = read(made_up_runs.write_faces(tmp_path / "other"))
    for html in (write_page(run), write_comparison([run, other])):
        page = check(html)
        assert EVIL in page.text and run.name in page.text


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    """The interval of an accuracy that is no share would be the root of a negative number."""
    made_up_runs.write(tmp_path / "begun", [], {})
    page = check(write_page(read(tmp_path / "begun")))
    assert page.figures() == "" and "begun" in page.text
    records = [training_record(update, 1.0) for update in range(1, 100)]
    records[50]["loss"] = records[98]["loss"] = None
    records[98]["time"] = 1e250
    for name, accuracy, total in (("a", 2.0, 10), ("b", -1e200, 1e-200), ("c", 1e299, None)):
        records.append(verification(name, 99, accuracy) | {"total": total})
    for update, accuracy in ((97, math.nan), (98, 0.75), (99, 0.5)):
        records.append(verification("d", update, accuracy))
    made_up_runs.write(tmp_path / "bad", records, {})
    text = check(write_page(read(tmp_path / "bad"))).text
    assert "0.7500 at 98" in text
    assert "nan" not in text and "timein one part" not in text
    assert all(f"accuracy {name}–" in text for name in "abc")


def test_a_comparison_has_curves_differences_and_final_figures(tmp_path: Path) -> None:
    runs = [
        read(made_up_runs.write_faces(tmp_path / "one", targets=("lfw",))),
        read(made_up_runs.write_faces(tmp_path / "two", targets=("lfw", "cfp"), lr=0.25, extra=1)),
    ]
    html = write_comparison(runs)
    page = check(html)
    assert "<title>one · two</title>" in html and "2 runs" in page.text
    assert page.figures() == "accuracy-0 accuracy-1 roc-0 roc-1 loss learning-rate throughput"
    table = html[html.index("Differences in configuration") : html.index("<h2>Accuracy")]
    rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", table)
    assert rows == [("lr", "0.1", "0.25"), ("extra", "no such option", "1")]
    assert "area under ROC cfp" in page.text and "TAR@FAR lfw" in page.text


def test_runs_of_equal_options_and_names(tmp_path: Path) -> None:
    runs = [read(made_up_runs.write_images(tmp_path / name / "run")) for name in "ab"]
    assert "None: all options are the same." in check(write_comparison(runs)).text
    assert [run.name for run in with_names(runs)] == [str(tmp_path / n / "run") for n in "ab"]
    assert [run.name for run in with_names([runs[0], runs[0]])] == ["run"]
