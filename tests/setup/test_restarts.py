"""How run.sh ends, and when it starts its ranks again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.setup.conftest import LAUNCHER, SILENT

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox


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
    sandbox.stub("sleep", '#!/usr/bin/env bash\necho "sleep $1" >>"$CALLS"\n')
    (sandbox.folder / "statuses").write_text(ends + "\n")
    result = sandbox.run("bash", "run.sh", *options)
    return result.returncode, sandbox.calls.splitlines()


def test_run_starts_again_after_a_crash(sandbox: Sandbox) -> None:
    status, calls = run_with_ends(sandbox, "1 137 75 0", "--restarts", "5", "--lr", "0.1")
    starts = [call for call in calls if call.startswith("mpirun")]
    assert status == 0
    assert [call for call in calls if call.startswith("sleep")] == [
        "sleep 5", "sleep 10", "sleep 20",
    ]  # fmt: skip
    assert len(starts) == 4 and len(set(starts)) == 1
    assert starts[0].endswith("/config.sh --lr 0.1")


def test_run_gives_up_after_its_restarts(sandbox: Sandbox) -> None:
    status, calls = run_with_ends(sandbox, "1 1 9 9 9", "--restarts=2")
    assert status == 9
    assert sum(call.startswith("mpirun") for call in calls) == 3
    assert run_with_ends(sandbox, "9 0")[0] == 9


@pytest.mark.parametrize("end", [0, 2, 129, 130, 143])
def test_run_does_not_restart_after_a_users_error_or_a_signal(sandbox: Sandbox, end: int) -> None:
    status, calls = run_with_ends(sandbox, f"{end} 0", "--restarts", "3")
    assert (status, len(calls)) == (end, 1)


@pytest.mark.parametrize("wrong", ["", "x", "-1"])
def test_run_refuses_a_wrong_number_of_restarts(sandbox: Sandbox, wrong: str) -> None:
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
    ("variables", "starts"),
    [
        ({"GONE": "ip2"}, ["-np 6 -H ip1:1,ip2:2,ip3:3", "-np 4 -H ip1:1,ip3:3"]),
        ({"GONE": "ip2", "NP": "5"}, ["-np 5 -H ip1:1,ip2:2,ip3:3", "-np 4 -H ip1:1,ip3:3"]),
        ({"GONE": "ip1", "NP": "3"}, ["-np 3 -H ip1:1,ip2:2,ip3:3", "-np 3 -H ip2:2,ip3:3"]),
        ({}, ["-np 6 -H ip1:1,ip2:2,ip3:3"] * 2),
        ({"GONE": "ip2", "SLURM_JOB_ID": "7"}, ["-np 6 -H ip1:1,ip2:2,ip3:3"] * 2),
        ({"GONE": "ip2", "OMPI_MCA_plm_rsh_agent": "k"}, ["-np 6 -H ip1:1,ip2:2,ip3:3"] * 2),
    ],
)
def test_run_leaves_out_hosts_that_do_not_answer_when_it_starts_again(
    sandbox: Sandbox, variables: dict[str, str], starts: list[str]
) -> None:
    sandbox.stub("orterun", MPIRUN_THAT_FAILS)
    sandbox.stub("sleep", SILENT)
    sandbox.stub("ssh", SSH)
    hosts = {"HOSTS": "ip1:1,ip2:2,ip3:3", **variables}
    result = sandbox.run("bash", "run.sh", "--restarts", "1", **hosts)
    assert re.findall(" (-np .*) -bind-to", sandbox.calls) == starts
    gone = variables.get("GONE")
    assert (f"run.sh: {gone} cannot be reached by ssh; the run goes on" in result.stderr) == (
        starts[0] != starts[1]
    )
    alive = starts[1].rpartition(" ")[2].replace(",", " ")
    assert starts[0] == starts[1] or f"the run goes on without, on {alive}\n" in result.stderr


def test_run_tries_again_while_no_host_answers(sandbox: Sandbox) -> None:
    """After a crash, not at the first start: the network may come back."""
    sandbox.stub("orterun", MPIRUN_THAT_FAILS)
    sandbox.stub("sleep", '#!/usr/bin/env bash\necho "sleep $1" >>"$CALLS"\n')
    sandbox.stub("ssh", SSH)
    result = sandbox.run("bash", "run.sh", "--restarts", "2", HOSTS="ip1:1,ip2:1", GONE="*")
    assert re.findall("^mpirun|^sleep [0-9]+", sandbox.calls, re.MULTILINE) == [
        "mpirun", "sleep 5", "sleep 10",
    ]  # fmt: skip
    assert result.returncode == 75 and result.stderr.count("run.sh: host ip") == 2


@pytest.mark.parametrize("restarts", ["0", "3"])
def test_a_host_that_does_not_answer_at_the_start_is_one_line(
    sandbox: Sandbox, restarts: str
) -> None:
    sandbox.stub("ssh", "#!/usr/bin/env bash\necho Permission denied. >&2\nexit 255\n")
    result = sandbox.run("bash", "run.sh", "--restarts", restarts, HOSTS="localhost:1,ip2:1")
    assert result.returncode == 2 and not sandbox.calls
    assert result.stderr == (
        "error: host ip2: no connection by ssh (Permission denied.); it has to work without a "
        "question: ssh -oBatchMode=yes ip2 true\n"
    )


def test_options_of_ssh_reach_the_question_to_hosts(sandbox: Sandbox) -> None:
    sandbox.stub("ssh", '#!/usr/bin/env bash\necho "ssh $*" >>"$CALLS"\n')
    words = ("-mca", "plm_rsh_args", "-p 77", "-H", "ip1:1", "true")
    assert sandbox.run("bash", LAUNCHER, *words, HOST_TIMEOUT="44").returncode == 0
    (asked,) = re.findall("^ssh .*", sandbox.calls, re.MULTILINE)
    assert asked.startswith("ssh -oBatchMode=yes -oConnectTimeout=44 ")
    assert asked.endswith(" -x -p 77 ip1 true")


def test_a_machine_without_ssh_says_so(sandbox: Sandbox) -> None:
    (sandbox.stubs / "ssh").unlink()
    result = sandbox.run("bash", "run.sh", HOSTS="localhost:1,ip2:1")
    assert result.returncode == 2 and not sandbox.calls
    assert result.stderr.startswith("error: the program ssh cannot be started (No such file")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(("number", "status"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_run_forwards_signals(sandbox: Sandbox, number: str, status: int) -> None:
    """The stub is mpirun and its ranks: on USR1 or USR2, it ends after its update."""
    sandbox.stub(
        "orterun",
        "#!/usr/bin/env bash\ntrap 'echo USR1 >>\"$CALLS\"; exit 1' USR1\n"
        "trap 'echo USR2 >>\"$CALLS\"; exit 1' USR2\n"
        f"kill -{number} $PPID\nfor i in {{1..200}}; do read -t 0.05 <> <(:) || :; done\n",
    )
    result = sandbox.run("bash", "run.sh", "--restarts", "3")
    assert result.returncode == status, result.stderr
    assert sandbox.calls.split() == ["USR1" if number == "INT" else "USR2"]


def test_run_repeats_a_signal_that_came_before_the_ranks(sandbox: Sandbox) -> None:
    """mpirun forwards to ranks that it has started, and to no others."""
    sandbox.stub(
        "orterun",
        "#!/usr/bin/env bash\npause() { read -t $1 <> <(:) || :; }\n"
        "trap 'echo lost >>\"$CALLS\"' USR2\nkill -TERM $PPID\npause 1\n"
        "trap 'echo heard >>\"$CALLS\"; exit 1' USR2\nfor i in {1..400}; do pause 0.05; done\n",
    )
    assert sandbox.run("bash", "run.sh").returncode == 143
    assert sandbox.calls.split() == ["lost", "heard"]


def test_run_takes_signals_at_once_for_one(sandbox: Sandbox) -> None:
    """``timeout`` sends a signal to run.sh and to its group; bash may see either first."""
    sandbox.stub(
        "orterun",
        "#!/usr/bin/env bash\n"
        + "".join(f"trap 'echo {name} >>\"$CALLS\"' {name}\n" for name in ("USR1", "USR2", "TERM"))
        + "kill -INT $PPID; kill -TERM $PPID\n"
        "for i in {1..10}; do read -t 0.05 <> <(:) || :; done\nexit 1\n",
    )
    status = sandbox.run("bash", "run.sh").returncode
    assert (status, sandbox.calls.split()) in ((130, ["USR1"]), (143, ["USR2"]))


def test_a_later_signal_ends_mpirun_at_once(sandbox: Sandbox) -> None:
    sandbox.stub(
        "orterun",
        "#!/usr/bin/env bash\npause() { read -t $1 <> <(:) || :; }\n"
        "trap 'echo TERM >>\"$CALLS\"' TERM\n"
        "trap 'echo USR1 >>\"$CALLS\"; pause 2.1; kill -INT $PPID; pause 0.5; exit 1' USR1\n"
        "kill -INT $PPID\nfor i in {1..200}; do pause 0.05; done\n",
    )
    assert sandbox.run("bash", "run.sh").returncode == 130
    assert sandbox.calls.split() == ["USR1", "TERM"]
