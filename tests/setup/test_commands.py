from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import pytest

from tests.setup.conftest import REAL
from training.config import faces

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox

ROOT = Path(__file__).resolve().parents[2]
SILENT = "#!/usr/bin/env bash\n"
SETTINGS = """\
#!/usr/bin/env bash
echo "python $*" >>"$CALLS"
[[ $* != "-m runtime.environment" ]] || echo "export OMP_NUM_THREADS=7"
[[ $1 != */train.py ]] || echo "OMP_NUM_THREADS=$OMP_NUM_THREADS"
"""


def mpirun_arguments(sandbox: Sandbox) -> list[str]:
    """Return the arguments of the one call of mpirun, those that run.sh gives it."""
    (call,) = [line for line in sandbox.calls.splitlines() if line.startswith("mpirun ")]
    return ["-np", *call.partition(" -np ")[2].split()]


def variables_sent(sandbox: Sandbox) -> list[str]:
    """Return what the one call of mpirun sends to ranks on other hosts."""
    return re.findall(r" -x (\S+)", sandbox.calls)


def test_run_starts_two_ranks_on_this_host(sandbox: Sandbox) -> None:
    result = sandbox.run("bash", "run.sh", "--max-update", "20")
    assert result.returncode == 0, result.stderr
    arguments = mpirun_arguments(sandbox)
    assert arguments[:4] == ["-np", "2", "-H", "localhost:2"]
    config = f"{sandbox.folder}/config.sh"
    assert arguments[-4:] == ["bash", config, "--max-update", "20"]
    for flags in ("-bind-to none -map-by slot", "-mca pml ob1 -mca btl ^openib"):
        assert flags in " ".join(arguments)
    assert variables_sent(sandbox) == ["PATH"]


def test_run_takes_hosts_and_a_hostfile(sandbox: Sandbox) -> None:
    sandbox.run("bash", "run.sh", NP="16", HOSTS="ip1:8,ip2:8")
    assert mpirun_arguments(sandbox)[:4] == ["-np", "16", "-H", "ip1:8,ip2:8"]
    assert mpirun_arguments_with(sandbox, HOSTS="ip1:8,ip2")[:4] == ["-np", "9", "-H", "ip1:8,ip2"]
    (sandbox.folder / "hosts.txt").write_text("# ours\nip1 slots=3\n\nip2 max_slots=9 slots=2\nip3")
    found = mpirun_arguments_with(sandbox, NP="4", HOSTFILE="hosts.txt")
    assert found[:3] == ["-np", "4", "--hostfile"]
    assert file_of_mpirun(sandbox) == ["ip1 slots=3", "ip2 slots=2", "ip3"]
    assert mpirun_arguments_with(sandbox, HOSTFILE="hosts.txt")[:2] == ["-np", "6"]


def file_of_mpirun(sandbox: Sandbox) -> list[str]:
    """Return the lines of the file of hosts that mpirun got."""
    (line,) = [line for line in sandbox.calls.splitlines() if line.startswith("file ")]
    return line.removeprefix("file ").split("|")


# Files and lists that Open MPI answers with pages of text, or reads otherwise.
SPELLINGS = {
    "ends of lines": b"ip1 slots=2\r\nip2 slots=3\r\n",
    "byte order mark": b"\xef\xbb\xbfip1 slots=2\nip2 slots=3\n",
    "a host twice": b"ip1 slots=1\nip2 slots=3\nip1 slots=1\n",
    "colons": b"ip1:2\nip2:3\n",
    "comments": b"\tip1 slots = 2 # fast\n\n#\nip2   slots=3",
    "one host by two names": b"ip1 slots=2\nip2 slots=3\nlocalhost slots=1\n127.0.0.1 slots=1\n",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_mpirun_gets_a_file_that_it_can_read(sandbox: Sandbox, spelling: str) -> None:
    """From run.sh and from the user; the original file stays as it is."""
    file = sandbox.folder / "hosts"
    file.write_bytes(SPELLINGS[spelling])
    expected = ["ip1 slots=2", "ip2 slots=3", *(["localhost slots=2"] if "two" in spelling else [])]
    ranks = str(len(expected) * 2 + 1)
    assert mpirun_arguments_with(sandbox, HOSTFILE="hosts")[:2] == ["-np", ranks]
    assert file_of_mpirun(sandbox) == expected
    for option in ("-hostfile", "--hostfile", "-machinefile", "--machinefile"):
        result = sandbox.run("bash", LAUNCHER, "-np", "2", option, "hosts", "train", option, "own")
        assert result.returncode == 0, result.stderr
        assert file_of_mpirun(sandbox) == expected
        assert sandbox.calls.splitlines()[0].endswith(f"/proc/self/fd/3 train {option} own")
    assert file.read_bytes() == SPELLINGS[spelling]


def test_mpirun_gets_a_list_that_it_can_read(sandbox: Sandbox) -> None:
    found = mpirun_arguments_with(sandbox, HOSTS=" ip1:2, ip2 ,ip1:1,")
    assert found[:4] == ["-np", "4", "-H", "ip1:3,ip2"]
    for option in ("-H", "-host", "--host"):
        sandbox.run("bash", LAUNCHER, option, "ip1:1,ip1:1,", "-np", "2", "train", option, "a,,")
        assert sandbox.calls.endswith(f" {option} ip1:2 -np 2 train {option} a,,\n")


def test_programs_with_lists_of_their_own(sandbox: Sandbox) -> None:
    words = (
        "-x",
        "-H",
        "-np",
        "1",
        "-H",
        "a:1,",
        "p",
        "-H",
        ",",
        ":",
        "-n",
        "1",
        "-H",
        "b:1,",
        "q",
    )
    assert sandbox.run("bash", LAUNCHER, *words).returncode == 0
    assert sandbox.calls.endswith(" -x -H -np 1 -H a:1 p -H , : -n 1 -H b:1 q\n")


@pytest.mark.parametrize(("name", "ranks"), [("host_8", 8), ("host_16", 16)])
def test_run_takes_the_examples_of_hostfiles(sandbox: Sandbox, name: str, ranks: int) -> None:
    """At the place where the original has them, by its command as well."""
    (sandbox.folder / "hosts").mkdir()
    shutil.copy(ROOT / "hosts" / name, sandbox.folder / "hosts")
    found = mpirun_arguments_with(sandbox, HOSTFILE=f"hosts/{name}")
    assert found[:3] == ["-np", str(ranks), "--hostfile"]
    slots = file_of_mpirun(sandbox)
    assert sum(int(line.partition("=")[2]) for line in slots) == ranks
    words = f"-np {ranks} -hostfile hosts/{name} --allow-run-as-root -bind-to none -map-by slot "
    words += "-mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include eth0 -x OMP_NUM_THREADS=2 "
    assert sandbox.run("bash", LAUNCHER, *f"{words}bash config.sh".split()).returncode == 0
    assert file_of_mpirun(sandbox) == slots


def mpirun_arguments_with(sandbox: Sandbox, **variables: str) -> list[str]:
    result = sandbox.run("bash", "run.sh", **variables)
    assert result.returncode == 0, result.stderr
    return mpirun_arguments(sandbox)


@pytest.mark.parametrize(
    "variables",
    [{"NP": "two"}, {"NP": "0"}, {"NP": "-1"}, {"HOSTS": "ip1:8;ip2"}, {"HOSTS": "-x"},
     {"HOSTS": "a,,b"}, {"HOSTS": "[::1]:2"}, {"HOSTS": "me@ip1:2"}, {"HOSTS": "a:0"},
     {"HOSTFILE": "nowhere"}, {"HOSTFILE": "train.py"}, {"HOSTFILE": "empty"}, {"HOSTFILE": "."},
     {"HOSTFILE": "two"}, {"HOSTS": "a:2", "HOSTFILE": "one"}, {"HOSTS": "a:2,b:1", "NP": "4"},
     {"HOSTFILE": "one", "NP": "3"}],
    ids=str,
)  # fmt: skip
def test_run_refuses_wrong_hosts(sandbox: Sandbox, variables: dict[str, str]) -> None:
    (sandbox.folder / "train.py").write_text('"""No host."""\n')
    (sandbox.folder / "empty").write_text("# no host\n")
    (sandbox.folder / "one").write_text("ip1 slots=2\r\n")
    (sandbox.folder / "two").write_text("ip1 slots=two\n")
    result = sandbox.run("bash", "run.sh", "--restarts", "3", **variables)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("error: ")
    assert any(name in result.stderr for name in (*variables, *variables.values()))
    assert not sandbox.calls


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        ("-np 3 -H a:1,b:1", True),
        ("-n 3 --host a,b:1", False),
        ("-np 3 --oversubscribe -H a:1,b:1", False),
        ("-np 3 --map-by slot:OVERSUBSCRIBE -H a:1,b:1", False),
        ("-np 3 --nooversubscribe -H a:1,b:1", True),
        ("-np x -H a:1", True),
        ("-np 2 -H a:1,b:1", False),
        ("-np 2 -H [::1]:2", True),
        ("-np 2 --hostfile .", True),
        ("-np 0 -H a:1", True),
        ("-np 1 --host=a:1", True),
        ("--np=1 -H a:1", True),
        ("-np 1 -hostfile hosts -H b", True),
        ("-np 1 -hostfile hosts -H a", False),
        ("-np 1 -hostfile hosts -H 127.0.0.1", False),
    ],
)
def test_mpirun_refuses_what_open_mpi_answers_with_pages(
    sandbox: Sandbox, words: str, is_refused: bool
) -> None:
    (sandbox.folder / "hosts").write_text("a\nlocalhost\n")
    result = sandbox.run("bash", LAUNCHER, *words.split(), "true")
    assert result.returncode == (2 if is_refused else 0), result.stderr
    assert len(result.stderr.splitlines()) == is_refused == (not sandbox.calls)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "there is no program to start"),
        ("-np 2 -H localhost:2", "there is no program to start"),
        ("-np 2 -H localhost:2 nothing-of-this-name x", "'nothing-of-this-name' is not a program"),
        ("-np 1 -H localhost:2 bash : -np 1 ./nothing", "'./nothing' is not a program"),
        ("-np 1 -H localhost:2 bash -x", ""),
        ("-np 1 -H ip1:2 of-that-host", ""),
        ("-np 1 -H localhost:2 -wdir / bin/true", ""),
        ("--version", ""),
        ("--app programs", ""),
        ("-np 1 -H localhost:2 --flag-of-another-version bash -x", ""),
        ("-np 1 -H localhost:2 --flag-of-another-version bash nothing", ""),
    ],
)
def test_mpirun_names_a_program_that_is_missing(sandbox: Sandbox, words: str, reason: str) -> None:
    result = sandbox.run("bash", LAUNCHER, *words.split())
    assert result.returncode == (2 if reason else 0), result.stderr
    assert reason in result.stderr and len(result.stderr.splitlines()) == bool(reason)
    assert bool(sandbox.calls) == (not reason)


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


@pytest.mark.parametrize(("pause", "calls"), [("0.1", ["USR1"]), ("2.1", ["USR1", "TERM"])])
def test_run_takes_signals_at_once_for_one(sandbox: Sandbox, pause: str, calls: list[str]) -> None:
    """``timeout`` sends a signal to run.sh and to its group; only a later one ends mpirun."""
    sandbox.stub(
        "orterun",
        "#!/usr/bin/env bash\npause() { read -t $1 <> <(:) || :; }\n"
        "trap 'echo TERM >>\"$CALLS\"' TERM\n"
        f"trap 'echo USR1 >>\"$CALLS\"; pause {pause}; kill -INT $PPID; pause 0.5; exit 1' USR1\n"
        "kill -INT $PPID\nfor i in {1..200}; do pause 0.05; done\n",
    )
    assert sandbox.run("bash", "run.sh").returncode == 130
    assert sandbox.calls.split() == calls


def test_run_passes_choices_and_settings_to_the_other_hosts(sandbox: Sandbox) -> None:
    choices = {"NETWORK": "r50", "NCCL_DEBUG": "INFO", "UNRELATED": "x"}
    sandbox.run("bash", "run.sh", **choices)
    assert variables_sent(sandbox) == ["NCCL_DEBUG", "NETWORK", "PATH"]
    sandbox.run("bash", "run.sh", SEND_VARIABLES="UNRELATED", **choices)
    assert variables_sent(sandbox) == ["NCCL_DEBUG", "NETWORK", "PATH", "UNRELATED"]
    result = sandbox.run("bash", "run.sh", SEND_VARIABLES="OTHER=1")
    assert result.returncode == 2 and sandbox.calls == ""
    assert result.stderr.startswith("error: SEND_VARIABLES: 'OTHER' is not the name of a variable;")
    assert len(result.stderr.splitlines()) == 1


PASSED = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"]


@pytest.mark.parametrize(
    ("shown", "others", "passed"),
    [
        ("2,3", {}, PASSED),
        ("2,3", {"HOSTS": "ip1:2,ip2:2"}, PASSED),
        ("", {"HOSTS": "ip1:2,ip2:2"}, PASSED),
        ("-1", {"HOSTS": "ip1:2,ip2:2"}, PASSED),
        ("GPU-5fa2,GPU-77", {}, PASSED),
        ("GPU-5fa2", {"HOSTS": "localhost:2"}, PASSED),
        ("GPU-5fa2", {"SLURM_JOB_ID": "7", "HOSTS": "ip1:2,ip2:2"}, PASSED[::2]),
        ("0,1", {"SLURM_JOB_ID": "7"}, PASSED[::2]),
        ("GPU-5fa2,GPU-77", {"HOSTS": "ip1:2,ip2:2"}, None),
        ("MIG-5fa2", {"HOSTFILE": "hosts"}, None),
        ("0,GPU-5fa2", {"HOSTFILE": "hosts"}, None),
    ],
)
def test_run_tells_all_hosts_which_gpus_ranks_see(
    sandbox: Sandbox, shown: str, others: dict[str, str], passed: Optional[list[str]]
) -> None:
    """Unless Slurm tells each host its own; a GPU's UUID names nothing on another host."""
    (sandbox.folder / "hosts").write_text("ip1 slots=2\nip2 slots=2\n")
    gpus = {"CUDA_VISIBLE_DEVICES": shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    result = sandbox.run("bash", "run.sh", **gpus, NVIDIA_TF32_OVERRIDE="0", **others)
    if passed is None:
        assert result.returncode == 2 and sandbox.calls == ""
        assert result.stderr.startswith(f"error: CUDA_VISIBLE_DEVICES='{shown}' names GPUs of a ")
        assert len(result.stderr.splitlines()) == 1
        return
    assert result.returncode == 0, result.stderr
    assert sorted(set(variables_sent(sandbox)) & set(PASSED)) == passed


LAUNCHER = "setup-utils/launchers/mpirun"


def test_mpirun_names_the_daemon_of_other_hosts(sandbox: Sandbox) -> None:
    sandbox.run("bash", LAUNCHER, "-np", "2", "true", LD_LIBRARY_PATH="/a b")
    guard = f"bash {sandbox.folder}/setup-utils/launchers/remote-guard 120"
    agent = f"-mca orte_launch_agent {guard} env LD_LIBRARY_PATH=/a\\ b {sandbox.stubs}/orted"
    assert sandbox.calls.startswith(f"mpirun {agent} ")


def test_one_prefix_of_open_mpi_on_all_hosts(sandbox: Sandbox) -> None:
    """That of the path in which it is called, not of the one behind links as orterun sets it."""
    sandbox.stub("orterun", "#!/usr/bin/env bash\nexit 1\n")
    sandbox.stub("orterun_wrapper", '#!/usr/bin/env bash\necho "$OPAL_PREFIX $*"\n')
    link = sandbox.folder / "link"
    link.symlink_to(sandbox.stubs)
    path = f"{link}:{sandbox.stubs}:/usr/bin:/bin"
    result = sandbox.run("bash", LAUNCHER, "-np", "2", "true", PATH=path)
    assert result.stdout.startswith(f"{link} "), result.stderr
    assert f"env OPAL_PREFIX={link} {link}/orted" in result.stdout


@pytest.mark.parametrize("wrong", ["5", "2 minutes", "-20", "100000"])
def test_a_time_for_hosts_that_is_none_is_refused(sandbox: Sandbox, wrong: str) -> None:
    for command in (LAUNCHER, "run.sh", "setup-utils/launchers/horovodrun"):
        result = sandbox.run("bash", command, HOST_TIMEOUT=wrong)
        assert result.returncode == 2 and sandbox.calls == ""
        assert result.stderr.startswith(f"error: HOST_TIMEOUT='{wrong}' is not a number of seconds")
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "agent"),
    [({}, "remote-shell"), ({"OMPI_MCA_plm_rsh_agent": "/etc/kubexec.sh"}, "/etc/kubexec.sh")],
)
def test_the_program_that_reaches_other_hosts_can_be_chosen(
    sandbox: Sandbox, variables: dict[str, str], agent: str
) -> None:
    sandbox.stub("orterun", '#!/usr/bin/env bash\nenv >>"$CALLS"\n')
    result = sandbox.run("bash", LAUNCHER, "-np", "2", "true", **variables)
    assert result.returncode == 0, result.stderr
    assert f"OMPI_MCA_plm_rsh_agent={agent}\n" in sandbox.calls
    assert ("OMPI_MCA_plm_rsh_no_tree_spawn=1" in sandbox.calls) == (agent == "remote-shell")


def test_launchers_in_an_environment_find_it_by_themselves(sandbox: Sandbox) -> None:
    programs = sandbox.folder / ".venv/bin"
    programs.mkdir(parents=True)
    for name in ("mpirun", "horovodrun"):
        (programs / name).symlink_to(f"../../setup-utils/launchers/{name}")
    (programs / "python").write_text(f'{REAL}echo "$PATH: $*" >>"$CALLS"\n')
    (programs / "python").chmod(0o755)
    sandbox.stub("orterun", '#!/usr/bin/env bash\necho "$PATH: $*" >>"$CALLS"\n')
    for name in ("mpirun", "horovodrun"):
        result = sandbox.run(f"{programs}/{name}", "-np", "2", "a b")
        assert result.returncode == 0, result.stderr
        # mpirun finds its remote shell there.
        added = f":{sandbox.folder}/setup-utils/launchers" if name == "mpirun" else ""
        assert sandbox.calls.startswith(f"{programs}:{sandbox.stubs}{added}: ")
        assert sandbox.calls.endswith(" -np 2 a b\n")


def test_the_interface_is_handed_to_all_that_communicate(sandbox: Sandbox) -> None:
    sandbox.stub("orterun", '#!/usr/bin/env bash\nenv >>"$CALLS"\necho "$*" >>"$CALLS"\n')
    result = sandbox.run("bash", LAUNCHER, "-np", "2", "true", NIC="lo")
    assert result.returncode == 0, result.stderr
    for name in (
        *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"),
        *("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"),
    ):
        assert f"\n{name}=lo\n" in f"\n{sandbox.calls}"
    # Open MPI itself sends its own.
    assert {"NIC", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"} < set(variables_sent(sandbox))


@pytest.mark.parametrize(
    ("options", "variables", "leaves_out"),
    [
        ((), {}, True),
        (("-mca", "btl", "^openib"), {}, True),
        (("-mca", "btl_tcp_if_include", "eth0"), {}, False),
        ((), {"NIC": "lo"}, False),
        ((), {"OMPI_MCA_btl_tcp_if_include": "eth0"}, False),
    ],
)
def test_bridges_of_containers_are_left_out_unless_interfaces_are_chosen(
    sandbox: Sandbox, options: tuple[str, ...], variables: dict[str, str], leaves_out: bool
) -> None:
    sandbox.stub("orterun", '#!/usr/bin/env bash\nenv >>"$CALLS"\n')
    result = sandbox.run("bash", LAUNCHER, "-np", "2", *options, "true", **variables)
    assert result.returncode == 0, result.stderr
    found = re.findall("^OMPI_MCA_btl_tcp_if_exclude=(.*)$", sandbox.calls, re.MULTILINE)
    assert ["docker0" in names for names in found] == ([True] if leaves_out else [])


@pytest.mark.parametrize(
    "interface",
    ["eth77", "lo,eth0", "../net/lo", ".", "..", "./lo", "/", "lo/", " ", "-lo", "lo ", "l" * 300],
)
def test_an_interface_that_is_none_is_refused(sandbox: Sandbox, interface: str) -> None:
    for command in (LAUNCHER, "run.sh", "setup-utils/launchers/horovodrun"):
        result = sandbox.run("bash", command, NIC=interface)
        assert result.returncode == 2 and sandbox.calls == ""
        assert result.stderr.startswith(f"error: NIC='{interface[:80]}': ")
        assert len(result.stderr.splitlines()) == 1


def test_an_interface_is_one_line_whatever_its_name_has(sandbox: Sandbox) -> None:
    result = sandbox.run("bash", LAUNCHER, NIC="lo\n\x1b[31m")
    assert result.returncode == 2 and result.stderr.startswith("error: NIC='lo  [31m': ")
    assert len(result.stderr.splitlines()) == 1


def test_run_does_not_let_ranks_connect_by_gloo(sandbox: Sandbox) -> None:
    sandbox.stub("orterun", '#!/usr/bin/env bash\necho "${HOROVOD_CONTROLLER:-unset}"\n')
    assert sandbox.run("bash", "run.sh", HOROVOD_CONTROLLER="gloo").stdout == "unset\n"


def test_run_without_mpirun_says_what_to_do(sandbox: Sandbox) -> None:
    (sandbox.stubs / "orterun").unlink()
    result = sandbox.run("bash", "run.sh")
    assert result.returncode == 2
    assert result.stderr == "error: Open MPI's orterun not found: run 'make env' first\n"


@pytest.mark.parametrize("active", [None, "VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_projects_environment_is_used_unless_another_is_active(
    sandbox: Sandbox, active: Optional[str]
) -> None:
    programs = sandbox.folder / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(SETTINGS + 'echo "from .venv" >>"$CALLS"\n')
    (programs / "python").chmod(0o755)
    variables = {active: "/elsewhere"} if active else {}
    sandbox.run("bash", "config.sh", **variables)
    assert ("from .venv" in sandbox.calls) == (active is None)


def config_call(sandbox: Sandbox, *arguments: str, **variables: str) -> str:
    """Run config.sh and return how it calls train.py."""
    sandbox.stub("python", SETTINGS)
    result = sandbox.run("bash", "config.sh", *arguments, **variables)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "OMP_NUM_THREADS=7\n"
    settings, train = sandbox.calls.splitlines()
    assert settings == "python -m runtime.environment"
    return train.replace(f"python {sandbox.folder}/train.py ", "")


def test_config_passes_its_arguments_last(sandbox: Sandbox) -> None:
    call = config_call(sandbox, "--max-update", "20", "--lr", "0.5", LR="0.1")
    assert call == "--dataset synthetic --lr 0.1 --max-update 20 --lr 0.5"


def test_choices_come_from_the_environment(sandbox: Sandbox) -> None:
    choices = {"DATASET": "emore", "NETWORK": "r50", "BATCH_SIZE": "32", "MODELS_ROOT": "m"}
    expected = "--dataset emore --network r50 --batch-size 32 --models-root m"
    assert config_call(sandbox, **choices) == expected


@pytest.mark.parametrize("argument", ["--rec faces", "--rec=faces"])
def test_a_record_set_replaces_the_synthetic_one(
    sandbox: Sandbox, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``train.py`` understands it: nothing is left of the data and the recipe of synthetic."""
    (sandbox.folder / "faces").mkdir()
    (sandbox.folder / "faces/train.rec").touch()
    monkeypatch.chdir(sandbox.folder)
    drawn = faces.parse(config_call(sandbox).split())
    assert (drawn.data.dataset, drawn.data.num_classes) == ("synthetic", 400)
    call = config_call(sandbox, *argument.split(" "))
    assert call == argument
    assert faces.parse(call.split()) == faces.resolve({"rec": ("faces",)})


def test_a_record_set_replaces_only_the_folder_of_a_preset(sandbox: Sandbox) -> None:
    call = config_call(sandbox, "--rec", "faces", DATASET="glint360k_8GPU")
    assert call == "--dataset glint360k_8GPU --rec faces"


@pytest.mark.parametrize("script", ["config.sh", "run.sh"])
def test_paths_are_relative_to_the_callers_folder(sandbox: Sandbox, script: str) -> None:
    for name in ("python", "orterun"):
        sandbox.stub(name, '#!/usr/bin/env bash\necho "$PWD $*" >>"$CALLS"\n')
    caller = sandbox.folder.with_name("caller's folder")
    caller.mkdir()
    (caller / "hosts").write_text("ip1 slots=3\n")
    project, sandbox.folder = sandbox.folder, caller
    result = sandbox.run("bash", f"../{project.name}/{script}", "--rec", "faces", HOSTFILE="hosts")
    assert result.returncode == 0, result.stderr
    call = sandbox.calls.splitlines()[-1]
    assert call.startswith(f"{caller} ")
    program = f"{project}/train.py" if script == "config.sh" else f"bash {project}/config.sh"
    assert call.endswith(f"{program} --rec faces")
    assert ("-np 3 --hostfile /proc" in call) == (script == "run.sh")


def test_config_without_any_option(sandbox: Sandbox) -> None:
    """Before version 4.4, bash takes an empty array for one that is not set."""
    text = (sandbox.folder / "config.sh").read_text()
    assert '${options[@]+"${options[@]}"}' in text
    assert not re.search(r'(?<!\+)"\$\{options\[@\]\}"', text)


def test_config_stops_where_the_settings_fail(sandbox: Sandbox) -> None:
    sandbox.stub("python", "#!/usr/bin/env bash\necho call >>$CALLS\nexit 2\n")
    assert sandbox.run("bash", "config.sh").returncode == 2
    assert sandbox.calls == "call\n"
