"""Every command of the documents, and where it is run.

A command is a line of a fenced block, or an inline span, that begins with the name of a program. A
block of the documents has commands, or it is in ``NO_COMMANDS``; so nothing that looks like neither
gets in. ``RUN_BY`` says of each command which test runs it, in a small form or as it stands;
``BY_HAND`` has those of other programs that no test can run, with what is checked of them instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

_OURS = ("make", "source", "python", "horovodrun", "bash", "mpirun", ".venv/bin/horovodrun")
_OTHERS = (
    *("cat", "cp", "docker", "export", "grep", "mkdir", "mount", "printf", "salloc", "sbatch"),
    *("scp", "srun", "ssh", "ssh-copy-id", "ssh-keygen", "sudo", "unset"),
)
_FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)((?:    .*\n)+)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_VARIABLE = re.compile(r"[A-Z][A-Z_0-9a-z]*=")

# Blocks of other things than commands, by their first words.
NO_COMMANDS = (
    *("train.py face recognition:", "model-symbol.json model-0000.params", "train.py, classify.py"),
    *("verification unseen:", "datasets/faces/ train", "datasets/lfw/train.rec:"),
    *("10.0.0.1 10.0.0.2", "0.9 1.0", "epoch 5: images/s", "10.0.0.1 10.0.0.2 hostname"),
    *("error: host2 has another", "features [b, D]", "models/synthetic-tiny/checkpoints/"),
    *("update 40/500 loss", "time: waiting", "input is a bottleneck:", "Horovod v0.28.1:"),
    *("PReLU(x) =", "K * PReLU(x) =", "10.0.0.1 2010", "launch: host1 has all"),
    *("datasets/faces_emore/ train.rec", "launch: worker 3 on"),
)
# Parts of commands, in a sentence about them.
FRAGMENTS = (
    *("horovodrun -np 2", "horovodrun --gloo", "python -m parallel.launch --launcher ssh"),
    *("python -m parallel.launch.guard", "docker --cpus=2", "scp -r", "srun --mpi=pmix"),
    *("srun --mpi=list", "ssh host2"),
)
# The tests that a target runs; that of a newcomer runs what has a plan in ``commands``.
LONG = {
    "make cluster": "tests/hosts/test_servers.py",
    "make fuzz": "tests/fuzz/campaign.py",
    "make grouping": "tests/parallel/test_deaths.py",
    "make hosts": "tests/hosts",
    "make newcomer": "README.md",
    "make pythons": "tests/pythons/campaign.py",
    "make test": "tests",
}


class Command(NamedTuple):
    """A command, in one line and without its comment."""

    document: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}: {self.text[:60]}"


class Run(NamedTuple):
    """Where commands that begin alike are run."""

    where: str
    """A file of tests; for what takes longer than they may, a target: ``make TARGET``."""
    by: str = ""
    """The word in that file that shows it, if it is not the program's or module's last name."""


# The first beginning that fits counts. Of a launcher, the program behind it may be named.
RUN_BY: dict[str, Run] = {
    "make": Run("Makefile"),
    "PYTORCH= make": Run("tests/setup/test_install.py", "install-bench.sh"),
    "MXNET_PACKAGE= make": Run("tests/setup/test_cuda.py", "MXNET_PACKAGE"),
    "PYTHON= make": Run("make pythons"),
    "source .venv/bin/activate": Run("make newcomer"),
    "python -m pytest -q tests/partial_fc": Run("make test"),
    # The lab, whose pages are run as they stand.
    "python docs/lab/": Run("tests/lab/test_pages.py", "docs"),
    "horovodrun -np 2 python docs/lab/": Run("tests/lab/test_pages.py", "docs"),
    "bash docs/lab/": Run("tests/lab/test_pages.py", "docs"),
    "HOROVOD_TIMELINE= bash run.sh": Run("tests/lab/test_pages.py", "docs"),
    "python train.py --dataset synthetic --debug": Run("tests/lab/test_pages.py", "docs"),
    "python classify.py --dataset synthetic --num-images": Run("tests/lab/test_pages.py", "docs"),
    "horovodrun -np 2 python classify.py --dataset synthetic": Run(
        "tests/lab/test_pages.py", "docs"
    ),
    # Several hosts, which are network namespaces.
    "horovodrun -np 16 -H": Run("make hosts"),
    ".venv/bin/horovodrun -np 16 -H": Run("make hosts"),
    "HOSTS= bash run.sh": Run("make hosts"),
    "NIC= HOSTS= bash run.sh": Run("make hosts"),
    "SEND_VARIABLES= HOSTS= bash run.sh": Run("tests/setup/test_commands.py", "SEND_VARIABLES"),
    "mpirun -np 16 -H": Run("make hosts"),
    "HOST_TIMEOUT= bash run.sh": Run("tests/setup/test_commands.py", "HOST_TIMEOUT"),
    "python -m tests.hosts python -m benchmarks.scaling": Run("make hosts"),
    "NIC= python -m benchmarks.scaling -H": Run("tests/benchmarks/test_scaling.py"),
    "python -m training.checkpoint": Run("tests/hosts/test_nothing_shared.py", "gather"),
    "python -m parallel.check -H": Run("make hosts"),
    "HOSTFILE=": Run("tests/setup/test_commands.py", "run.sh"),
    # That Horovod knows these two, which it reads by itself, is looked up in its library.
    "HOROVOD_TIMELINE= HOSTS=": Run("tests/test_many_hosts.py", "test_horovod_has_the_variables"),
    "HOROVOD_AUTOTUNE=": Run("tests/test_many_hosts.py", "test_horovod_has_the_variables"),
    # Slurm and containers.
    "mpirun -np 8 -bind-to none bash config.sh": Run("tests/setup/test_slurm.py", "mpirun"),
    # One host.
    "horovodrun -np 8 -H localhost:8 bash config.sh": Run("make newcomer"),
    "horovodrun --check": Run("tests/setup/test_horovodrun.py"),
    "bash run.sh --restarts": Run("tests/setup/test_commands.py", "--restarts"),
    "NETWORK= bash run.sh --rec": Run("make newcomer"),
    "NP= bash run.sh --max-update": Run("make newcomer"),
    "NCCL_DEBUG= bash run.sh": Run("tests/setup/test_commands.py", "NCCL_DEBUG"),
    "OMP_NUM_THREADS= bash run.sh": Run("tests/setup/test_commands.py", "OMP_NUM_THREADS"),
    "NVIDIA_TF32_OVERRIDE= bash run.sh": Run("tests/setup/test_commands.py", "NVIDIA_TF32"),
    "CUDA_VISIBLE_DEVICES= NP= bash run.sh": Run("tests/setup/test_commands.py", "test_run_tells"),
    "bash run.sh": Run("tests/test_train.py", "run.sh"),
    "bash config.sh": Run("tests/test_train.py", "config.sh"),
    "python train.py --dataset synthetic": Run("make newcomer"),
    "python train.py --dataset 100w": Run("tests/newcomer/test_documents.py", "--dry-run"),
    "python train.py --dataset glint360k_8GPU_pfc01 --dry-run": Run(
        "tests/newcomer/test_documents.py", "--dry-run"
    ),
    "python train.py --help": Run("tests/newcomer/test_documents.py", "--help"),
    "python train.py": Run("tests/test_train.py", "train.py"),
    "python classify.py": Run("make newcomer"),
    "horovodrun -np 2 python classify.py --dataset mnist": Run("make newcomer"),
    "horovodrun --gloo -np 2 python classify.py --dataset mnist_cosine": Run(
        "tests/newcomer/test_documents.py", "mnist_cosine"
    ),
    "horovodrun -np 2 python classify.py --dataset cifar10 --data-dir cifar-10 --resume": Run(
        "tests/test_classify.py", "--resume"
    ),
    "horovodrun -np 8 python classify.py": Run("make newcomer"),
    # Parameter servers.
    "python -m parallel.autogroup -n 4 -s 1 -H": Run("make cluster"),
    "python -m parallel.autogroup": Run("make newcomer"),
    "python -m parallel.launch -n 4 -s 1": Run("make newcomer"),
    "python -m parallel.launch -n 4 -s 2 -H": Run("make cluster"),
    "python -m parallel.launch": Run("make grouping"),
    "bash examples/": Run("tests/examples/test_scripts.py", "examples"),
    # Modules.
    "python -m data.align": Run("tests/newcomer/test_documents.py", "SESSION"),
    "python -m data.pack": Run("tests/newcomer/test_documents.py", "SESSION"),
    "python -m data.unpack": Run("tests/newcomer/test_documents.py", "SESSION"),
    "python -m data.clean": Run("tests/data/clean/test_command.py", "command.main"),
    "python -m data.inspect": Run("tests/newcomer/test_documents.py", "SESSION"),
    "python -m evaluation.verification --model models/run/model": Run(
        "tests/evaluation/verification/test_command.py", "--far"
    ),
    "python -m evaluation.verification": Run("make newcomer"),
    "python -m evaluation.embed": Run(
        "tests/evaluation/embed/test_command.py", "evaluation.embed"
    ),
    "horovodrun -np 2 python -m evaluation.embed": Run(
        "tests/evaluation/embed/test_command.py", "test_two_ranks_under_horovodrun"
    ),
    "python -m evaluation.ijb": Run("tests/evaluation/ijb/test_command.py", "evaluation.ijb"),
    "horovodrun -np 2 python -m evaluation.ijb": Run(
        "tests/evaluation/ijb/test_command.py", "test_two_ranks_under_horovodrun"
    ),
    "python -m evaluation.compare": Run("tests/evaluation/test_compare.py", "compare.main"),
    "python -m evaluation.search": Run("tests/evaluation/test_search.py", "command.main"),
    "python -m evaluation.report": Run(
        "tests/evaluation/report/test_command.py", "report.main"
    ),
    "python -m evaluation.export --model models/run/model,0 --dtype": Run(
        "tests/evaluation/export/test_command.py", "test_forms"
    ),
    "python -m evaluation.export --model models/run/model,0 --format torch": Run(
        "tests/evaluation/export/test_torch.py", "--format"
    ),
    "python -m evaluation.export --from-torch": Run(
        "tests/evaluation/export/test_torch.py", "--from-torch"
    ),
    "python -m evaluation.export": Run("make newcomer"),
    "python -m runtime.gpu_check": Run("tests/runtime/test_gpu_check.py"),
    "python -m runtime.environment": Run("tests/newcomer/test_documents.py", "environment"),
    # Hours with these sizes; the tests have the same options with small ones.
    "python -m benchmarks.backbone": Run("tests/benchmarks/test_backbone.py"),
    "python -m benchmarks.center_store": Run("tests/benchmarks/test_center_store.py"),
    "python -m benchmarks.checkpoint": Run("tests/benchmarks/test_checkpoint.py"),
    "python -m benchmarks.classifiers": Run("tests/benchmarks/test_classifiers.py"),
    "python -m benchmarks.cleaning": Run("tests/benchmarks/test_cleaning.py"),
    "python -m benchmarks.distillation": Run("tests/benchmarks/test_distillation.py"),
    "python -m benchmarks.end_to_end": Run("tests/benchmarks/test_end_to_end.py"),
    "python -m benchmarks.grouping": Run("tests/benchmarks/test_grouping.py"),
    "python -m benchmarks.input": Run("tests/benchmarks/test_input.py"),
    "python -m benchmarks.kernels": Run("tests/benchmarks/test_kernels.py"),
    "python -m benchmarks.learning": Run("tests/benchmarks/test_learning.py"),
    "python -m benchmarks.identities": Run("tests/benchmarks/test_identities.py"),
    "python -m benchmarks.plan": Run("tests/benchmarks/test_plan.py"),
    "python -m benchmarks.precision": Run("tests/benchmarks/test_precision.py"),
    "python -m benchmarks.scaling": Run("tests/benchmarks/test_scaling.py"),
    "python -m benchmarks.shards": Run("tests/benchmarks/test_shards.py", "shards_benchmark"),
    "python -m benchmarks.verification": Run("tests/benchmarks/test_verification.py"),
    "horovodrun -np 2 python -m benchmarks.sync_bn": Run("tests/benchmarks/test_sync_bn.py"),
    "python -m tests.fuzz --reproduce": Run("make fuzz"),
}

# What stands in place of a test: no Docker, no Slurm, no second machine with a password, no root.
BY_HAND: dict[str, str] = {
    "docker": "tests/test_many_hosts.py compares the image's file with the installer",
    "sbatch": "tests/setup/test_slurm.py runs the script as a task would, with stand-ins of Slurm",
    "salloc": "tests/setup/test_slurm.py",
    "srun": "tests/setup/test_slurm.py",
    "ssh-keygen": "tests/support/hosts.py makes keys in the same way for two hosts",
    "ssh-copy-id": "tests/support/hosts.py writes what it would write",
    "ssh": "tests/hosts/test_check.py",
    "export OMPI_MCA_": "tests/hosts/test_ports.py trains with these variables",
    "unset": "tests/test_train.py begins without them",
    "mkdir": "for the keys of containers and the RAM disk, as the lines behind it",
    "printf": "for the keys of containers",
    "sudo chown": "for the keys of containers; tests/test_many_hosts.py has the user's number",
    "mount": "needs root; tests/test_train.py trains on a set in another folder",
    "cat": "joins the parts of a download",
    "cp": "copies a set to a RAM disk",
    "grep": "tests/newcomer/test_documents.py",
}


def commands() -> Iterator[Command]:
    """All commands, in the order of the documents; what has an ellipsis is an illustration."""
    for path in DOCUMENTS:
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        for _, language, block in _FENCE.findall(text):
            if language == "":
                yield from (Command(name, line) for line in of_block(block))
        prose = _FENCE.sub("", text)
        if path.name == "porting.md":
            # Its tables have the commands of other programs; tests/test_porting.py walks them.
            prose = re.sub(r"^\|.*$", "", prose, flags=re.MULTILINE)
        for block in _INDENTED.findall(prose):
            yield from (Command(name, line) for line in of_block(block))
        for span in _SPAN.findall(_INDENTED.sub("", prose)):
            words = span.split()
            is_whole = len(words) > 1 and not re.search(r"…|\.\.\.|\|", span)
            if is_command(words) and is_whole and " ".join(words) not in FRAGMENTS:
                yield Command(name, " ".join(words))


def of_block(block: str) -> list[str]:
    """The commands of a block, each in one line.

    Raises:
        LookupError: a line is no command, and the block is not one of ``NO_COMMANDS``.
    """
    joined = " ".join(block.split())
    if joined.startswith(NO_COMMANDS):
        return []
    lines = re.sub(r"\\\n", " ", block).splitlines()
    if any(line.startswith("$ ") for line in lines):
        # What is printed stands behind it.
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    found = []
    for line in lines:
        words = re.split(r"(?:^|\s)#", line)[0].split()
        if not words:
            continue
        if not is_command(words):
            raise LookupError(
                f"{' '.join(words)!r} begins with no program that is known, and the block "
                f"{joined[:40]!r} is not in NO_COMMANDS of {__name__}"
            )
        found.append(" ".join(words))
    return found


def is_command(words: list[str]) -> bool:
    """Whether the first word that is no variable is a program."""
    program = next((word for word in words if not _VARIABLE.match(word)), "")
    return program in (*_OURS, *_OTHERS)


def row_of(command: str) -> str:
    """The row of a command in ``RUN_BY`` or ``BY_HAND``, by how it begins.

    Raises:
        LookupError: there is none.
    """
    program = next(word for word in command.split() if not _VARIABLE.match(word))
    if program in _OTHERS:
        for beginning in BY_HAND:
            if command.startswith(beginning):
                return beginning
    plain = re.sub(r"^((?:\w+=\S* )*)", lambda m: re.sub(r"=\S*", "=", m[1]), command)
    for beginning in RUN_BY:
        if plain.startswith(beginning):
            return beginning
    raise LookupError(f"nothing runs {command!r}: add it to RUN_BY or BY_HAND of {__name__}")
