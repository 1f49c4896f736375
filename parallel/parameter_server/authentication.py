"""Proof that both ends of a connection belong to the same job, before either sends anything else.

The caller sends 32 random bytes; the listener answers with 32 of its own and its proof; the caller
sends its proof. A proof is an HMAC-SHA256, by the job's key, of the role that gives it, the address
that was called and both random numbers: it is of no use for another connection, in the other
direction or at another address. What follows is neither encrypted nor signed, so that it costs
nothing; a party that can read or change the packets of others is not kept out.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import struct
import threading
from typing import Callable

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
