"""Servers of ssh on this machine that do not let a launcher in, each by another name.

A program ``ssh`` in a folder for ``PATH`` is the real one with a configuration in which the names
stand for the servers. Nothing of this machine's own configuration is read or changed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Optional

import psutil

SILENT, CLOSES, BANNER, DROPS = "silent", "closes", "banner", "drops"
"""Says nothing, closes at once, says nothing after its banner, and drops packets."""
WRONG_NAME = "no-such-name.invalid"
PASSWORD, UNKNOWN_KEY, NO_COMMAND, WORKS = "password", "unknown-key", "no-command", "works"
"""Of a real server: wants a password; has a new key; starts no command; lets everybody in."""
FAKE = (SILENT, CLOSES, BANNER, DROPS, WRONG_NAME)
REAL = (PASSWORD, UNKNOWN_KEY, NO_COMMAND)
_BANNER = b"SSH-2.0-OpenSSH_9.2\r\n"
_START_SECONDS = 10
_SERVER = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/{key}
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
{further}
"""
_CLIENT = """\
Host {name}
  HostName {address}
  Port {port}
  HostKeyAlias {name}
Host *
  IdentityFile {folder}/user
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""
_FURTHER = {
    PASSWORD: "PubkeyAuthentication no\nPasswordAuthentication yes",
    UNKNOWN_KEY: "",
    NO_COMMAND: "ForceCommand sleep 1000",
    WORKS: "",
}


def missing() -> Optional[str]:
    """Why real servers cannot be started here; None if they can."""
    if os.geteuid() != 0:
        return "sshd needs root"
    absent = [name for name in ("ssh", "ssh-keygen", "sshd") if _find(name) is None]
    return f"needs {', '.join(absent)}" if absent else None


def _find(program: str) -> Optional[str]:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/usr/bin")


class SshServer:
    """One server, which a context starts."""

    def __init__(self, folder: Path, name: str) -> None:
        """Name it; nothing starts yet.

        Args:
            folder: an empty one, for keys and the program ``ssh``.
            name: the server's kind, by which ssh reaches it.
        """
        self.folder, self.name = folder, name
        self._sockets: list[socket.socket] = []
        self._server: Optional[subprocess.Popen[bytes]] = None

    def __enter__(self) -> SshServer:
        """Start the server, and write the program and its configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        port = 22
        if self.name in _FURTHER:
            port = self._start_real()
        elif self.name != WRONG_NAME:
            port = self._start_fake()
        config = self.folder / "config"
        address = self.name if self.name == WRONG_NAME else "127.0.0.1"
        config.write_text(
            _CLIENT.format(name=self.name, address=address, port=port, folder=self.folder)
        )
        program = self.folder / "ssh"
        program.write_text(f'#!/bin/sh\nexec {_find("ssh")} -F "{config}" "$@"\n')
        program.chmod(0o755)
        return self

    def _start_fake(self) -> int:
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen(0 if self.name == DROPS else 64)
        self._sockets.append(server)
        port: int = server.getsockname()[1]
        if self.name == DROPS:
            # With its queue full, the system drops the packets of further connections.
            for _ in range(2):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
                self._sockets.append(client)
            time.sleep(0.2)
        else:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return port

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection = server.accept()[0]
            except OSError:
                return
            if self.name == CLOSES:
                connection.close()
                continue
            if self.name == BANNER:
                connection.sendall(_BANNER)
            self._sockets.append(connection)

    def _start_real(self) -> int:
        for key in ("user", "host", "other"):
            words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key)
            subprocess.run(words, check=True)
        known = "other" if self.name == UNKNOWN_KEY else "host"
        kind, key, *_ = (self.folder / f"{known}.pub").read_text().split()
        lines = "" if self.name == UNKNOWN_KEY else f"{self.name} {kind} {key}\n"
        (self.folder / "known_hosts").write_text(lines)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        config = self.folder / "sshd_config"
        further = _FURTHER[self.name]
        config.write_text(
            _SERVER.format(port=port, folder=self.folder, key="host", further=further)
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        self._server = subprocess.Popen(
            [str(_find("sshd")), "-D", "-e", "-f", config], stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + _START_SECONDS
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < end and self._server.poll() is None, "sshd does not start"
            time.sleep(0.05)
        return port

    def left(self) -> list[str]:
        """Return the processes of launchers and clients that still use this server's folder."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            words = " ".join(process.info["cmdline"] or ())
            path = (process.info["environ"] or {}).get("PATH", "")
            if str(self.folder) in words or str(self.folder) in path.split(":"):
                if self._server is None or process.pid != self._server.pid:
                    found.append(words)
        return found

    def __exit__(self, *_: object) -> None:
        """End it, with all of its connections."""
        for one in self._sockets:
            one.close()
        if self._server is not None:
            for child in psutil.Process(self._server.pid).children(recursive=True):
                os.kill(child.pid, signal.SIGKILL)
            self._server.kill()
            self._server.wait()
