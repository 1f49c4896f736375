"""A program of one rank in the process of a test, which has imported MXNet already."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

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


def trained(program: ModuleType, *words: object) -> str:
    """Run a program that must succeed; returns what it printed."""
    result = run_alone(program, *words)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def assert_one_line(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Assert that a program has ended with one line of error, which has these parts."""
    assert result.returncode == 2 and "Traceback" not in result.stderr, result
    (line,) = re.findall(r"^.*error: .*", result.stderr, re.MULTILINE)
    assert result.stderr.rstrip().endswith(line)
    assert [part for part in parts if part not in line] == [], line


def metrics(models: Path, field: str, **of: object) -> list[Any]:
    """Return a number, such as "loss", of the reports of a run that have it and these fields."""
    records = map(json.loads, (models / "metrics.jsonl").read_text().splitlines())
    return [one[field] for one in records if field in one and of.items() <= one.items()]
