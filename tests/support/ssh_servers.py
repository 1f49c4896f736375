"""Servers on this machine that do not let ssh in, each by another name.

A program ``ssh`` in a folder for ``PATH`` is the real one with a configuration in which the names
stand for the servers. Nothing of this machine's own configuration is read or changed.
"""

from __future__ import annotations

import shutil
import socket
import threading
import time
from pathlib import Path

import psutil

SILENT, CLOSES, BANNER, DROPS = "silent", "closes", "banner", "drops"
"""Says nothing, closes at once, says nothing after its banner, and drops packets."""
WRONG_NAME = "no-such-name.invalid"
_BANNER = b"SSH-2.0-OpenSSH_9.2\r\n"
_CLIENT = """\
Host {name}
  HostName {address}
  Port {port}
  HostKeyAlias {name}
Host *
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


class SshServer:
    """One server, which a context starts."""

    def __init__(self, folder: Path, name: str) -> None:
        """Name it; nothing starts yet.

        Args:
            folder: an empty one, for the program ``ssh``.
            name: the server's kind, by which ssh reaches it.
        """
        self.folder, self.name = folder, name
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> SshServer:
        """Start the server, and write the program and its configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        port = 22
        if self.name != WRONG_NAME:
            port = self._start_fake()
        config = self.folder / "config"
        address = self.name if self.name == WRONG_NAME else "127.0.0.1"
        config.write_text(
            _CLIENT.format(name=self.name, address=address, port=port, folder=self.folder)
        )
        program, ssh = self.folder / "ssh", shutil.which("ssh")
        program.write_text(f'#!/bin/sh\nexec {ssh} -F "{config}" "$@"\n')
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

    def left(self) -> list[str]:
        """Return the processes of launchers and clients that still use this server's folder."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            words = " ".join(process.info["cmdline"] or ())
            path = (process.info["environ"] or {}).get("PATH", "")
            if str(self.folder) in words or str(self.folder) in path.split(":"):
                found.append(words)
        return found

    def __exit__(self, *_: object) -> None:
        """End it, with all of its connections."""
        for one in self._sockets:
            one.close()
