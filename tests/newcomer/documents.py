"""Every command of the documents: a line of a fenced block, or an inline span, that begins with the
name of a program.
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
_PROGRAMS = (
    *("make", "source", "python", "horovodrun", "bash", "mpirun", ".venv/bin/horovodrun"),
    *("cat", "cp", "docker", "export", "grep", "mkdir", "mount", "printf", "salloc", "sbatch"),
    *("scp", "srun", "ssh", "ssh-copy-id", "ssh-keygen", "sudo", "unset"),
)
_FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)((?:    .*\n)+)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_VARIABLE = re.compile(r"[A-Z][A-Z_0-9a-z]*=")
# Parts of commands, in a sentence about them.
FRAGMENTS = (
    *("horovodrun -np 2", "horovodrun --gloo", "python -m parallel.launch --launcher ssh"),
    *("python -m parallel.launch.guard", "docker --cpus=2", "scp -r", "srun --mpi=pmix"),
    *("srun --mpi=list", "ssh host2"),
)


def commands_of(path: Path) -> list[str]:
    """The commands of a document, each in one line; what has an ellipsis is an illustration."""
    text = path.read_text(encoding="utf-8")
    blocks = [block for _, language, block in _FENCE.findall(text) if not language]
    prose = _FENCE.sub("", text)
    if path.name == "porting.md":
        # Its tables have the commands of other programs, with tests/test_porting.py.
        prose = re.sub(r"^\|.*$", "", prose, flags=re.MULTILINE)
    found = []
    for block in [*blocks, *_INDENTED.findall(prose)]:
        lines = re.sub(r"\\\n", " ", block).splitlines()
        # After a prompt's command stands what it prints.
        lines = [line[2:] for line in lines if line.startswith("$ ")] or lines
        found += [re.split(r"(?:^|\s)#", line)[0].split() for line in lines]
    for span in _SPAN.findall(_INDENTED.sub("", prose)):
        words = span.split()
        if len(words) > 1 and " ".join(words) not in FRAGMENTS:
            found += [] if re.search(r"…|\.\.\.|\|", span) else [words]
    return [" ".join(words) for words in found if is_command(words)]


def is_command(words: list[str]) -> bool:
    """True if the first word that is not a variable is a program."""
    return next((word for word in words if not _VARIABLE.match(word)), "") in _PROGRAMS
