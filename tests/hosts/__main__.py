"""``python -m tests.hosts COMMAND...``: run a command on the first of two hosts, see ``TwoHosts``.

The hosts are named host1 and host2, on the interface eth0 and on eth1.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.hosts import two_hosts
from tests.hosts.two_hosts import TwoHosts


def main() -> int:
    """Run it in this folder with this process's variables; returns its status."""
    why_not = two_hosts.missing()
    if why_not is not None or not sys.argv[1:]:
        print(f"error: {why_not or 'no command'}", file=sys.stderr)
        return 2
    # Otherwise the hosts would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with TemporaryDirectory() as folder, TwoHosts(Path(folder, "hosts")) as two:
        command = two.first.inside("sh", "-c", 'cd "$0" && exec "$@"', Path.cwd(), *sys.argv[1:])
        variables = {**os.environ, "HOME": str(two.folder / "home")}
        return subprocess.run(command, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
