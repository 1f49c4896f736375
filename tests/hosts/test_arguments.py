"""What every user of two hosts can read of a job: arguments of processes, and no key or value."""

from __future__ import annotations

import base64
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.hosts import TwoHosts

ROOT = Path(__file__).resolve().parents[2]
NAMES = "host1:1,host2:1"
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "Hx7c0a1f9e", "WANDB_API_KEY": "Wq2b8d3c55", "MXNET_KEPT": "Mz9e4f6071"
}  # fmt: skip
SHOW = 'echo "$(hostname) $MXNET_KEPT $WANDB_API_KEY"; sleep 1'
SERVERS = (
    "parallel.launch -n 2 -s 1 -H hosts -i eth0 --launcher ssh -- python classify.py --kv-store "
    "dist_async --dataset synthetic --image-size 16 --num-images 64 --batch-size 16 --epochs 1"
).split()
WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


@contextmanager
def arguments_seen() -> Iterator[set[bytes]]:
    """Read the arguments of all processes but this one, again and again within the context."""
    seen: set[bytes] = set()
    is_over = threading.Event()

    def look() -> None:
        own = str(os.getpid())
        while not is_over.wait(0.005):
            for name in filter(str.isdecimal, os.listdir("/proc")):
                if name != own:
                    with suppress(OSError):
                        seen.add(Path("/proc", name, "cmdline").read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def objects(text: bytes) -> list[bytes]:
    """Return the objects of Horovod that a text has in base64, each as it is pickled."""
    words = (word.rstrip(b"=") for word in re.findall(rb"[A-Za-z0-9+/]{80,}={0,2}", text))
    decoded = (base64.b64decode(word[: len(word) - (len(word) % 4 == 1)] + b"==") for word in words)
    return [one for one in decoded if b"horovod" in one]


@pytest.mark.parametrize(
    ("words", "process"),
    [
        (("horovodrun", "--mpi", "-np", "2", "-H", NAMES, "sh", "-c", SHOW), b"orted"),
        (("horovodrun", "--gloo", "-np", "2", "-H", NAMES, "sh", "-c", SHOW), b"remote-guard"),
        (("python", "-m", *SERVERS), b"parallel.launch.guard"),
        (("python", "-m", "parallel.check", "-H", NAMES), b"parallel.check.probe"),
    ],
    ids=["mpi", "gloo", "launch", "check"],
)
def test_no_argument_has_a_key_or_a_value(
    two: TwoHosts, project: Path, tmp_path: Path, words: tuple[str, ...], process: bytes
) -> None:
    (project / "hosts").write_text("host1\nhost2\n")
    is_servers = "parallel.launch" in words
    own = {"VIRTUAL_ENV": sys.prefix, "OMP_NUM_THREADS": "1", **SECRETS}
    if is_servers:
        words = (*words, "--models-root", str(tmp_path))
    else:
        own["SEND_VARIABLES"] = "WANDB_API_KEY"
    path = (ROOT / "setup-utils/launchers", Path(sys.prefix) / "bin")
    with arguments_seen() as seen:
        said = two.run(*words, folder=project if is_servers else ROOT, path=path, **own)
    if SHOW in words:
        for host in two.all:
            assert f"{host.name} Mz9e4f6071 Wq2b8d3c55\n" in said.stdout, said
    assert "Traceback" not in said.stderr and (said.returncode == 0 or "check" in words[2])
    assert all(any(word in one for one in seen) for word in (b"sshd", process))
    secrets = [secret.encode() for secret in SECRETS.values()]
    assert [one for one in seen if objects(one) or any(word in one for word in secrets)] == []
