from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox

SETTINGS = """\
#!/usr/bin/env bash
echo "python $*" >>"$CALLS"
[[ $* != "-m runtime.environment" ]] || echo "export OMP_NUM_THREADS=7"
[[ $1 != train.py ]] || echo "OMP_NUM_THREADS=$OMP_NUM_THREADS"
"""


def mpirun_arguments(sandbox: Sandbox) -> list[str]:
    """Return the arguments of the one call of mpirun."""
    (call,) = [line for line in sandbox.calls.splitlines() if line.startswith("mpirun ")]
    return call.split()[1:]


def test_run_starts_two_ranks_on_this_host(sandbox: Sandbox) -> None:
    result = sandbox.run("bash", "run.sh", "--max-update", "20")
    assert result.returncode == 0, result.stderr
    arguments = mpirun_arguments(sandbox)
    assert arguments[:4] == ["-np", "2", "-H", "localhost:2"]
    assert arguments[-4:] == ["bash", "config.sh", "--max-update", "20"]
    for flags in ("-bind-to none -map-by slot", "-mca pml ob1 -mca btl ^openib", "-x PATH"):
        assert flags in " ".join(arguments)


def test_run_takes_hosts_and_a_hostfile(sandbox: Sandbox) -> None:
    sandbox.run("bash", "run.sh", NP="16", HOSTS="ip1:8,ip2:8")
    assert mpirun_arguments(sandbox)[:4] == ["-np", "16", "-H", "ip1:8,ip2:8"]
    sandbox.run("bash", "run.sh", NP="4", HOSTFILE="hosts.txt")
    assert mpirun_arguments(sandbox)[:4] == ["-np", "4", "--hostfile", "hosts.txt"]


def test_run_hands_choices_and_settings_to_the_other_hosts(sandbox: Sandbox) -> None:
    sandbox.run("bash", "run.sh", NETWORK="r50", NCCL_DEBUG="INFO", UNRELATED="x")
    arguments = mpirun_arguments(sandbox)
    handed_on = {b for a, b in zip(arguments, arguments[1:]) if a == "-x"}
    assert handed_on == {"PATH", "NETWORK", "NCCL_DEBUG"}


def test_run_does_not_let_ranks_meet_by_gloo(sandbox: Sandbox) -> None:
    sandbox.stub("mpirun", '#!/usr/bin/env bash\necho "${HOROVOD_CONTROLLER:-unset}"\n')
    assert sandbox.run("bash", "run.sh", HOROVOD_CONTROLLER="gloo").stdout == "unset\n"


def test_run_without_mpirun_says_what_to_do(sandbox: Sandbox) -> None:
    (sandbox.stubs / "mpirun").unlink()
    result = sandbox.run("bash", "run.sh")
    assert result.returncode == 2
    assert result.stderr == "error: mpirun not found: run 'make env' first\n"


@pytest.mark.parametrize("active", [None, "VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_projects_environment_is_used_unless_another_is_active(
    sandbox: Sandbox, active: str | None
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
    return train.replace("python train.py ", "")


def test_config_hands_its_arguments_on_last(sandbox: Sandbox) -> None:
    call = config_call(sandbox, "--max-update", "20", "--lr", "0.5", LR="0.1")
    assert call == "--dataset synthetic --lr 0.1 --max-update 20 --lr 0.5"


def test_choices_come_from_the_environment(sandbox: Sandbox) -> None:
    choices = {"DATASET": "emore", "NETWORK": "r50", "BATCH_SIZE": "32", "MODELS_ROOT": "m"}
    expected = "--dataset emore --network r50 --batch-size 32 --models-root m"
    assert config_call(sandbox, **choices) == expected


@pytest.mark.parametrize("argument", ["--rec faces", "--rec=faces"])
def test_a_record_set_takes_the_place_of_the_preset(sandbox: Sandbox, argument: str) -> None:
    assert config_call(sandbox, *argument.split(" ")) == argument


def test_config_stops_where_the_settings_fail(sandbox: Sandbox) -> None:
    sandbox.stub("python", "#!/usr/bin/env bash\necho call >>$CALLS\nexit 2\n")
    assert sandbox.run("bash", "config.sh").returncode == 2
    assert sandbox.calls == "call\n"
