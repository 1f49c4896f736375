"""Every command of the documents is understood by its program; some are run here.

A command is a line of a fenced block, or an inline span, that begins with the name of a program.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.align.similarity import TEMPLATE
from tests.newcomer import __main__ as walk
from tests.support import typed
from tests.support.launch import ROOT, finish

pytestmark = pytest.mark.documents

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PROGRAMS = (
    *("make", "source", "python", "horovodrun", "bash", "mpirun", ".venv/bin/horovodrun"),
    *("cat", "cp", "docker", "export", "grep", "mkdir", "mount", "printf", "salloc", "sbatch"),
    *("scp", "srun", "ssh", "ssh-copy-id", "ssh-keygen", "sudo", "unset"),
)
_FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)((?:    .*\n)+)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
# Parts of commands, in a sentence about them.
FRAGMENTS = (
    *("horovodrun -np 2", "horovodrun --gloo", "python -m parallel.launch --launcher ssh"),
    *("python -m parallel.launch.guard", "docker --cpus=2", "scp -r", "srun --mpi=pmix"),
    *("srun --mpi=list", "ssh host2"),
)


def commands_of(path: Path) -> list[str]:
    """Return the commands of a document, each in one line, but for those with an ellipsis."""
    text = path.read_text(encoding="utf-8")
    blocks = [block for _, language, block in _FENCE.findall(text) if not language]
    prose = _FENCE.sub("", text)
    if path.name == "porting.md":
        # Its tables have the commands of other programs, with tests/test_documents.py.
        prose = re.sub(r"^\|.*$", "", prose, flags=re.MULTILINE)
    blocks += _INDENTED.findall(prose)
    found = [typed.text for block in blocks for typed in walk.commands(block)]
    spans = [" ".join(span.split()) for span in _SPAN.findall(_INDENTED.sub("", prose))]
    spans = [span for span in spans if " " in span and not re.search(r"…|\.\.\.|\|", span)]
    found += [span for span in spans if span not in FRAGMENTS]
    return [text for text in found if walk.program_of(text) in _PROGRAMS]


TEXTS = list(dict.fromkeys(text for path in DOCUMENTS for text in commands_of(path)))
PROGRAMS = Path(sys.executable).parent
# Of the documents, in their order: what aligns faces, and packs, unpacks and inspects sets.
_SETS = re.compile(r"python -m data\.(align|pack|unpack|inspect) ")
SESSION = [text for text in TEXTS if _SETS.match(text)]


def mistake(text: str, folder: Path) -> str:
    """Return what a program that a command starts does not understand of it, or nothing."""
    try:
        typed.check(text, folder)
    except Exception as error:
        return f"{text}: {error or type(error).__name__}"
    return ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_is_understood_by_the_programs_that_it_starts(document, tmp_path) -> None:
    wrong = [mistake(text, tmp_path) for text in dict.fromkeys(commands_of(document))]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_all_kinds_of_commands_are_found() -> None:
    assert len(TEXTS) > 90
    wanted = [
        "make train",
        "python -m benchmarks.backbone --network r50,r100,mbf",
        "python -m parallel.autogroup -n 4 -s 1 -H hosts -i eth0 --launcher ssh -- "
        "python classify.py --dataset mnist --data-dir mnist",
        "mount -t tmpfs -o size=140G tmpfs /mnt/faces",
    ]
    assert [text for text in wanted if text not in TEXTS] == []


def test_every_plan_is_of_a_command_of_the_readme() -> None:
    found = list(walk.read((ROOT / "README.md").read_text(encoding="utf-8")))
    assert found[0].text == "make train" and found[0].output and len(found) > 15
    for begin in walk.PLANS:
        assert any(typed.text.startswith(begin) for typed in found), begin


def test_what_a_program_does_not_understand_is_noticed(tmp_path) -> None:
    wrong = [
        "python train.py --dataset synthetic --margin 1,0,0.4",
        "HOST=ip1:8 bash run.sh",
        "horovodrun -np 16 -H ip1:8 bash config.sh",
        "horovodrun -np 2 python classify.py --dataset cifar11 --data-dir c",
        "python -m parallel.launch -n 4 python classify.py --kv-store dist_sync -s 1",
        "docker run --rm toolkit bash run.sh --reg /data/faces",
        "sbatch --nodes=2 --wrap 'exec bash setup-utils/slurm.sh --max-updates 1000'",
        "make trian",
    ]
    assert [text for text in wrong if not mistake(text, tmp_path)] == []


def run_as_typed(text: str, folder: Path) -> str:
    """Run a command in a folder, in which the project's modules are found."""
    variables: dict[str, Any] = {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return finish("bash", "-c", text, folder=folder, **variables).stdout


def write_images(folder: Path, names: list[str], shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(1)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / name), generator.integers(0, 256, (*shape, 3), np.uint8))


def test_the_commands_that_handle_sets(tmp_path) -> None:
    """One after the other, on twelve people with forty images each, and photographs of two."""
    faces = [f"Person_{n // 40}/Person_{n // 40}_{n % 40 + 1:04d}.jpg" for n in range(12 * 40)]
    write_images(tmp_path / "FACES", faces, (112, 112))
    for name in ("LFW", "LFW_FOLDER", "cifar10/train", "cifar10/test"):
        shutil.copytree(tmp_path / "FACES", tmp_path / name)
    pairs = "2\n" + "Person_1 1 2\nPerson_2 3 4\nPerson_1 1 Person_2 1\nPerson_3 1 Person_4 2\n"
    (tmp_path / "pairs.txt").write_text(pairs)
    photographs = ["ann/1.jpg", "bob/1.jpg"]
    write_images(tmp_path / "PHOTOGRAPHS", photographs, (200, 160))
    points = " ".join(map(str, TEMPLATE.ravel()))
    (tmp_path / "points.txt").write_text("".join(f"{name} {points}\n" for name in photographs))
    assert len(SESSION) >= 12
    # What packs comes first, and a folder that is unpacked may not exist.
    for text in sorted(SESSION, key=lambda text: "unpack" in text):
        if "unpack" in text:
            shutil.rmtree(tmp_path / "FACES")
        if "data.align" in text:
            shutil.rmtree(tmp_path / "ALIGNED", ignore_errors=True)
        run_as_typed(text, tmp_path)
    assert len(list((tmp_path / "FACES").glob("*/*.jpg"))) == len(faces)
    assert len(list((tmp_path / "ALIGNED").glob("*/*.jpg"))) == len(photographs)
    assert {path.name for path in (tmp_path / "datasets/faces").iterdir()} >= {
        "train.rec", "train.idx", "property", "holdout.bin", "lfw.bin",
    }  # fmt: skip
    assert len(list((tmp_path / "datasets/shards").glob("train-*.rec"))) == 4


def test_commands_that_only_print() -> None:
    for text in ("python train.py --help", "python -m runtime.environment", "make help"):
        assert text in TEXTS and len(run_as_typed(text, ROOT).splitlines()) > 5, text
    document = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\n(Horovod v.*?)^```$", document, re.MULTILINE | re.DOTALL)
    printed = run_as_typed("horovodrun --check", ROOT)
    # Horovod looks for a file of PyTorch's part, whether it was built or not.
    assert [line.rstrip() for line in printed.strip().splitlines()] == block.strip().splitlines()
    assert '"input is ' in (ROOT / "training/log/run_log.py").read_text(encoding="utf-8")
