import errno
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from parallel.parameter_server import authentication
from parallel.parameter_server.authentication import Admission, Refused, call

KEY, OTHER = b"the key of the job", b"another key"


class Door(socket.socket):
    """A listener that admits the processes of a job; at first it has no file descriptors left."""

    def __init__(self) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen(1000)
        self.address, self.failures = self.getsockname(), 3
        self.admitted: queue.Queue[socket.socket] = queue.Queue()
        Admission(self, KEY, self.admitted.put).start()

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def impostor():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def start(answer: Callable[[socket.socket], None]) -> tuple[str, int]:
            def run() -> None:
                # The caller may leave before it has the answer.
                with listener.accept()[0] as connection, suppress(OSError):
                    answer(connection)

            threading.Thread(target=run, daemon=True).start()
            return listener.getsockname()

        yield start


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other end has closed it; what has arrived before is dropped."""
    connection.settimeout(10)
    with suppress(ConnectionResetError):
        while connection.recv(1000):
            pass
    return True


def test_processes_of_the_job_are_admitted_and_what_they_send_is_not_touched(door: Door) -> None:
    with ThreadPoolExecutor(50) as pool:
        called = list(pool.map(lambda _: call(door.address, KEY), range(50)))
    admitted = {one.getpeername(): one for one in (door.admitted.get(timeout=10) for _ in called)}
    assert len(admitted) == 50 and door.failures == 0
    for connection in called:
        other = admitted[connection.getsockname()]
        with connection, other:
            connection.sendall(b"the first bytes")
            other.setblocking(True)
            assert other.recv(100) == b"the first bytes"
            other.sendall(b"the answer")
            assert connection.recv(100) == b"the answer"


@pytest.mark.parametrize("proof", ["another key", "the listener's own", 0, 31])
def test_a_caller_without_the_right_proof_is_refused(proof, door: Door) -> None:
    with socket.create_connection(door.address) as connection:
        connection.sendall(bytes(proof if isinstance(proof, int) else 32))
        if isinstance(proof, int):
            connection.shutdown(socket.SHUT_WR)
        else:
            answer = connection.recv(64, socket.MSG_WAITALL)
            nonces = bytes(32) + answer[:32]
            other = authentication.proof(OTHER, b"caller", door.address, nonces)
            connection.sendall(other if proof == "another key" else answer[32:])
        assert is_closed(connection)
    with pytest.raises(Refused, match="another proof"):
        call(door.address, OTHER)
    assert door.admitted.empty()


def test_parts_of_a_message_are_put_together_and_a_proof_cannot_be_used_again(door: Door) -> None:
    with socket.create_connection(door.address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(32):
            connection.sendall(b"\0")
            time.sleep(0.001)
        nonces = bytes(32) + connection.recv(64, socket.MSG_WAITALL)[:32]
        right = authentication.proof(KEY, b"caller", door.address, nonces)
        connection.sendall(right[:5])
        time.sleep(0.01)
        connection.sendall(right[5:])
        door.admitted.get(timeout=10).close()
    with socket.create_connection(door.address) as connection:
        connection.sendall(bytes(32) + right)
        assert is_closed(connection)
    assert door.admitted.empty()


def test_silent_callers_take_no_files_and_are_closed_after_a_time(door, monkeypatch, caplog):
    silent = [socket.create_connection(door.address, 10) for _ in range(300)]
    with call(door.address, KEY):
        door.admitted.get(timeout=10).close()
    # At most 256 are waited for, those that came last, the call among them.
    assert all(is_closed(connection) for connection in silent[:45])
    silent[45].settimeout(0.2)
    with pytest.raises(TimeoutError):
        silent[45].recv(1)
    for connection in silent:
        connection.close()
    caplog.clear()
    monkeypatch.setattr(authentication, "SECONDS", 0.3)
    late = Door()
    with socket.create_connection(late.address) as connection:
        port = connection.getsockname()[1]
        assert is_closed(connection)
    refused = f"refused a connection from 127.0.0.1:{port}, no process of this job:"
    assert f"{refused} it gives no proof; 1 so far" in caplog.text


@pytest.mark.parametrize(
    "answer", [b"", bytes(40), bytes(range(64)), None], ids=["nothing", "half", "random", "an echo"]
)
def test_an_impostor_is_refused(answer, impostor) -> None:
    def reply(connection: socket.socket) -> None:
        own = connection.recv(32, socket.MSG_WAITALL)
        connection.sendall(2 * own if answer is None else answer)

    with pytest.raises((Refused, ConnectionResetError)):
        call(impostor(reply), KEY)


def test_an_impostor_that_says_little_at_a_time_is_left(impostor) -> None:
    def drip(connection: socket.socket) -> None:
        for _ in range(60):
            time.sleep(0.1)
            connection.sendall(b"\0")

    start = time.monotonic()
    with pytest.raises(OSError):
        call(impostor(drip), KEY, seconds=0.5)
    assert time.monotonic() - start < 3


def test_an_impostor_cannot_pass_on_the_proof_of_another_address(door: Door, impostor) -> None:
    """The caller has called the impostor, and the listener would see a process of the job."""

    def relay(connection: socket.socket) -> None:
        with socket.create_connection(door.address) as onward:
            onward.sendall(connection.recv(32, socket.MSG_WAITALL))
            connection.sendall(onward.recv(64, socket.MSG_WAITALL))
            onward.sendall(connection.recv(32, socket.MSG_WAITALL))

    with pytest.raises(Refused, match="another proof"):
        call(impostor(relay), KEY)
    time.sleep(0.1)
    assert door.admitted.empty()
