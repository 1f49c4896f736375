"""The TCP connections of MXNet's parameter servers, which only processes of the job can open.

ps-lite believes every message that reaches its sockets, and ends the process at those that it
cannot read. It opens them in C++ and has no option for authentication. ZeroMQ's CURVE is in the
library, but encrypts with TweetNaCl, at 25 MB/s. So three functions of the system that libmxnet.so
imports, and only its ZeroMQ calls, are replaced (``replace_imports``), two of them on ZeroMQ's own
thread; they never wait:

- ``listen``: the socket goes to a thread (``Admission``), and ZeroMQ polls a pipe instead, in which
  the numbers of authenticated connections arrive.
- ``accept4``: takes such a number out of the pipe.
- ``connect``: fails, as if nobody listened, until a thread has called the address (``call``) and
  both ends have given their proofs. ZeroMQ tries again every 100 to 200 ms, and then gets that
  connection.

The caller sends 32 random bytes; the listener answers with 32 of its own and its proof; the caller
sends its proof. A proof is an HMAC-SHA256, by the job's key, of the role that gives it, the address
that was called and both random numbers: it is of no use for another connection, in the other
direction or at another address. What follows is neither encrypted nor signed, so that it costs
nothing; a party that can read or change the packets of others is not kept out.

No other byte of anybody reaches ZeroMQ 4.2.2, which has known faults, or ps-lite. Data is sent and
received as without this module.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import hmac
import logging
import mmap
import os
import secrets
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any, Callable, Optional

_log = logging.getLogger(__name__)

Address = tuple[str, int]

SECONDS = 10.0
"""Time for both proofs."""
_NONCE_BYTES = _PROOF_BYTES = 32
_LISTENER, _CALLER = b"listener", b"caller"
# Connections without a proof. The oldest one is closed for a new one: a process of
# the job needs a few milliseconds, and a job must not run out of files because of others.
_MOST_CALLERS = 256
# After an error of accept(), which a process without free file descriptors gets again at once.
_PAUSE_SECONDS = 0.05

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

_RTLD_DI_LINKMAP = 2  # dlfcn.h
# elf.h: tags of the dynamic section.
_NULL, _PLTRELSZ, _STRTAB, _SYMTAB, _JMPREL = 0, 2, 5, 6, 23
_DYNAMIC_BYTES, _SYMBOL_BYTES = 16, 24
_RELOCATION = struct.Struct("QQq")  # Elf64_Rela: offset, symbol << 32 | type, addend
_READ_AND_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_kept: list[Any] = []
"""Functions of Python that libraries call; an unreferenced one would be freed."""


class Refused(ConnectionError):
    """The other end is not a process of the job."""


def proof(key: bytes, role: bytes, address: Address, nonces: bytes) -> bytes:
    """Return the proof of the party with a role in a connection to an address."""
    text = b"%s %s:%d %s" % (role, address[0].encode(), address[1], nonces)
    return hmac.digest(key, text, "sha256")


def call(address: Address, key: bytes, seconds: float = SECONDS) -> socket.socket:
    """Connect to a process of the job; both ends have proved that they are.

    Raises:
        Refused: the other end gives no proof or another one.
        OSError: there is no connection.
    """
    connection = socket.create_connection(address, seconds)
    try:
        # The kernel's time limit is one for the whole answer, Python's for each part of it.
        connection.setblocking(True)
        limit = struct.pack("ll", *divmod(int(seconds * 1e6), 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        own = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(own)
        answer = connection.recv(_NONCE_BYTES + _PROOF_BYTES, socket.MSG_WAITALL)
        nonces = own + answer[:_NONCE_BYTES]
        expected = proof(key, _LISTENER, address, nonces)
        if not hmac.compare_digest(answer[_NONCE_BYTES:], expected):
            raise Refused("it gives no proof or another one")
        connection.sendall(proof(key, _CALLER, address, nonces))
    except OSError:
        connection.close()
        raise
    return connection


class Admission(threading.Thread):
    """Accepts connections, and hands over those of processes of the job."""

    def __init__(
        self, listener: socket.socket, key: bytes, admit: Callable[[socket.socket], None]
    ) -> None:
        """Create it for a TCP socket that listens; ``start`` begins to accept.

        ``admit`` is called in this thread with each connection whose proof is right.
        """
        super().__init__(name="admission", daemon=True)
        self._listener, self._key, self._admit = listener, key, admit
        self._callers: dict[socket.socket, asyncio.Task[None]] = {}
        """Connections without a proof, the oldest first."""
        self._has_warned = False

    def run(self) -> None:
        """Accept until the process ends."""
        asyncio.run(self._accept())

    async def _accept(self) -> None:
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._callers) == _MOST_CALLERS:
                self._callers.pop(next(iter(self._callers))).cancel()
            self._callers[connection] = loop.create_task(self._hear(connection, peer))
            # Others have their turn, however many connections wait to be accepted.
            await asyncio.sleep(0)

    async def _hear(self, connection: socket.socket, peer: Address) -> None:
        """Hand over a connection after its proof, or close it; warn of the first such."""
        try:
            await asyncio.wait_for(self._check(connection), SECONDS)
        except (asyncio.CancelledError, asyncio.TimeoutError, OSError):
            if not self._has_warned:
                self._has_warned = True
                _log.warning("refused a connection from %s:%d, no process of this job", *peer[:2])
            connection.close()
        else:
            self._admit(connection)
        finally:
            self._callers.pop(connection, None)

    async def _check(self, connection: socket.socket) -> None:
        """Exchange proofs.

        Raises:
            Refused: there is no proof or another one.
            OSError: the connection is broken.
        """
        own, address = secrets.token_bytes(_NONCE_BYTES), connection.getsockname()
        nonces = await self._receive(connection) + own
        answer = own + proof(self._key, _LISTENER, address, nonces)
        await asyncio.get_running_loop().sock_sendall(connection, answer)
        expected = proof(self._key, _CALLER, address, nonces)
        if not hmac.compare_digest(await self._receive(connection), expected):
            raise Refused("it gives another proof")

    async def _receive(self, connection: socket.socket) -> bytes:
        """Receive a random number or a proof, and not the bytes after it: they are for others."""
        received = b""
        while len(received) < _NONCE_BYTES:
            rest = _NONCE_BYTES - len(received)
            part = await asyncio.get_running_loop().sock_recv(connection, rest)
            if not part:
                raise Refused("it closes the connection")
            received += part
        return received


def protect(library: ctypes.CDLL, key: str) -> None:
    """Connect MXNet, whose library this is, only to processes with the same key.

    Call it before ``mx.kv.create``.
    """
    sockets = _Sockets(key.encode())
    functions = {
        "listen": _Listen(sockets.listen),
        "accept4": _Accept4(sockets.accept4),
        "connect": _Connect(sockets.connect),
    }
    replace_imports(library, functions)


class _Sockets:
    """The functions that ZeroMQ calls; they return what those of the system would."""

    def __init__(self, key: bytes) -> None:
        self._key = key
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

        def admit(connection: socket.socket) -> None:
            os.write(writer, _FILE_DESCRIPTOR.pack(connection.detach()))

        Admission(listener, self._key, admit).start()
        return 0

    def accept4(self, descriptor: int, address: int, length: int, flags: int) -> int:
        try:
            (accepted,) = _FILE_DESCRIPTOR.unpack(os.read(descriptor, _FILE_DESCRIPTOR.size))
        except BlockingIOError:
            return _fail(errno.EAGAIN)
        return int(accepted)

    def connect(self, descriptor: int, address: int, length: int) -> int:
        family, port, host = _SOCKADDR_IN.unpack(ctypes.string_at(address, _SOCKADDR_IN.size))
        if family != socket.AF_INET:
            return _fail(errno.EAFNOSUPPORT)
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


class _LinkMap(ctypes.Structure):
    """The beginning of glibc's record of a loaded library, link.h."""

    _fields_ = [  # noqa: RUF012 (ctypes reads it)
        ("base", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("dynamic", ctypes.c_size_t),
    ]


def replace_imports(library: ctypes.CDLL, functions: Mapping[str, Any]) -> None:
    """Have a library call these functions, until the process ends, for those that it imports.

    The dynamic linker keeps the address of every imported function in a slot of the library, and
    its code jumps to the address in the slot. Only calls of this one library change. It is for
    64-bit Linux with glibc.

    Raises:
        OSError: it does not import one of them, or is linked in another way.
    """
    slots = _slots(library)
    for name, function in functions.items():
        if name not in slots:
            raise OSError(f"{library._name} does not import {name}()")
        _kept.append(function)
        _make_writable(slots[name])
        address = ctypes.cast(function, ctypes.c_void_p).value
        ctypes.c_void_p.from_address(slots[name]).value = address


def _slots(library: ctypes.CDLL) -> dict[str, int]:
    """Return the address of the slot of every imported function, by name."""
    record = ctypes.POINTER(_LinkMap)()
    libc = ctypes.CDLL(None)
    if libc.dlinfo(ctypes.c_void_p(library._handle), _RTLD_DI_LINKMAP, ctypes.byref(record)):
        raise OSError(f"the dynamic linker does not know {library._name}")
    table: dict[int, int] = {}
    address = record.contents.dynamic
    while _NULL not in table:
        tag, value = struct.unpack("qQ", ctypes.string_at(address, _DYNAMIC_BYTES))
        table[tag] = value
        address += _DYNAMIC_BYTES
    slots = {}
    relocations = ctypes.string_at(table[_JMPREL], table[_PLTRELSZ])
    for offset, info, _ in _RELOCATION.iter_unpack(relocations):
        symbol = table[_SYMTAB] + (info >> 32) * _SYMBOL_BYTES
        name = ctypes.string_at(table[_STRTAB] + ctypes.c_uint32.from_address(symbol).value)
        slots[name.decode()] = record.contents.base + offset
    return slots


def _make_writable(slot: int) -> None:
    """Allow writes to a slot, which some libraries forbid once they are loaded."""
    page = slot - slot % mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), _READ_AND_WRITE):
        raise OSError(ctypes.get_errno(), "mprotect")
