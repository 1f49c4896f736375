"""How run.sh ends, and when it starts its ranks again."""

from __future__ import annotations

import re

import pytest

from tests.setup.conftest import Sandbox

pytestmark = pytest.mark.thorough

CRASHES = """\
echo "mpirun $*" >>"$CALLS"
read -r status rest <statuses
echo "$rest" >statuses
exit "$status"
"""
# Hosts are gone after the first start.
SSH = '[[ $(<statuses) == "$STATUSES" || $* != *\\ ${GONE:-nobody}\\ true ]] || exit 255\n'


@pytest.fixture
def crashing(sandbox: Sandbox) -> Sandbox:
    sandbox.stub("orterun", CRASHES)
    sandbox.stub("sleep", 'echo "sleep $1" >>"$CALLS"\n')
    sandbox.stub("ssh", SSH)
    return sandbox


def run(sandbox: Sandbox, ends: str, *options: str, status: int, **variables: str) -> str:
    """Run with an mpirun that ends with these statuses, to this one; returns the errors."""
    (sandbox.folder / "statuses").write_text(ends)
    words = ("run.sh", *options)
    return sandbox.run(*words, status=status, STATUSES=ends, **variables).stderr


def test_run_starts_again_after_a_crash(crashing: Sandbox) -> None:
    run(crashing, "1 137 75 0", "--restarts", "5", "--lr", "0.1", status=0)
    assert crashing.calls_with("sleep") == ["sleep 5", "sleep 10", "sleep 20"]
    starts = crashing.calls_with("mpirun")
    assert len(starts) == 4 and len(set(starts)) == 1
    assert starts[0].endswith("/config.sh --lr 0.1")
    run(crashing, "1 1 9 9 9", "--restarts=2", status=9)
    assert len(crashing.calls_with("mpirun")) == 3
    run(crashing, "9 0", status=9)


def test_run_does_not_restart_after_a_users_error_or_a_signal(crashing: Sandbox) -> None:
    for end in (0, 2, 129, 130, 143):
        run(crashing, f"{end} 0", "--restarts", "3", status=end)
        assert len(crashing.calls.splitlines()) == 1
    for wrong in ("", "x", "-1"):
        crashing.refusal("run.sh", "--restarts", wrong)
        assert crashing.calls == ""


def test_run_reads_the_hostfile_again(crashing: Sandbox) -> None:
    (crashing.folder / "hosts").write_text("ip1 slots=2\nip2 slots=2\n")
    crashing.stub("sleep", "echo ip1 slots=2 >hosts\n")
    run(crashing, "1 0", "--restarts", "1", status=0, HOSTFILE="hosts")
    assert re.findall(r" -np (\S+)", crashing.calls) == ["4", "2"]


@pytest.mark.parametrize(
    ("gone", "status", "line", "calls"),
    [
        ("ip2", 1, "run.sh: ip2 cannot be reached by ssh; the run go",
         ["-np 6 -H ip1:1,ip2:2,ip3:3", "sleep 5", "-np 4 -H ip1:1,ip3:3", "sleep 10",
          "-np 4 -H ip1:1,ip3:3"]),
        # The network may come back.
        ("*", 75, "run.sh: host ip", ["-np 6 -H ip1:1,ip2:2,ip3:3", "sleep 5", "sleep 10"]),
    ],
)  # fmt: skip
def test_a_restart_goes_on_without_hosts_that_do_not_answer(
    crashing: Sandbox, gone: str, status: int, line: str, calls: list[str]
) -> None:
    hosts = {"HOSTS": "ip1:1,ip2:2,ip3:3", "GONE": gone}
    said = run(crashing, "1 1 1", "--restarts", "2", status=status, **hosts)
    assert re.findall("-np .* ip[^ ]+|sleep [0-9]+", crashing.calls) == calls
    assert said.count(line) == 2


# bash does not get over a signal while it reads <(:): that is read before there are traps.
PAUSE = "exec {never}<> <(:)\npause() { read -t $1 -u $never || :; }\n"
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
            + trap("USR2", "exit 1") + LAST,
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
    result = sandbox.run("run.sh", "--restarts", "3", status=None)
    assert ends.get(result.returncode) == " ".join(sandbox.calls.split()), result.stderr
