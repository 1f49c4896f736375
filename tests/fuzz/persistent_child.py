"""The process that tries networks out, kept for many inputs: it takes seconds to start."""

from __future__ import annotations

import subprocess
from itertools import count
from typing import Any, Optional

from runtime.untrusted import child

# It grows a little with each.
_INPUTS = 500


def keep_children() -> None:
    """Keep the processes that try networks out, in this process; one that dies is replaced."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    numbers = count(1)

    def end(module: str) -> int:
        process = processes.pop(module, None)
        if process is None:
            return 0
        process.communicate()
        return process.returncode

    def ask(module: str, header: dict[str, Any], content: bytes, memory: int) -> Optional[str]:
        """Answer as ``child.ask`` does."""
        if next(numbers) % _INPUTS == 0:
            end(module)
        if module not in processes:
            processes[module] = child.start(module, subprocess.DEVNULL)
        process = processes[module]
        reply = b""
        try:
            process.stdin.write(child.request(header, content, memory))
            process.stdin.flush()
            reply = process.stdout.readline()
        except BrokenPipeError:
            pass
        return child.reason(reply, 0 if reply else end(module), b"")

    setattr(child, "ask", ask)  # noqa: B010 (typed as a function)
