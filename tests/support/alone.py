"""A program of one rank in the process of a test, which has imported MXNet already."""

from __future__ import annotations

import subprocess
from types import ModuleType

import pytest

from runtime.errors import USER_ERROR_STATUS, UserError
from tests.support.witness import Witness


def run_alone(program: ModuleType, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a program from its command line, without a launcher; returns status, output and errors.

    ``runtime.errors.run_program``, which turns an error into one line and a status, would end the
    process; so it is done here once more.
    """
    with pytest.MonkeyPatch.context() as patch:
        seen, status, errors = Witness(patch), None, ""
        try:
            status = seen.run(program, [str(word) for word in words])
        except UserError as error:
            status, errors = USER_ERROR_STATUS, f"error: {error}\n"
        return subprocess.CompletedProcess(list(map(str, words)), status or 0, seen.output, errors)
