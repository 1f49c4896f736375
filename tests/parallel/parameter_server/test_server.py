import errno
import hmac
import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from parallel.parameter_server import connections
from parallel.parameter_server.connections import Admission, Refused, call
from parallel.parameter_server.messages import (
    TAIL,
    Column,
    FailureDetector,
    PusherState,
    Settings,
    SharedTable,
    Tail,
    Trace,
)
from parallel.parameter_server.server import Updater
from runtime.mxnet import mx

KEY, TABLE, MOMENTUM, DECAY = 4, 9, 0.9, 0.1
INITIAL = np.array([1.0, -2.0, 3.0], np.float32)
ONES, NAN = (1.0, 1.0, 1.0), float("nan")
FINISHED, LEFT = PusherState.FINISHED, PusherState.LEFT
OWN, OTHER = b"the key of the job", b"another key"


def table(clocks, **columns) -> SharedTable:
    made = SharedTable.empty(len(clocks))
    made.rows[:, Column.CLOCK] = clocks
    for name, values in columns.items():
        made.rows[:, Column[name]] = values
    return made


def numbers(gradient=ONES, **tail) -> np.ndarray:
    """A push of pusher 1 that a server of version 2 applies, unless it is changed."""
    whole = Tail(**{"version": 2, "lr": 0.5, "pusher": 1, **tail}).encode()
    return np.concatenate([np.array(gradient, np.float32), whole])


class Server:
    def __init__(self, version: int = 0, together: int = 1, trace: str = "") -> None:
        settings = Settings(MOMENTUM, {KEY: DECAY}, TABLE, 3, together)
        self.updater = Updater(settings, Trace(trace, "s"))
        self.stored = mx.nd.array(np.concatenate([INITIAL, Tail(version).encode()]))
        self.table = mx.nd.array(SharedTable.empty(3).rows.reshape(-1))
        self.expected = INITIAL.astype(np.float64)
        self._memory = np.zeros(3)

    @property
    def version(self) -> int:
        return Tail.decode(self.stored.asnumpy()[-TAIL:]).version

    def apply(self, pushed: np.ndarray, key: int = KEY) -> None:
        self.updater(key, mx.nd.array(pushed, dtype=pushed.dtype), self.stored)

    def push(self, pusher: int, pulled: int, staleness: int, gradient=ONES, lr=0.125) -> None:
        """Push, and expect MXNet-G's formula: the gradient is divided by staleness, no decay is."""
        self.apply(numbers(gradient, version=pulled, lr=lr, pusher=pusher))
        self.expect(np.array(gradient) / staleness, lr)

    def push_sum(self, gradients, pulled: int) -> None:
        tail = {"version": pulled, "lr": 0.125}
        rows = [numbers(one, pusher=number, **tail) for number, one in enumerate(gradients)]
        self.apply(np.sum(rows, axis=0))

    def expect(self, gradient: np.ndarray, lr: float) -> None:
        self._memory = MOMENTUM * self._memory - lr * (gradient + DECAY * self.expected)
        self.expected = self.expected + self._memory
        self.check()

    def check(self) -> None:
        np.testing.assert_allclose(self.stored.asnumpy()[:-TAIL], self.expected, atol=1e-6)

    def add(self, change: np.ndarray) -> SharedTable:
        self.updater(TABLE, mx.nd.array(change.reshape(-1)), self.table)
        return SharedTable.decode(self.table.asnumpy())

    def add_steps(self, pusher: int, steps: int = 1) -> SharedTable:
        return self.add(table(steps * np.eye(3)[pusher]).rows)

    def clear(self) -> SharedTable:
        return self.add(-SharedTable.decode(self.table.asnumpy()).rows)


def test_a_scripted_interleaving() -> None:
    """Each line: a worker that pushes and then pulls, and the staleness of its gradient."""
    server, rng = Server(), np.random.default_rng(3)
    pulled = [0, 0, 0]
    script = [(0, 1), (0, 1), (1, 3), (0, 2), (2, 5), (1, 3), (1, 1), (0, 4), (2, 4)]
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for worker, staleness in script:
        assert server.version - pulled[worker] + 1 == staleness, "the script itself"
        lr = float(np.float32(rng.uniform(0.1, 0.5)))
        server.push(worker, pulled[worker], staleness, rng.normal(size=3), lr)
        pulled[worker] = server.version
        found[worker].append(staleness)
        table = server.add_steps(worker)
        assert table.rows[worker, Column.STALENESS] == pytest.approx(np.mean(found[worker]))
        assert table.rows[worker, Column.LARGEST] == max(found[worker])
    assert table.clocks.tolist() == [4, 3, 2]
    # A cleared row begins without staleness; a change of another row keeps that of this one.
    assert not server.clear().rows.any()
    server.push(0, pulled=9, staleness=1)
    server.add_steps(1, steps=2)
    table = server.add_steps(0)
    assert table.rows[0, Column.LARGEST] == 1 and table.clocks.tolist() == [1, 2, 0]


def test_a_sum_of_pushes_is_one_update_and_not_stale() -> None:
    server = Server(together=3)
    for pulled in range(3):
        server.push_sum([[1.0, 0.0, 0.5]] * 3, pulled)
        server.expect(np.array([3.0, 0.0, 1.5]), 0.125)
        table = server.add_steps(1)
    assert server.version == 3
    assert table.rows[1, Column.STALENESS] == table.rows[1, Column.LARGEST] == 1


def test_a_run_that_goes_on_counts_from_its_version_and_writes_a_trace(tmp_path) -> None:
    first = 2**24 + 5
    server = Server(first, trace=str(tmp_path))
    server.push(2, first, staleness=1)
    server.apply(numbers(version=first + 4, pusher=0))
    server.push(1, first, staleness=2)
    assert server.version == first + 2
    lines = (tmp_path / "s").read_text().splitlines()
    assert lines == [f"4 2 {first} {first} 1", f"4 1 {first} {first + 1} 2"]


@pytest.mark.parametrize(("pushed", "reason"), [
    (numbers(version=3), "version from the future of pusher 1"),
    (numbers((1.0, NAN, 1.0)), "not finite"),
    # Its square is more than float32 holds.
    (numbers((1.0, 1e20, 1.0)), "not finite"),
    (numbers(pusher=3), "unknown pusher"),
    (numbers(pushes=0), "wrong count"),
    (numbers(lr=-0.5), "no tail"),
    (np.array([1, 1, 1, 0, 2, 0.5, 1, 0.5], np.float32), "no tail"),
    (numbers()[1:], "wrong size"),
    (numbers().astype(np.float64), "wrong size"),
])  # fmt: skip
def test_an_invalid_push_is_refused(pushed: np.ndarray, reason: str, caplog) -> None:
    server = Server()
    for version in range(2):
        server.push(0, version, staleness=1)
    server.apply(pushed)
    # Weights and version are what they were, and the momentum, which the next push shows.
    server.check()
    assert server.version == 2
    server.push(1, 2, staleness=1)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith(f": {reason}"), line
    assert server.add_steps(1).rows[1, Column.LARGEST] == 1


def test_sums_changes_and_keys_that_are_none_are_refused(caplog) -> None:
    server = Server(together=3)
    for gradients in ([[NAN, 1.0, 1.0], ONES, ONES], [ONES, ONES]):
        server.push_sum(gradients, 0)
    server.apply(numbers(), key=KEY + 1)
    server.check()
    assert server.version == 0
    server.add_steps(1)
    for change in (np.full((3, len(Column)), NAN), np.ones((2, len(Column)))):
        server.add(change)
    assert server.add_steps(1).clocks.tolist() == [0, 2, 0]
    lines = [record.getMessage() for record in caplog.records]
    assert lines[1:3] == ["refused a message: wrong count", "refused a message: unknown key"]


def test_a_flood_of_invalid_pushes_is_one_line(caplog) -> None:
    server = Server()
    for _ in range(100):
        server.apply(numbers((NAN, 1.0, 1.0), version=0))
    assert len(caplog.records) == 1


def test_the_numbers_of_a_report_and_what_is_progress() -> None:
    shown = table(
        [4, 2, 0], STALENESS=[1.5, 2.5, 0], LARGEST=[3, 7, 0], RATE=[100, 50, 0], LEAD=[2, 0, 0]
    )
    rates = {f"images_per_second/group_{number}": rate for number, rate in enumerate((100, 50, 0))}
    found = {"staleness": 2.0, "largest_staleness": 7.0, "lead": 2.0, **rates}
    assert shown.numbers("group") == found
    assert shown.progress() == table([4, 2, 0]).progress()
    finished = table([4, 2, 0], STATE=[0, FINISHED, 0])
    for other in (table([4, 3, 0]), table([4, 2, 0], PAUSES=[1, 0, 0]), finished):
        assert other.progress() != shown.progress()


@pytest.mark.parametrize("tolerates", [True, False])
def test_a_silent_pusher_is_given_up_only_with_tolerates(tolerates: bool) -> None:
    now = [0.0]
    detector = FailureDetector(3, tolerates=tolerates, clock=lambda: now[0])
    for step in range(1, 40):
        now[0] += 1
        alive = detector.alive(table([step, min(step, 3), 0], STATE=[0, 0, FINISHED]))
        # Its third step was at 3 s; 30 s later it still counts. Who has finished always does.
        assert alive.tolist() == [True, step <= 33 or not tolerates, True]


def test_a_slow_pusher_and_one_that_validates_or_saves_have_more_time() -> None:
    now = [0.0]
    detector = FailureDetector(2, tolerates=True, clock=lambda: now[0])
    for step in range(1, 21):
        now[0] = 10 * step
        assert detector.alive(table([step, min(step, 2)]))[1] == (step <= 12)
    now[0] = 0
    detector = FailureDetector(2, tolerates=True, clock=lambda: now[0])
    detector.alive(table([1, 1000]))
    # Each of its pauses counts, the third one after 60 s without a step.
    for seconds, pauses in ((20, 1), (40, 2), (60, 3), (359, 3), (361, 3)):
        now[0] = seconds
        found = detector.alive(table([seconds + 1, 1000], PAUSES=[0, pauses]))
        assert found.tolist() == [True, seconds < 360]


@pytest.mark.parametrize(("bound", "lead"), [(0, 0), (2, 2), (5, 5), (None, 6)])
def test_a_pusher_waits_until_its_lead_is_within_the_bound(bound, lead: int) -> None:
    detector = FailureDetector(3, tolerates=False)
    tables = (table([9, 1, clock], STATE=[0, FINISHED, 0]) for clock in range(3, 12))
    assert detector.wait_for_slowest(lambda: next(tables), 0, bound) == lead
    assert len(list(tables)) == 9 - (7 - lead)
    assert detector.wait_for_slowest(lambda: table([9, 0, 0], STOP=[0, 143, 0]), 0, bound=1) == 9
    for states, own, lead in (([0, FINISHED, 0], 0, 0), ([1, LEFT, 0], 2, 0), ([0, 0, 0], 2, 6)):
        read = table([5, 3, 9], STATE=states)
        assert detector.wait_for_slowest(lambda read=read: read, own, None) == lead


class Door(socket.socket):
    """A listener that admits the processes of a job; at first it has no file descriptors left."""

    def __init__(self) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen(1000)
        self.address, self.failures = self.getsockname(), 3
        self.admitted: queue.Queue[socket.socket] = queue.Queue()
        Admission(self, OWN, self.admitted.put).start()

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

        def start(answer) -> tuple[str, int]:
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
        called = list(pool.map(lambda _: call(door.address, OWN), range(50)))
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


def test_a_proof_is_an_hmac_with_the_key() -> None:
    found = connections.proof(b"key", b"caller", ("10.0.0.1", 80), b"nonces")
    assert found == hmac.new(b"key", b"caller 10.0.0.1:80 nonces", "sha256").digest()


@pytest.mark.parametrize("proof", ["another key", "the listener's own", 0, 31])
def test_a_caller_without_the_right_proof_is_refused(proof, door: Door) -> None:
    with socket.create_connection(door.address) as connection:
        connection.sendall(bytes(proof if isinstance(proof, int) else 32))
        if isinstance(proof, int):
            connection.shutdown(socket.SHUT_WR)
        else:
            answer = connection.recv(64, socket.MSG_WAITALL)
            nonces = bytes(32) + answer[:32]
            other = connections.proof(OTHER, b"caller", door.address, nonces)
            connection.sendall(other if proof == "another key" else answer[32:])
        assert is_closed(connection)
    with pytest.raises(Refused, match="another one"):
        call(door.address, OTHER)
    assert door.admitted.empty()


def test_parts_of_a_message_are_put_together_and_a_proof_cannot_be_used_again(door: Door) -> None:
    with socket.create_connection(door.address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(32):
            connection.sendall(b"\0")
            time.sleep(0.001)
        nonces = bytes(32) + connection.recv(64, socket.MSG_WAITALL)[:32]
        right = connections.proof(OWN, b"caller", door.address, nonces)
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
    with call(door.address, OWN):
        door.admitted.get(timeout=10).close()
    # At most 256 are waited for, those that came last, the call among them.
    assert all(is_closed(connection) for connection in silent[:45])
    silent[45].settimeout(0.2)
    with pytest.raises(socket.timeout):
        silent[45].recv(1)
    for connection in silent:
        connection.close()
    caplog.clear()
    monkeypatch.setattr(connections, "SECONDS", 0.3)
    late = Door()
    with socket.create_connection(late.address) as connection:
        port = connection.getsockname()[1]
        assert is_closed(connection)
    refused = f"refused a connection from 127.0.0.1:{port}, no process of this job"
    assert refused in caplog.text


@pytest.mark.parametrize(
    "parts", [[], [bytes(40)], [bytes(range(64))], None, [b"\0"] * 60],
    ids=["nothing", "half", "random", "an echo", "little at a time"],
)  # fmt: skip
def test_an_impostor_is_refused_in_time(parts, impostor) -> None:
    def reply(connection: socket.socket) -> None:
        own = connection.recv(32, socket.MSG_WAITALL)
        for part in [2 * own] if parts is None else parts:
            connection.sendall(part)
            time.sleep(0.1 if len(part) == 1 else 0)

    start = time.monotonic()
    with pytest.raises(ConnectionError):
        call(impostor(reply), OWN, seconds=0.5)
    assert time.monotonic() - start < 3


def test_an_impostor_cannot_pass_on_the_proof_of_another_address(door: Door, impostor) -> None:
    """The caller has called the impostor, and the listener would see a process of the job."""

    def relay(connection: socket.socket) -> None:
        with socket.create_connection(door.address) as onward:
            onward.sendall(connection.recv(32, socket.MSG_WAITALL))
            connection.sendall(onward.recv(64, socket.MSG_WAITALL))
            onward.sendall(connection.recv(32, socket.MSG_WAITALL))

    with pytest.raises(Refused, match="another one"):
        call(impostor(relay), OWN)
    time.sleep(0.1)
    assert door.admitted.empty()
