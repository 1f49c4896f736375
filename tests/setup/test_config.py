"""How config.sh calls train.py, and where scripts look for files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.setup.conftest import SETTINGS, SILENT, assert_one_line
from training.config import faces

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox


def config_call(sandbox: Sandbox, *arguments: str, **variables: str) -> str:
    """Run config.sh and return how it calls train.py."""
    sandbox.stub("python", SETTINGS)
    result = sandbox.run("bash", "config.sh", *arguments, **variables)
    assert (result.returncode, result.stdout) == (0, "OMP_NUM_THREADS=7\n"), result.stderr
    settings, train = sandbox.calls.splitlines()
    assert settings == "python -m runtime.environment"
    return train.replace(f"python {sandbox.folder}/train.py ", "")


@pytest.mark.parametrize(
    ("typed", "variables", "called"),
    [
        # Options win over variables: they come last.
        ("--lr 0.5", {"LR": "0.1"}, "--dataset synthetic --lr 0.1 --lr 0.5"),
        (
            "",
            {"DATASET": "emore", "NETWORK": "r50", "BATCH_SIZE": "32", "MODELS_ROOT": "m"},
            "--dataset emore --network r50 --batch-size 32 --models-root m",
        ),
        ("--rec faces", {"DATASET": "glint360k_8GPU"}, "--dataset glint360k_8GPU --rec faces"),
    ],
)
def test_choices_come_from_the_environment(
    sandbox: Sandbox, typed: str, variables: dict[str, str], called: str
) -> None:
    assert config_call(sandbox, *typed.split(), **variables) == called


@pytest.mark.parametrize(
    "argument", ["--rec faces", "--rec=faces", "--config saved.json", "--config=saved.json"]
)
def test_data_of_the_user_replace_the_synthetic_set(
    sandbox: Sandbox, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``train.py`` understands it: nothing is left of the data and the recipe of synthetic."""
    (sandbox.folder / "faces").mkdir()
    (sandbox.folder / "faces/train.rec").touch()
    (sandbox.folder / "saved.json").write_text('{"dataset": "100w", "max_update": 9}')
    monkeypatch.chdir(sandbox.folder)
    assert faces.parse(config_call(sandbox).split()).data.dataset == "synthetic"
    call = config_call(sandbox, *argument.split(" "))
    assert call == argument
    config = faces.parse(call.split())
    if "rec" in argument:
        assert config == faces.resolve({"rec": ("faces",)})
    else:
        assert (config.data.dataset, config.data.num_classes) == ("100w", 1_000_000)


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


@pytest.mark.parametrize("script", ["config.sh", "run.sh", "setup-utils/slurm.sh"])
def test_a_link_to_a_script_finds_the_project(sandbox: Sandbox, script: str) -> None:
    sandbox.stub("python", SETTINGS)
    link = sandbox.folder.with_name("link.sh")
    link.symlink_to(sandbox.folder / script)
    result = sandbox.run("bash", str(link), NP="x")
    message = {"config.sh": "", "run.sh": "error: NP='x' is not a"}
    assert result.stderr.startswith(message.get(script, "error: SLURM_JOB_ID is not set"))
    assert result.returncode == (0 if script == "config.sh" else 2)


def test_what_is_refused_before_mpirun(sandbox: Sandbox) -> None:
    script = f'mkdir gone; cd gone; rmdir ../gone; bash "{sandbox.folder}/run.sh"'
    sandbox.stub("rmdir", '#!/usr/bin/env bash\nrm -r "$1"\n')
    result = sandbox.run("bash", "-c", script)
    assert "error: the current folder has been removed; start" in result.stderr
    assert (result.returncode, sandbox.calls) == (2, "")
    sandbox.stub("python", SILENT)
    hosts = {"HOSTS": ",".join(["localhost:9999"] * 100)}
    result = sandbox.run("bash", "run.sh", **hosts)
    assert_one_line(result, "are free in /dev/shm, and 999900 ranks on this host need 3999600; re")
    assert sandbox.calls == ""
    choice = {"OMPI_MCA_btl_vader_backing_directory": "/tmp"}
    assert sandbox.run("bash", "run.sh", **hosts, **choice).returncode == 0


def test_config_in_other_circumstances(sandbox: Sandbox) -> None:
    """Before version 4.4, bash takes an empty array for one that is not set."""
    text = (sandbox.folder / "config.sh").read_text()
    assert '${options[@]+"${options[@]}"}' in text
    assert not re.search(r'(?<!\+)"\$\{options\[@\]\}"', text)
    # Programs find their modules with a safe path; where the settings fail, nothing is started.
    for status, said in ((0, "unset\nunset\n"), (2, "unset\n")):
        stub = f'#!/usr/bin/env bash\necho "${{PYTHONSAFEPATH-unset}}" >>"$CALLS"\nexit {status}\n'
        sandbox.stub("python", stub)
        assert sandbox.run("bash", "config.sh", PYTHONSAFEPATH="1").returncode == status
        assert sandbox.calls == said
