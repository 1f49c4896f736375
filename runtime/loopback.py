"""Jobs whose processes are all on this host: no other host and no other user reaches them.

What programs in C++ need for it is in ``setup-utils/loopback.c``; it is preloaded into them.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socketserver
import sys
from pathlib import Path
from typing import Any, Optional

from runtime import environment

_LIBRARY = Path(sys.prefix) / "lib" / "loopback.so"


def is_loopback(address: str) -> bool:
    """True if no other host reaches an address."""
    return ipaddress.ip_address(address).is_loopback


def loopback_variables() -> dict[str, str]:
    """Return the environment variables with which other hosts and users do not reach a program.

    For jobs whose processes are all on this host.
    """
    if not _LIBRARY.exists():
        print(
            f"warning: {_LIBRARY} is missing, so other hosts and users reach ports of this job; "
            "run 'make env'",
            file=sys.stderr,
        )
        return {}
    given = environment.variables()
    folder, name = str(_LIBRARY.parent), str(_LIBRARY)
    found = {}
    if len(folder.split()) > 1:
        # A blank divides the names in LD_PRELOAD, but not in LD_LIBRARY_PATH.
        name = _LIBRARY.name
        found["LD_LIBRARY_PATH"] = _joined(folder, given.get("LD_LIBRARY_PATH"))
    return {"LD_PRELOAD": _joined(name, given.get("LD_PRELOAD")), **found}


def _joined(first: str, rest: Optional[str]) -> str:
    """Put a name first in a list of names divided by colons."""
    return ":".join([first, *(name for name in (rest or "").split(":") if name not in (first, ""))])


def hear_this_user(server: socketserver.TCPServer) -> None:
    """Have a server on the loopback interface close the connections of other users."""
    if not is_loopback(str(server.server_address[0])) or not _LIBRARY.exists():
        return
    library = ctypes.CDLL(str(_LIBRARY))

    def verify_request(request: Any, client_address: Any) -> bool:
        return bool(library.is_of_this_user(request.fileno()))

    server.verify_request = verify_request  # type: ignore[method-assign]
