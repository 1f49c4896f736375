"""Every module can be imported with this Python; ``make pythons`` tries every supported one."""

from __future__ import annotations

import subprocess
import sys

from tests.pythons.campaign import TIER
from tests.pythons.modules import ROOT
from tests.support.launch import clean_environment


def test_every_module_is_imported_and_every_package_is_pinned() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.pythons.modules"],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " modules imported, 0 packages" in done.stdout
    assert [path for path in TIER if not (ROOT / path).exists()] == []
