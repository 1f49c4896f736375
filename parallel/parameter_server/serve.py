"""The scheduler and the servers of a job: ``python -m parallel.parameter_server.serve``.

With a server's role in the environment, the import of MXNet runs a server, which unpickles what it
receives. So MXNet is imported without the role, and then runs a server with the controller of this
module, which accepts only JSON. MXNet ignores exceptions in the functions that it calls: here they
end the process. After the settings no push causes one: the updater refuses it (see ``server``).
Messages come from processes of the job alone (see ``connections``).
"""

from __future__ import annotations

import ctypes
import logging
import os
import traceback
from functools import partial
from typing import Any, Callable

from parallel.parameter_server import assignment
from runtime import environment
from runtime.errors import run_program

_CRASH_STATUS = 1


def main() -> int:
    """Serve until the launcher ends the process."""
    own = assignment.find(environment.variables())
    assert own is not None and own.role != assignment.WORKER, "the launcher starts this program"
    with environment.without(assignment.ROLE):
        from parallel.parameter_server.connections import protect
        from parallel.parameter_server.messages import Settings
        from parallel.parameter_server.server import Updater
        from parallel.parameter_server.trace import Trace
        from runtime.mxnet import mx
    # Refused messages are logged to the standard error, which the launcher prints.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    folder = own.trace if own.role == assignment.SERVER else ""
    trace = Trace(folder, f"server-{os.uname().nodename}-{os.getpid()}")
    protect(own.key)
    store = mx.kv.create("dist")

    def control(_: int, body: bytes, __: Any) -> None:
        """Take the settings, the only command."""
        updater = Updater(Settings.decode(body.decode()), trace)
        store._set_updater(partial(_or_end, updater))

    prototype = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    controller = prototype(partial(_or_end, control))
    mx.base.check_call(mx.base._LIB.MXKVStoreRunServer(store.handle, controller, None))
    return 0


def _or_end(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function; an exception ends the process."""
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(_CRASH_STATUS)


if __name__ == "__main__":
    run_program(main)
