"""Every module can be imported with this Python; ``make pythons`` tries every supported one."""

from __future__ import annotations

import sys

from tests.pythons.__main__ import ROOT, TIER
from tests.support.launch import finish


def test_every_module_is_imported_and_every_package_is_pinned() -> None:
    done = finish(sys.executable, "-m", "tests.pythons", "--import-all")
    assert " modules imported, 0 packages" in done.stdout
    assert [path for path in TIER if not (ROOT / path).exists()] == []


def test_trials_need_no_package() -> None:
    """``.ci/run`` starts and stops them before it installs any; -S leaves out what is installed."""
    code = (
        "import os, tests.pythons.__main__, runtime.errors as errors\n"
        "errors.run_stoppable(lambda: os.kill(os.getpid(), 15))"
    )
    done = finish(sys.executable, "-S", "-c", code, status=143)
    assert done.stderr == "stopped by SIGTERM: no unfinished file is left behind\n"
