"""What the parts of a program were given, while it runs in the process of a test.

A program that drops an option still runs well. So the parts that obey options are watched: they do
their work as always, and what each was called with is kept under the names of its parameters.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import logging
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, Optional

import pytest

RUN_FILES = {"checkpoints", "config.json", "logs", "metrics.jsonl", "model-0000.params", "run.lock"}
"""What several parts of a program leave in the folder of a run."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Arrived(Exception):
    """A program is where a test wanted to see it, and goes no further."""


@dataclass(frozen=True)
class Call:
    """One call of a function, a method or a class."""

    arguments: dict[str, Any]
    """By the names of the parameters, those that were left out with their defaults."""
    result: Any = None
    """What it returned; of a class, the object. None if it has raised an error."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]


class Witness:
    """The calls of watched functions and classes, and what the program printed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._calls: dict[str, list[Call]] = defaultdict(list)
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

    def calls(self, name: str) -> list[Call]:
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
        found = [one.result if first == "result" else one[first] for one in self.calls(name)]
        return [functools.reduce(getattr, attributes, one) for one in found]

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
            place = len(self._calls[name])
            self._calls[name].append(Call(dict(bound.arguments)))
            result = function(*args, **kwargs)
            made = bound.arguments.get("self") if result is None else result
            self._calls[name][place] = Call(dict(bound.arguments), made)
            return result

        return wrapper


def models_of(seen: Witness) -> Path:
    return Path(seen.values("RunLog.models_root")[0])


def files_of(seen: Witness, folder: str = "") -> list[str]:
    """Return the names in the folder of the run, or in one below it."""
    return sorted(path.name for path in (models_of(seen) / folder).iterdir())


def saves(seen: Witness) -> list[list[int]]:
    """Return the updates at which the model, not the best one, and checkpoints were saved."""
    last = seen.calls("ModelSaver")[1].result
    models = [call["update"] for call in seen.calls("ModelSaver.save") if call["self"] is last]
    return [models, seen.values("Checkpointer.save.update")]


def reports(seen: Witness, *, have_targets: bool) -> list[int]:
    """Return the updates at which losses, or accuracies on targets, were reported."""
    lines = (models_of(seen) / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record["update"] for record in records if ("target" in record) == have_targets]


def _full_name(owner: Any, name: str) -> str:
    return f"{owner.__name__.rpartition('.')[2]}.{name}"


def stop(*_: Any, **__: Any) -> NoReturn:
    """Take the place of a function beyond which nothing is to be seen."""
    raise Arrived


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
