"""Proof that both ends of a connection belong to the same job, before either sends anything else.

The caller sends 32 random bytes; the listener answers with 32 of its own and its proof; the caller
sends its proof. A proof is an HMAC-SHA256, by the job's key, of the role that gives it, the address
that was called and both random numbers: it is of no use for another connection, in the other
direction or at another address. What follows is neither encrypted nor signed, so that it costs
nothing; a party that can read or change the packets of others is not kept out.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import selectors
import socket
import threading
import time
from typing import Callable, Optional

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
    end = time.monotonic() + seconds
    connection = socket.create_connection(address, seconds)
    try:
        own = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(own)
        answer = _receive(connection, _NONCE_BYTES + _PROOF_BYTES, end)
        nonces = own + answer[:_NONCE_BYTES]
        expected = proof(key, _LISTENER, address, nonces)
        if not hmac.compare_digest(answer[_NONCE_BYTES:], expected):
            raise Refused("it gives another proof")
        connection.sendall(proof(key, _CALLER, address, nonces))
    except OSError:
        connection.close()
        raise
    return connection


def _receive(connection: socket.socket, size: int, end: float) -> bytes:
    received = b""
    while len(received) < size:
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(size - len(received))
        if not part:
            raise Refused("it closes the connection")
        received += part
    return received


class _Caller:
    """A connection that has been accepted and has not given its proof."""

    def __init__(self, connection: socket.socket, peer: Address) -> None:
        self.connection, self.peer = connection, peer
        self.end = time.monotonic() + SECONDS
        self._received = b""
        self._expected: Optional[bytes] = None

    def advance(self, key: bytes) -> bool:
        """Read what has arrived, and answer it; returns True after a proof.

        Raises:
            Refused: there is no proof or another one.
            OSError: the connection is broken.
        """
        # Not more: the bytes after the proof are not for this module.
        part = self.connection.recv(_NONCE_BYTES - len(self._received))
        if not part:
            raise Refused("it closes the connection")
        self._received += part
        if len(self._received) < _NONCE_BYTES:
            return False
        if self._expected is not None:
            if not hmac.compare_digest(self._received, self._expected):
                raise Refused("it gives another proof")
            return True
        own, address = secrets.token_bytes(_NONCE_BYTES), self.connection.getsockname()
        nonces = self._received + own
        # The buffer of a new connection takes these few bytes at once.
        self.connection.sendall(own + proof(key, _LISTENER, address, nonces))
        self._received, self._expected = b"", proof(key, _CALLER, address, nonces)
        return False


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
        self._selector = selectors.DefaultSelector()
        self._callers: dict[socket.socket, _Caller] = {}
        self._refused = 0

    def run(self) -> None:
        """Accept until the process ends."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            for selected, _ in self._selector.select(SECONDS if self._callers else None):
                caller = selected.data
                if caller is None:
                    self._accept()
                elif caller.connection in self._callers:
                    self._advance(caller)
            for caller in list(self._callers.values()):
                if caller.end > time.monotonic():
                    # Those after it came later.
                    break
                self._refuse(caller, "it gives no proof")

    def _accept(self) -> None:
        try:
            connection, peer = self._listener.accept()
        except OSError:
            time.sleep(_PAUSE_SECONDS)
            return
        connection.setblocking(False)
        if len(self._callers) == _MOST_CALLERS:
            self._refuse(next(iter(self._callers.values())), "there are too many without a proof")
        caller = self._callers[connection] = _Caller(connection, peer)
        self._selector.register(connection, selectors.EVENT_READ, caller)

    def _advance(self, caller: _Caller) -> None:
        try:
            is_proved = caller.advance(self._key)
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse(caller, str(error))
            return
        if is_proved:
            self._remove(caller)
            self._admit(caller.connection)

    def _refuse(self, caller: _Caller, reason: str) -> None:
        """Close a connection; log the first one, the second, the fourth and so on."""
        self._remove(caller)
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            _log.warning(
                "refused a connection from %s:%d, no process of this job: %s; %d so far",
                *(*caller.peer, reason, self._refused),
            )
        caller.connection.close()

    def _remove(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection]
