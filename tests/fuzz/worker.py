"""Feeds one reader inputs, in a process that may die of them: ``worker READER FIRST STOP STATUS``.

What has happened so far stands in a file that the campaign reads, too, so that it is known when
this process is gone.
"""

from __future__ import annotations

import mmap
import os
import resource
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import make_input

STATUS = struct.Struct("<qqqq")
"""The input under way, and how many were accepted, refused, and executed something."""

_INPUT_MEMORY = 1 << 30
"""What one input may take."""
_EXECUTIONS = (
    "os.system os.exec os.fork os.forkpty os.posix_spawn os.spawn os.kill subprocess.Popen "
    "socket.connect socket.bind ctypes.dlopen pickle.find_class"
).split()
# The modules of the processes that try networks out.
_CHILDREN = {"backbones.trial", "runtime.untrusted.onnx_model"}


class Worker:
    """Runs inputs and keeps the status."""

    def __init__(self, status: Path) -> None:
        with status.open("r+b") as file:
            self._status = mmap.mmap(file.fileno(), STATUS.size)
        self._accepted = self._refused = self._executed = 0
        self._armed = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._armed:
            return
        # Modules that are imported late are compiled and run as well, but under their own names.
        named = str(arguments[1]) if event == "compile" else ""
        if event == "exec":
            named = str(getattr(arguments[0], "co_filename", ""))
        if event == "subprocess.Popen" and set(arguments[1]) & _CHILDREN:
            return
        self._executed += event in _EXECUTIONS or named in ("<string>", "<unknown>")

    def run(self, name: str, numbers: range) -> None:
        """Feed inputs; ends the process where a reader is wrong."""
        from runtime.errors import UserError
        from tests.fuzz.readers import READERS

        reader = READERS[name]
        with tempfile.TemporaryDirectory() as folder:
            made, place = Path(folder) / "seeds", Path(folder) / "read"
            made.mkdir()
            place.mkdir()
            os.chdir(folder)
            seeds = reader.seeds(made)

            def feed(content: bytes) -> None:
                try:
                    reader.read(place, content)
                    self._accepted += 1
                except UserError as error:
                    assert "\n" not in str(error) and len(str(error)) < 2000, "not one line"
                    self._refused += 1

            for content in seeds:
                feed(content)
            self._accepted = self._refused = 0
            for number in numbers:
                self._note(number)
                content = make_input(seeds, number, reader.make)
                _limit_memory(_INPUT_MEMORY)
                self._armed = reader.is_watched
                feed(content)
                self._armed = False
                self._executed += os.path.exists("executed")
                self._note(number)

    def _note(self, number: int) -> None:
        self._status[:] = STATUS.pack(number, self._accepted, self._refused, self._executed)


def _limit_memory(more: int) -> None:
    """Let this process take so many bytes more."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + more, resource.RLIM_INFINITY))


if __name__ == "__main__":
    name, first, stop, status = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    Worker(Path(status)).run(name, range(int(first), int(stop)))
    # Not through the destructors of MXNet, which have nothing to do with the readers.
    os._exit(0)
