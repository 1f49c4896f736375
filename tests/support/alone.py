"""A program of one rank in the process of a test, and what its parts were given meanwhile.

A program that drops an option still runs well. So the parts that obey options are watched: they do
their work as always, and what each was called with is kept under the names of its parameters.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import logging
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, Optional

import pytest

from runtime.errors import USER_ERROR_STATUS, UserError

RUN_FILES = {"checkpoints", "config.json", "logs", "metrics.jsonl", "model-0000.params", "run.lock"}
"""What several parts of a program leave in the folder of a run."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Arrived(Exception):
    """A program is where a test wanted to see it, and goes no further."""


class Witness:
    """The calls of watched functions and classes, and what the program printed.

    A call has its arguments by the names of the parameters, with the defaults of those that were
    left out, and what it returned as ``result``: the object of a class, None after an error.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.output = ""

    def watch(self, owner: Any, *names: str) -> None:
        """Keep the calls of attributes of a module or a class.

        Those of a class are kept under its name, of a method or a function as ``Owner.name``.
        """
        for name in names:
            before = inspect.getattr_static(owner, name)
            full = _full_name(owner, name)
            if inspect.isclass(before):
                # By its constructor, so that whoever has imported the class already is watched too.
                self._patch.setattr(before, "__init__", self._wrapped(before.__init__, name))
            elif isinstance(before, classmethod):
                self._patch.setattr(owner, name, classmethod(self._wrapped(before.__func__, full)))
            else:
                self._patch.setattr(owner, name, self._wrapped(before, full))

    def replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Have a program call another function, which takes the same, and keep the calls."""
        signature = inspect.signature(getattr(owner, name))
        wrapped = self._wrapped(function, _full_name(owner, name), signature)
        self._patch.setattr(owner, name, wrapped)

    def calls(self, name: str) -> list[dict[str, Any]]:
        assert self._calls[name], f"{name} was never called; called were {sorted(self._calls)}"
        return self._calls[name]

    def values(self, path: str) -> list[Any]:
        """Return where a path leads in each call: ``PART.ARGUMENT`` or ``PART.result``, and on.

        What follows are attributes, as in ``FaceLoader.options.threads``.
        """
        parts = [name for name in self._calls if path.startswith(f"{name}.")]
        assert parts, f"{path} was never called; called were {sorted(self._calls)}"
        name = max(parts, key=len)
        first, *attributes = path[len(name) + 1 :].split(".")
        return [functools.reduce(getattr, attributes, one[first]) for one in self.calls(name)]

    def was_called(self, name: str) -> bool:
        return bool(self._calls[name])

    def run(self, program: ModuleType, words: list[str]) -> int | None:
        """Run a program's ``main`` as if it were started with these words; returns its status."""
        self._patch.setattr(sys, "argv", [f"{program.__name__}.py", *words])
        # The program sets them, for this process and its children.
        for name in ("CHECK_TIME", "SHUTDOWN_TIME"):
            self._patch.setenv(f"HOROVOD_STALL_{name}_SECONDS", "600")
        screen = io.StringIO()
        with redirect_stdout(screen), _signals_and_logging_as_before():
            try:
                return program.main()
            except Arrived:
                return None
            finally:
                self.output = screen.getvalue()

    def _wrapped(
        self, function: Callable[..., Any], name: str, signature: Optional[inspect.Signature] = None
    ) -> Callable[..., Any]:
        signature = signature or inspect.signature(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            call = {**bound.arguments, "result": None}
            self._calls[name].append(call)
            result = function(*args, **kwargs)
            call["result"] = call.get("self") if result is None else result
            return result

        return wrapper


def _full_name(owner: Any, name: str) -> str:
    return f"{owner.__name__.rpartition('.')[2]}.{name}"


@contextmanager
def _signals_and_logging_as_before() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    root = logging.getLogger()
    level = root.level
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        root.setLevel(level)


def stop(*_: Any, **__: Any) -> NoReturn:
    """Take the place of a function beyond which nothing is to be seen."""
    raise Arrived


def files_of(seen: Witness, folder: str = "") -> list[str]:
    """Return the names in the folder of the run, or in one below it."""
    models = Path(seen.values("RunLog.models_root")[0])
    return sorted(path.name for path in (models / folder).iterdir())


def saves(seen: Witness) -> list[list[int]]:
    """Return the updates at which the model, not the best one, and checkpoints were saved."""
    last = seen.values("ModelSaver.result")[1]
    models = [call["update"] for call in seen.calls("ModelSaver.save") if call["self"] is last]
    return [models, seen.values("Checkpointer.save.update")]


def reports(seen: Witness, *, have_targets: bool) -> list[int]:
    """Return the updates at which losses, or accuracies on targets, were reported."""
    models = Path(seen.values("RunLog.models_root")[0])
    records = map(json.loads, (models / "metrics.jsonl").read_text().splitlines())
    return [record["update"] for record in records if ("target" in record) == have_targets]


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
