from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from evaluation.report import __main__ as report
from tests.evaluation.support import check_refusal
from tests.support import made_up_runs
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[3]


def test_one_page_of_several_runs(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    made_up_runs.write_faces(Path("a"))
    made_up_runs.write_images(Path("b"))
    report.main(["a", "b"])
    assert capsys.readouterr().out == "comparison.html\n"
    page = Path("comparison.html").read_text(encoding="utf-8")
    assert "Comparison of runs" in page and "<svg" in page


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    made_up_runs.write_images(Path("run"))
    check_refusal(report.main, ["."], "no folder of a run")
    words = ["run", "--out", "missing/a.html"]
    check_refusal(report.main, words, "missing/a.html cannot be written: .* with --out")
    check_refusal(report.main, [], "RUN")
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    check_refusal(report.main, ["run"], "needs matplotlib, .* requirements.txt")
    assert not Path("run/report.html").exists()


def test_a_page_needs_neither_mxnet_nor_horovod(tmp_path: Path) -> None:
    """On any machine with a copy of the folder; and a wrong one is answered before matplotlib."""
    run = made_up_runs.write_images(tmp_path / "run")
    code = (
        "import sys\nfrom evaluation.report.__main__ import main\n"
        "assert 'matplotlib' not in sys.modules and 'sklearn' not in sys.modules\n"
        "main(sys.argv[1:])\n"
        "print(sorted({'mxnet', 'horovod', 'cv2', 'numba'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.stdout == f"{run}/report.html\n[]\n", done.stderr
    assert "<svg" in (run / "report.html").read_text(encoding="utf-8")
