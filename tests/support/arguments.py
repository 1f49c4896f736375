"""Arguments of all processes of this machine, as every user of it sees them."""

from __future__ import annotations

import base64
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

_PAUSE_SECONDS = 0.005
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{80,}={0,2}")


class Watch:
    """Reads the arguments of all processes but this one, again and again within the context."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        own = str(os.getpid())
        while not self._is_over.is_set():
            for name in filter(str.isdecimal, os.listdir("/proc")):
                if name != own:
                    with suppress(OSError):
                        self.seen.add(Path("/proc", name, "cmdline").read_bytes())
            time.sleep(_PAUSE_SECONDS)

    def having(self, *secrets: str) -> list[bytes]:
        """Return arguments that contain one of these texts, or an object of Horovod in base64."""
        wanted = [secret.encode() for secret in secrets]
        return [one for one in self.seen if any(w in one for w in wanted) or objects(one)]


def objects(text: bytes) -> list[bytes]:
    """Return the objects of Horovod that a text has in base64, each as it is pickled."""
    words = (word.rstrip(b"=") for word in _BASE64.findall(text))
    decoded = (base64.b64decode(word[: len(word) - (len(word) % 4 == 1)] + b"==") for word in words)
    return [one for one in decoded if b"horovod" in one]
