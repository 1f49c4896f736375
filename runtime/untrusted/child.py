"""A process that runs what a file asks for, and may die of it.

MXNet and ONNX Runtime are C++ programs that trust a network: a wrong one ends the process, takes
hours, or all memory. So a network from outside is run once in another process with limits of time
and memory, which cannot write files. Only if that goes well does this process run it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from runtime import environment, errors

GIGABYTE = 1 << 30
CPU_SECONDS, WALL_SECONDS = 6, 120
"""Limits of one request. The second is for a process that waits, or a machine that is busy."""
_MAX_IMAGES, _IMAGE_BYTES = 64, 64 << 20
"""A batch that the network itself fixes gets as much more: its results for each image in memory."""
_MAX_REASON = 300
_ROOT = Path(__file__).resolve().parents[2]
# A process with the role of a server would serve as soon as it imports MXNet.
_ROLES = "DMLC_"
Answer = Callable[[dict[str, Any], bytes], None]


def ask(module: str, header: dict[str, Any], content: bytes, memory: int) -> Optional[str]:
    """Have ``python -m module``, which calls ``serve``, try a network out.

    ``header`` is JSON for the module; the process may take ``memory`` bytes. Returns None if it
    went well, else the reason why not, one line.
    """
    with start(module) as process:
        replies, errors = process.communicate(request(header, content, memory))
    return reason(replies, process.returncode, errors)


def start(module: str, errors: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Start the process; it serves requests until its standard input ends."""
    variables = {
        name: value
        for name, value in environment.variables().items()
        if not name.startswith(_ROLES)
    }
    # Memory is what is counted: threads and their heaps would take an unknown part of it.
    single = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module],
        cwd=_ROOT,
        env={**variables, **single},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        # Not where mpirun's signals go, which ask this process alone to stop.
        start_new_session=True,
    )


def request(header: dict[str, Any], content: bytes, memory: int) -> bytes:
    """Return what the process reads."""
    head = {**header, "memory": memory, "bytes": len(content)}
    return json.dumps(head).encode() + b"\n" + content


def reason(reply: bytes, status: int, errors: bytes) -> Optional[str]:
    """Return None if a network was tried out, else the reason why not.

    ``reply`` is a line of the process, or nothing if it died; ``errors`` its standard error.
    """
    if reply.endswith(b"\n"):
        said: Optional[str] = json.loads(reply)
        return said
    if status in (-signal.SIGXCPU, -signal.SIGALRM):
        return f"it takes more than {CPU_SECONDS} s for an image, or {WALL_SECONDS} s in all"
    if status < 0:
        return f"it ends the process that tries it out ({signal.Signals(-status).name})"
    return f"the process that tries it out fails ({one_line(errors.decode(errors='replace'), -1)})"


def one_line(text: str, index: int = 0) -> str:
    """Return a line of a text, without what a terminal would obey."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return errors.one_line(lines[index] if lines else "")[:_MAX_REASON]


def serve(answer: Answer) -> None:
    """Answer the requests on the standard input; ``answer`` raises what is wrong with a network."""
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    # MXNet prints to the standard output, too.
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        header = json.loads(line)
        content = sys.stdin.buffer.read(header["bytes"])
        limit(header["memory"])
        replies.write(json.dumps(_try(answer, header, content)).encode() + b"\n")
        signal.alarm(0)


def _try(answer: Answer, header: dict[str, Any], content: bytes) -> Optional[str]:
    try:
        answer(header, content)
    # The exceptions of the libraries have no other common class.
    except Exception as error:
        text = str(error)
        if isinstance(error, MemoryError) or "alloc" in text.lower():
            return f"it needs more than {header['memory'] >> 20} MiB of memory"
        return one_line(text) or type(error).__name__
    return None


def limit(memory: int, images: int = 1) -> None:
    """Limit what this process may take from here on, for a network and a batch of images."""
    images = min(max(images, 1), _MAX_IMAGES)
    memory += (images - 1) * _IMAGE_BYTES
    signal.alarm(WALL_SECONDS)
    used = resource.getrusage(resource.RUSAGE_SELF)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + images * CPU_SECONDS),
        (resource.RLIMIT_AS, size + memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))
