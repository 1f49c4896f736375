"""How run.sh ends, and when it starts its ranks again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.setup.conftest import SILENT

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox

pytestmark = pytest.mark.thorough

SLEEP = '#!/usr/bin/env bash\necho "sleep $1" >>"$CALLS"\n'
CRASHES = """\
#!/usr/bin/env bash
echo "mpirun $*" >>"$CALLS"
read -r status rest <statuses
echo "$rest" >statuses
exit "$status"
"""


def run_with_ends(sandbox: Sandbox, ends: str, *options: str) -> tuple[int, list[str]]:
    """Run with an mpirun that ends with these statuses; return the last and the calls."""
    sandbox.stub("orterun", CRASHES)
    sandbox.stub("sleep", SLEEP)
    (sandbox.folder / "statuses").write_text(ends + "\n")
    result = sandbox.run("bash", "run.sh", *options)
    return result.returncode, sandbox.calls.splitlines()


def test_run_starts_again_after_a_crash(sandbox: Sandbox) -> None:
    status, calls = run_with_ends(sandbox, "1 137 75 0", "--restarts", "5", "--lr", "0.1")
    starts = [call for call in calls if call.startswith("mpirun")]
    waits = [call for call in calls if call.startswith("sleep")]
    assert (status, waits) == (0, ["sleep 5", "sleep 10", "sleep 20"])
    assert len(starts) == 4 and len(set(starts)) == 1
    assert starts[0].endswith("/config.sh --lr 0.1")
    status, calls = run_with_ends(sandbox, "1 1 9 9 9", "--restarts=2")
    assert (status, sum(call.startswith("mpirun") for call in calls)) == (9, 3)
    assert run_with_ends(sandbox, "9 0")[0] == 9


def test_run_does_not_restart_after_a_users_error_or_a_signal(sandbox: Sandbox) -> None:
    for end in (0, 2, 129, 130, 143):
        status, calls = run_with_ends(sandbox, f"{end} 0", "--restarts", "3")
        assert (status, len(calls)) == (end, 1)
    for wrong in ("", "x", "-1"):
        assert run_with_ends(sandbox, "0", "--restarts", wrong) == (2, [])


def test_run_reads_the_hostfile_again(sandbox: Sandbox) -> None:
    (sandbox.folder / "hosts").write_text("ip1 slots=2\nip2 slots=2\n")
    sandbox.stub(
        "orterun",
        '#!/usr/bin/env bash\necho "mpirun $*" >>"$CALLS"\n'
        "[[ $* == *'-np 4 '* ]] || exit 0\necho ip1 slots=2 >hosts\nexit 1\n",
    )
    sandbox.stub("sleep", SILENT)
    result = sandbox.run("bash", "run.sh", "--restarts", "1", HOSTFILE="hosts")
    assert result.returncode == 0, result.stderr
    assert re.findall(r" -np (\S+)", sandbox.calls) == ["4", "2"]


MPIRUN_THAT_FAILS = """\
#!/usr/bin/env bash
echo "mpirun $*" >>"$CALLS"
touch failed
exit 1
"""
# Hosts are gone after the first start.
SSH = """\
#!/usr/bin/env bash
[[ ! -e failed || $* != *\\ ${GONE:-nobody}\\ true ]] || exit 255
"""


@pytest.mark.parametrize(
    ("gone", "status", "calls"),
    [
        ("ip2", 1, ["-np 6 -H ip1:1,ip2:2,ip3:3", "sleep 5", "-np 4 -H ip1:1,ip3:3", "sleep 10",
                    "-np 4 -H ip1:1,ip3:3"]),
        # The network may come back.
        ("*", 75, ["-np 6 -H ip1:1,ip2:2,ip3:3", "sleep 5", "sleep 10"]),
    ],
)  # fmt: skip
def test_a_restart_goes_on_without_hosts_that_do_not_answer(sandbox, gone, status, calls) -> None:
    sandbox.stub("orterun", MPIRUN_THAT_FAILS)
    sandbox.stub("sleep", SLEEP)
    sandbox.stub("ssh", SSH)
    hosts = {"HOSTS": "ip1:1,ip2:2,ip3:3", "GONE": gone}
    result = sandbox.run("bash", "run.sh", "--restarts", "2", **hosts)
    assert re.findall("-np .* ip[^ ]+|sleep [0-9]+", sandbox.calls) == calls
    assert result.returncode == status
    line = "run.sh: host ip" if gone == "*" else "run.sh: ip2 cannot be reached by ssh; the run go"
    assert result.stderr.count(line) == 2


PAUSE = "#!/usr/bin/env bash\npause() { read -t $1 <> <(:) || :; }\n"
LAST = "for i in {1..200}; do pause 0.05; done\n"


def trap(signals: str, then: str = "") -> str:
    """Lines that note each of the signals in ``calls``."""
    return "".join(f"trap 'echo {one} >>\"$CALLS\"; {then}' {one}\n" for one in signals.split())


@pytest.mark.parametrize(
    ("stub", "ends"),
    [
        # The stub is mpirun and its ranks: on USR1 or USR2, it ends after its update.
        (trap("USR1 USR2", "exit 1") + f"kill -INT $PPID\n{LAST}", {130: "USR1"}),
        (trap("USR1 USR2", "exit 1") + f"kill -TERM $PPID\n{LAST}", {143: "USR2"}),
        (trap("USR1 USR2", "exit 1") + f"kill -HUP $PPID\n{LAST}", {129: "USR2"}),
        # mpirun forwards to ranks that it has started, and to no others: the signal is repeated.
        (
            "trap 'echo lost >>\"$CALLS\"' USR2\nkill -TERM $PPID\npause 1\n"
            + trap("USR2", "exit 1")
            + LAST,
            {143: "lost USR2"},
        ),
        # ``timeout`` sends a signal to run.sh and to its group; bash may see either first.
        (
            trap("USR1 USR2 TERM")
            + "kill -INT $PPID; kill -TERM $PPID\nfor i in {1..10}; do pause 0.05; done\nexit 1\n",
            {130: "USR1", 143: "USR2"},
        ),
        # A later signal ends mpirun at once.
        (
            trap("TERM") + trap("USR1", "pause 2.1; kill -INT $PPID; pause 0.5; exit 1")
            + f"kill -INT $PPID\n{LAST}",
            {130: "USR1 TERM"},
        ),
    ],
    ids=["INT", "TERM", "HUP", "before the ranks", "two at once", "later"],
)  # fmt: skip
def test_run_forwards_signals(sandbox: Sandbox, stub: str, ends: dict[int, str]) -> None:
    sandbox.stub("orterun", PAUSE + stub)
    result = sandbox.run("bash", "run.sh", "--restarts", "3")
    assert ends.get(result.returncode) == " ".join(sandbox.calls.split()), result.stderr
