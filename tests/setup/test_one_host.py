"""A job whose ranks are all on this host is closed to other hosts and other users."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from runtime import loopback
from runtime.loopback import loopback_variables
from tests.support.attacker import NOBODY
from tests.support.launch import ROOT
from tests.support.stranger import AS_ROOT, answer_to_a_stranger

# Prints where a socket listens that asks for an address, and whether it hears its own process.
LISTEN = """\
import socket, sys
kind = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(kind) as listener, socket.socket(kind) as caller:
    listener.bind((sys.argv[1], 0))
    listener.listen()
    address = listener.getsockname()
    caller.settimeout(0.5)
    print(address[0], "is deaf" if caller.connect_ex(address) else "hears")
"""
# Listens, and accepts once when it is told to; prints the port of the caller, or the error.
ACCEPT = """\
import socket, sys
kind = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 0), family=kind) as listener:
    listener.setblocking(sys.argv[2] == "waits")
    print(listener.getsockname()[1], flush=True)
    sys.stdin.readline()
    try:
        connection, caller = listener.accept()
    except OSError as error:
        print(type(error).__name__)
    else:
        print(caller[1] if connection.recv(9) == b"own" else "another's bytes")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler, built = shutil.which("c++"), tmp_path_factory.mktemp("library") / "loopback.so"
    if compiler is None:
        pytest.skip("needs a compiler")
    options = "-x c -Wall -Wextra -Werror -O2 -shared -fPIC -o".split()
    source = ROOT / "setup-utils/loopback.c"
    subprocess.run([compiler, *options, built, source], check=True)
    return built


def python(library: Path, code: str, *words: str, name: str = "python") -> str:
    """Return what a program of this name prints that has the library."""
    return subprocess.check_output(
        [name, "-c", code, *words], executable=sys.executable, text=True, timeout=60,
        env={"LD_PRELOAD": str(library)}, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.thorough
def test_the_library_binds_to_the_loopback(library: Path) -> None:
    # No host has 192.0.2.1.
    for name, asked, found in (
        ("python", "0.0.0.0", "127.0.0.1 hears"), ("python", "::", "::1 hears"),
        ("python", "127.0.0.9", "127.0.0.9 hears"), ("python", "192.0.2.1", "127.0.0.1 hears"),
        ("mpirun", "0.0.0.0", "127.0.0.1 is deaf"), ("mpirun", "::", "::1 is deaf"),
        ("mpirun", "127.0.0.1", "127.0.0.1 hears"),
    ):  # fmt: skip
        assert python(library, LISTEN, asked, name=name) == f"{found}\n"
    code = (
        "import socket; one = socket.socket(type=socket.SOCK_DGRAM); one.bind(('', 0)); "
        "other = socket.socket(socket.AF_UNIX); other.bind('\\0a name of this test'); "
        "print(one.getsockname()[0], other.getsockname())"
    )
    assert python(library, code) == "0.0.0.0 b'\\x00a name of this test'\n"


def call(host: str, port: int, closes: str) -> socket.socket:
    """Connect as another user, or as any user that closes or resets the connection at once."""
    # Other users may not be able to load the codec that sockets want.
    "a".encode("idna")
    os.seteuid(NOBODY if closes == "kept" else os.getuid())
    try:
        connection = socket.create_connection((host, port))
    finally:
        os.seteuid(os.getuid())
    connection.sendall(b"not own")
    if closes == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if closes != "kept":
        connection.close()
    return connection


def accept(library: Path, address: str, blocks: str, strangers=(), own=""):
    """Let strangers and this process call a listener.

    Return the port of its caller and of this process, and its warnings.
    """
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with ExitStack() as stack:
        listener = subprocess.Popen(
            [sys.executable, "-c", ACCEPT, address, blocks], text=True,
            env={**os.environ, "LD_PRELOAD": str(library)}, **pipes,
        )  # fmt: skip
        port = int(listener.stdout.readline())
        for host, closes in strangers:
            stack.enter_context(call(host, port, closes))
        own_port = []
        if own:
            caller = stack.enter_context(socket.create_connection((own, port)))
            caller.sendall(b"own")
            own_port = [str(caller.getsockname()[1])]
        said, errors = listener.communicate("\n", timeout=60)
    return [*said.split("\n")[:-1], *own_port], errors.splitlines()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("listens", "caller", "blocks", "closes"),
    [
        pytest.param("::1", "::1", "waits", "kept", marks=AS_ROOT),
        ("127.0.0.1", "::ffff:127.0.0.1", "waits", "closed"),
        ("::1", "::1", "polls", "reset"),
    ],
)
def test_accept_returns_connections_of_this_user(library, listens, caller, blocks, closes) -> None:
    strangers = [(caller, closes)] * 3
    said, errors = accept(library, listens, blocks, strangers=strangers, own=caller)
    assert int(said[0]) == int(said[1])
    warning = "warning: a connection of another user of this host was closed; {} so far"
    assert errors == [warning.format(1), warning.format(2)]


@pytest.mark.thorough
def test_accept_does_not_wait_forever_for_this_user(library: Path) -> None:
    def end(blocks: str) -> float:
        began, closed = time.monotonic(), [("127.0.0.1", "closed")]
        said, _ = accept(library, "127.0.0.1", blocks, strangers=closed)
        assert said == ["ConnectionAbortedError"]
        return time.monotonic() - began

    with ThreadPoolExecutor() as pool:
        assert min(pool.map(end, ("waits", "polls"))) > 4
    assert accept(library, "127.0.0.1", "polls")[0] == ["BlockingIOError"]


@AS_ROOT
@pytest.mark.parametrize("is_built", [True, False])
def test_a_server_in_python_hears_this_user_only(library, monkeypatch, is_built: bool) -> None:
    monkeypatch.setattr(loopback, "_LIBRARY", library if is_built else Path("missing"))
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        loopback.hear_this_user(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert (answer_to_a_stranger(server.server_port) == b"") == is_built
        with pytest.raises(HTTPError, match="501") as raised:
            urlopen(f"http://127.0.0.1:{server.server_port}")
        raised.value.close()
        server.shutdown()
    with HTTPServer(("", 0), BaseHTTPRequestHandler) as server:
        loopback.hear_this_user(server)
        assert "verify_request" not in vars(server)


@pytest.mark.parametrize("folder", ["two words", "one"])
def test_programs_get_the_library_beside_those_of_the_user(
    library, folder, tmp_path, monkeypatch, capsys
) -> None:
    """A blank divides the names of libraries, so that the first is found by its folder."""
    place = tmp_path / folder / "loopback.so"
    monkeypatch.setattr(loopback, "_LIBRARY", place)
    monkeypatch.setenv("LD_PRELOAD", "libc.so.6")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    assert loopback_variables() == {}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ") and "'make env'" in line
    place.parent.mkdir()
    shutil.copy(library, place)
    variables = loopback_variables()
    name = "loopback.so" if " " in str(place) else str(place)
    assert variables["LD_PRELOAD"] == f"{name}:libc.so.6"
    command = [sys.executable, "-c", LISTEN, "0.0.0.0"]
    said = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == ("127.0.0.1 hears\n", "")
