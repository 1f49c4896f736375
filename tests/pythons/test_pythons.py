"""Every module can be imported with this Python; ``make pythons`` tries every supported one."""

from __future__ import annotations

import sys

from tests.pythons.campaign import ROOT, TIER
from tests.support.launch import finish


def test_every_module_is_imported_and_every_package_is_pinned() -> None:
    done = finish(sys.executable, "-m", "tests.pythons", "--import-all")
    assert " modules imported, 0 packages" in done.stdout
    assert [path for path in TIER if not (ROOT / path).exists()] == []
