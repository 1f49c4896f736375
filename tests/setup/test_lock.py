"""Tests of the lock files, and of setup-utils/lock.sh, which writes them."""

from __future__ import annotations

import itertools
import re
import sys

import pytest

from tests.setup import conftest
from tests.support import pins

pytestmark = pytest.mark.thorough

PYTHONS = ("3.9", "3.10", "3.11", "3.12")
LISTS = ("requirements", "requirements-dev", "requirements-docs")
ALL = (*LISTS, "requirements-single")
def test_every_requirement_is_locked_in_one_version() -> None:
    for name, python in itertools.product(LISTS, PYTHONS):
        named = pins.pinned_for(python, f"{name}.txt")
        locked = pins.pinned_for(python, f"{name}.lock")
        assert len(named) > 3
        assert [(python, one) for one in named if locked.get(one) != named[one]] == []
    for python in PYTHONS:
        programs = pins.pinned_for(python, "requirements.lock")
        developers = pins.pinned_for(python, "requirements-dev.lock")
        shared = programs.keys() & developers.keys()
        assert len(shared) > 3
        assert [name for name in shared if programs[name] != developers[name]] == []


@pytest.mark.parametrize("name", ["requirements", "requirements-dev"])
def test_a_lock_has_what_its_requirements_need_and_nothing_else(name: str) -> None:
    """Compare with the metadata of the packages that this Python has installed."""
    python = "{}.{}".format(*sys.version_info)
    needed = pins.needed_by({*pins.pinned_for(python, f"{name}.txt")})
    assert pins.pinned_for(python, f"{name}.lock").keys() == needed


def test_a_single_package_is_installed_without_others() -> None:
    """requirements.lock has the dependencies, for MXNet's GPU builds those of ``mxnet``."""
    named = [str(one) for one in pins.requirements("requirements-single.txt")]
    assert sorted(named) == [str(one) for one in pins.requirements("requirements-single.lock")]
    needed = pins.needed_by({"horovod"}) - {"horovod"}
    assert needed <= pins.pinned("requirements.lock").keys()
    installer = (pins.ROOT / "setup-utils/install.sh").read_text().replace("'\\\n'", "")
    (known,) = re.findall(r"^readonly KNOWN_PACKAGES='(.*)'$", installer, re.MULTILINE)
    builds = [name.partition("==")[0] for name in named if name.startswith("mxnet-")]
    assert known.split() == ["mxnet", *builds]


WRITER = """#!/usr/bin/env bash
[[ -z ${STUB_BROKEN_UV-} ]] || { echo "no version of $STUB_BROKEN_UV" >&2; exit 1; }
echo "uv $*" >>"$CALLS"
grep -c -e --hash "${@: -1}" >>"$CALLS"
echo "uv has written ${@: -1}" >"${@: -1}"
"""


@pytest.fixture
def locking(sandbox: conftest.Sandbox) -> conftest.Sandbox:
    """A sandbox with an environment, whose pip installs a stand-in of uv."""
    assert sandbox.install().returncode == 0
    sandbox.stub("uv", WRITER)
    python = sandbox.folder / ".venv/bin/python"
    install = 'mkdir -p "${@: -1}/bin" && cp "$STUBS/uv" "${@: -1}/bin"'
    cases = f'case "$*" in\n    *"pip install"*"--target "*) {install} ;;\n'
    python.write_text(conftest.PYTHON.replace('case "$*" in\n', cases))
    return sandbox


def test_locks_are_written_by_the_pinned_uv_all_or_none(locking: conftest.Sandbox) -> None:
    result = locking.run("bash", "setup-utils/lock.sh", STUB_BROKEN_UV="idna")
    told, error = result.stderr.splitlines()
    assert (result.returncode, told) == (2, "no version of idna")
    assert error.startswith("error: requirements.lock was not written, see above; the lock files")
    for name in ALL:
        lock = f"{name}.lock"
        assert (locking.folder / lock).read_text() == (pins.ROOT / lock).read_text()
    result = locking.run("bash", "setup-utils/lock.sh", UPGRADE="idna six")
    assert result.returncode == 0, result.stderr
    for name in ALL:
        assert (locking.folder / f"{name}.lock").read_text() == f"uv has written {name}.lock\n"
    install, *calls = locking.calls.splitlines()
    assert "--require-hashes" in install and "uv.lock --target" in install
    # uv gets the former versions without hashes, so that it asks the index for the hashes.
    assert calls[1::2] == ["0"] * len(ALL)
    for call in calls[::2]:
        assert "--generate-hashes" in call and str(locking.folder) not in call
        assert "--upgrade-package idna --upgrade-package six" in call
