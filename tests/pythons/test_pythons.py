"""Every module can be imported with this Python; ``make pythons`` tries every supported one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.pythons.campaign import ROOT, TIER
from tests.support.launch import finish, write_program


def test_every_module_is_imported_and_every_package_is_pinned() -> None:
    done = finish(sys.executable, "-m", "tests.pythons", "--import-all")
    assert " modules imported, 0 packages" in done.stdout
    assert [path for path in TIER if not (ROOT / path).exists()] == []


def test_trials_need_no_package() -> None:
    """``.ci/run`` starts and stops them before it installs any; -S leaves out what is installed."""
    code = (
        "import os, tests.pythons.campaign, runtime.errors as errors\n"
        "errors.run_stoppable(lambda: os.kill(os.getpid(), 15))"
    )
    done = finish(sys.executable, "-S", "-c", code, status=143)
    assert done.stderr == "stopped by SIGTERM: no unfinished file is left behind\n"


def test_what_two_pythons_compile_at_the_same_time_is_compiled_once(tmp_path: Path) -> None:
    calls, versions = tmp_path / "calls", ("3.9", "3.12")
    line = f'echo "$@" >>"{calls}"; sleep 0.5; echo "code of $2" >"$4"'
    compiler = write_program(tmp_path / "compiler", line)
    (tmp_path / "compiled").mkdir()
    for version in versions:
        (tmp_path / version / "files.dir").mkdir(parents=True)
    for count, name in enumerate(("first", "second"), 1):
        words = (compiler, "-c", f"{name}.cc", "-o", f"files.dir/{name}.o")
        running = [
            subprocess.Popen(
                [ROOT / ".ci" / "compile-once", *words, f"-I/include/python{version}"],
                cwd=tmp_path / version,
                env={"PATH": os.environ["PATH"], "COMPILED": str(tmp_path / "compiled")},
            )
            for version in versions
        ]
        assert [process.wait(60) for process in running] == [0, 0]
        assert len(calls.read_text().splitlines()) == count
        for version in versions:
            made = tmp_path / version / "files.dir" / f"{name}.o"
            assert made.read_text() == f"code of {name}.cc\n"
