"""The TCP connections of MXNet's parameter servers, which only processes of the job can open.

ps-lite believes every message that reaches its sockets, and ends the process at those that it
cannot read. It opens them in C++ and has no option for authentication. ZeroMQ's CURVE is in the
library, but encrypts with TweetNaCl, at 25 MB/s. So three functions of the system that libmxnet.so
imports, and only its ZeroMQ calls, are replaced (``linking``), two of them on ZeroMQ's own
thread; they never wait:

- ``listen``: the socket goes to a thread of ``authentication``, and ZeroMQ polls a pipe instead, in
  which the numbers of authenticated connections arrive.
- ``accept4``: takes such a number out of the pipe.
- ``connect``: fails, as if nobody listened, until a thread has called the address and both ends
  have given their proofs. ZeroMQ tries again every 100 to 200 ms, and then gets that connection.

No other byte of anybody reaches ZeroMQ 4.2.2, which has known faults, or ps-lite. Data is sent and
received as without this module.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import struct
import threading
from typing import Any, Optional

from parallel.parameter_server import linking
from parallel.parameter_server.authentication import Address, Admission, Refused, call
from runtime.mxnet import mx

_log = logging.getLogger(__name__)

_Listen = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, use_errno=True)
_Accept4 = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, use_errno=True
)
_Connect = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True
)
_SOCKADDR_IN = struct.Struct("=H2s4s")  # family, port and address; netinet/in.h
_FILE_DESCRIPTOR = struct.Struct("=i")
_FAILED = -1


def protect(key: str) -> None:
    """Connect MXNet of this process only to processes with the same key.

    Call it before ``mx.kv.create``.
    """
    sockets = _Sockets(key.encode())
    functions = {
        "listen": _Listen(sockets.listen),
        "accept4": _Accept4(sockets.accept4),
        "connect": _Connect(sockets.connect),
    }
    linking.replace_imports(mx.base._LIB, functions)


class _Sockets:
    """The functions that ZeroMQ calls; they return what those of the system would."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._pipes: set[int] = set()
        # By address: None while a thread calls it.
        self._called: dict[Address, Optional[socket.socket]] = {}
        self._impostors: set[Address] = set()

    def listen(self, descriptor: int, backlog: int) -> int:
        try:
            listener = socket.socket(fileno=os.dup(descriptor))
            listener.listen(socket.SOMAXCONN)
            reader, writer = os.pipe()
        except OSError as error:
            return _fail(error.errno or errno.EMFILE)
        os.set_blocking(reader, False)
        os.dup2(reader, descriptor, inheritable=False)
        os.close(reader)
        self._pipes.add(descriptor)

        def admit(connection: socket.socket) -> None:
            os.write(writer, _FILE_DESCRIPTOR.pack(connection.detach()))

        Admission(listener, self._key, admit).start()
        return 0

    def accept4(self, descriptor: int, address: int, length: int, flags: int) -> int:
        if descriptor not in self._pipes:
            pointers = ctypes.c_void_p(address), ctypes.c_void_p(length)
            result: int = self._libc.accept4(descriptor, *pointers, flags)
            return result
        try:
            (accepted,) = _FILE_DESCRIPTOR.unpack(os.read(descriptor, _FILE_DESCRIPTOR.size))
        except BlockingIOError:
            return _fail(errno.EAGAIN)
        return int(accepted)

    def connect(self, descriptor: int, address: int, length: int) -> int:
        family, port, host = _SOCKADDR_IN.unpack(ctypes.string_at(address, _SOCKADDR_IN.size))
        if family != socket.AF_INET:
            result: int = self._libc.connect(descriptor, ctypes.c_void_p(address), length)
            return result
        called = socket.inet_ntoa(host), int.from_bytes(port, "big")
        if called not in self._called:
            self._called[called] = None
            threading.Thread(target=self._call, args=(called,), daemon=True).start()
        connection = self._called.get(called)
        if connection is None:
            return _fail(errno.ECONNREFUSED)
        del self._called[called]
        os.dup2(connection.fileno(), descriptor, inheritable=False)
        connection.close()
        return 0

    def _call(self, address: Address) -> None:
        try:
            connection = call(address, self._key)
            connection.setblocking(False)
            self._called[address] = connection
        except OSError as error:
            del self._called[address]
            if isinstance(error, Refused) and address not in self._impostors:
                self._impostors.add(address)
                _log.warning("%s:%d is not a process of this job: %s", *address, error)


def _fail(number: int) -> int:
    ctypes.set_errno(number)
    return _FAILED
