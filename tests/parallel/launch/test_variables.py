"""Which variables other hosts get, and how they arrive there."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from parallel.launch import ssh, variables
from runtime.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
READ = (
    *("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "NETWORK", "NIC"),
    *("MXNET_SEED", "HOROVOD_CYCLE_TIME", "NCCL_DEBUG", "OMPI_MCA_btl", "OMP_NUM_THREADS"),
    *("CUBLAS_WORKSPACE_CONFIG", "PMIX_MCA_gds", "FI_PROVIDER"),
    *("NUMBA_CACHE_DIR", "DMLC_LOG_STACK_TRACE", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"),
)
OTHERS = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "WANDB_API_KEY", "http_proxy"),
    *("HOME", "USER", "SSH_AUTH_SOCK", "GITHUB_TOKEN", "_HOROVOD_SECRET_KEY", "PGPASSWORD", "PS1"),
    *("BASH_FUNC_module%%", "MXNET_x%%", "MY_MXNET_SEED", "OMPI_COMM_WORLD_RANK"),
)


def test_what_libraries_read_is_sent_and_nothing_else() -> None:
    own = dict.fromkeys((*READ, *OTHERS), "x")
    assert variables.names(own) == sorted(READ)
    for separated in ("HF_TOKEN,http_proxy", " HF_TOKEN  http_proxy,"):
        named = variables.names({**own, "SEND_VARIABLES": separated})
        assert named == sorted((*READ, "HF_TOKEN", "http_proxy"))


    # Slurm gives each host its GPUs.
    slurm = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "x", "SLURM_JOB_ID": "7"}
    assert variables.names(slurm) == ["CUDA_DEVICE_ORDER"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("HF_TOKEN=hf_abc", "'HF_TOKEN' is not the name of a variable; give names without values"),
        ("1A", "'1A' is not the name"),
        ("HF_TOKEN MISSING", "MISSING is not set; set it, or leave it out"),
    ],
)
def test_names_that_are_none_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^SEND_VARIABLES: {reason}") as raised:
        variables.names({"HF_TOKEN": "x", "SEND_VARIABLES": text})
    assert "hf_abc" not in str(raised.value)


def test_the_choices_are_those_of_the_script() -> None:
    text = (ROOT / "config.sh").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^([A-Z_]+)=", text, re.MULTILINE)) == variables.CHOICES


def test_values_arrive_as_they_are_and_the_rest_of_the_input_is_left() -> None:
    values = {"A": "it's \"two\"\n\nlines\n", "B": "", "C": "$HOME `x` \\ ü", "D": "a=b "}
    show = 'for name in A B C D; do printf "%s|" "${!name}"; done; cat'
    data = variables.packed(values) + b"TERM\n"
    said = subprocess.check_output([*variables.RECEIVER, "bash", "-c", show], input=data)
    assert said.decode() == "|".join([*values.values(), "TERM\n"])


def test_shells_of_the_command_do_not_read_bashrc(tmp_path: Path) -> None:
    """In a session of ssh, Debian's bash reads it, which may change ``PATH`` again."""
    (tmp_path / ".bashrc").write_text("PATH=/elsewhere:$PATH\n")
    session = {"HOME": str(tmp_path), "SSH_CLIENT": "::1 1 22", "PATH": "/usr/bin:/bin"}
    command = [*variables.RECEIVER, "bash", "-c", "bash -c 'echo $PATH'"]
    data = variables.packed({"PATH": "/usr/bin:/bin"})
    said = subprocess.check_output(["bash", "-c", shlex.join(command)], input=data, env=session)
    assert said == b"/usr/bin:/bin\n"


def test_a_host_is_no_option_of_ssh() -> None:
    for host in ("-Fx.conf", "-oProxyCommand=x", "-", "", "--", "a b", "a;b", "ho\nst", "-F:22"):
        with pytest.raises(ConfigError, match="is not a name or an IPv4 address"):
            ssh.destination(host)
    assert ssh.destination("ip1:2222") == ["-p", "2222", "ip1"]
    assert ssh.destination("ip-1.example") == ["ip-1.example"]
