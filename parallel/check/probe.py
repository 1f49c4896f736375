"""The program of the check on every host: says what the host is, then measures as it is told.

    python -m parallel.check.probe MODELS_ROOT

Answers are lines that begin with a mark, since a login shell may print lines of its own. Requests
are lines of JSON on the standard input. The end of the input ends the probe.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parallel.check.facts import gather
from parallel.check.network import listen, measure

MARK = "parallel.check "
"""Begins each answer."""
BUSY = {"busy": True}
"""An answer that comes while the real one takes time, so that a host that hangs is told apart."""
_BUSY_SECONDS = 2.0
# A probe whose first host is gone without the connection being closed ends by itself.
_IDLE_SECONDS = 300


def main() -> None:
    """Answer until the input ends."""
    signal.alarm(_IDLE_SECONDS)
    done = threading.Event()
    threading.Thread(target=_say_busy, args=(done,), daemon=True).start()
    facts = asdict(gather(Path(sys.argv[1])))
    done.set()
    _say({"facts": facts})
    for line in sys.stdin:
        signal.alarm(_IDLE_SECONDS)
        _say(_answer(json.loads(line)))


def _say_busy(done: threading.Event) -> None:
    while not done.wait(_BUSY_SECONDS):
        _say(BUSY)


def _say(answer: dict[str, Any]) -> None:
    print(MARK + json.dumps(answer), flush=True)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    key = bytes.fromhex(request.get("key", ""))
    if "listen" in request:
        ports = {}
        for address in request["listen"]:
            # Other hosts may see another address than this one has.
            with suppress(OSError):
                ports[address] = listen(address, key)
        return {"ports": ports}
    if "measure" in request:
        address, port = request["measure"]
        try:
            return {"link": measure(address, port, key)}
        except OSError as error:
            return {"error": error.strerror or str(error)}
        except EOFError:
            return {"error": "the connection was closed"}
    return {}


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    # Not waiting for a thread that asks a dead disk.
    os._exit(0)
