"""Every command of the documents.

A command is a line of a fenced block, or an inline span, that begins with the name of a program. A
block of the documents has commands, or it is in ``NO_COMMANDS``; so nothing that looks like neither
gets in.
"""

from __future__ import annotations

import re
from pathlib import Path

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


def commands_of(path: Path) -> list[str]:
    """The commands of a document; what has an ellipsis is an illustration."""
    text = path.read_text(encoding="utf-8")
    blocks = [block for _, language, block in _FENCE.findall(text) if not language]
    prose = _FENCE.sub("", text)
    if path.name == "porting.md":
        # Its tables have the commands of other programs, with tests/test_porting.py.
        prose = re.sub(r"^\|.*$", "", prose, flags=re.MULTILINE)
    found = [line for block in [*blocks, *_INDENTED.findall(prose)] for line in of_block(block)]
    for span in _SPAN.findall(_INDENTED.sub("", prose)):
        words = span.split()
        is_whole = len(words) > 1 and not re.search(r"…|\.\.\.|\|", span)
        if is_command(words) and is_whole and " ".join(words) not in FRAGMENTS:
            found.append(" ".join(words))
    return found


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
