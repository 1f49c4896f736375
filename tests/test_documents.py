"""The documents, the image, and the site; ``tests/newcomer`` has the commands of the documents.

Tables of docs/porting.md have the word of another program in the first column, in the second what
to type here, or why not. A comment before each says what is in it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import namedtuple
from collections.abc import Callable
from fnmatch import fnmatch
from functools import lru_cache
from itertools import chain
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

import backbones
from backbones import classifiers
from evaluation.ijb.__main__ import main as evaluate_ijb
from parallel.launch.options import parse
from parallel.parameter_server.assignment import SCHEMES
from partial_fc.options import LOSSES
from runtime.errors import ConfigError
from tests.support.typed import PROGRAMS, accept, check, names_of
from training.config import images
from training.config.presets import PRESETS, RECIPES

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = {
    path: path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")))
}
ROOMS = ("backbones", "data", "evaluation", "parallel", "partial_fc", "runtime", "training")
REFERENCE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|sh|md))(?:::(\w+))?`")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@lru_cache(maxsize=None)
def names_in(path: Path) -> frozenset[str]:
    """Return the classes, functions and values at the top of a file."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        named = getattr(node, "targets", [getattr(node, "target", node)])
        found.update(getattr(one, "id", getattr(one, "name", "")) for one in named)
    return frozenset(found)


def test_files_and_names_in_documents_exist() -> None:
    folders = (*ROOMS, "benchmarks", "docs", "examples", "hosts", "setup-utils", "tests")
    inside = chain.from_iterable((ROOT / folder).rglob("*") for folder in folders)
    everything = {path.name for path in (*ROOT.iterdir(), *inside) if path.is_file()}
    wrong = []
    for document, text in DOCUMENTS.items():
        for path, name in REFERENCE.findall(_FENCE.sub("", text)):
            has_file = (ROOT / path).is_file() if "/" in path or name else path in everything
            if not has_file or (name and name not in names_in(ROOT / path)):
                wrong.append(f"{document.name}: {path} {name}")
    assert not wrong, "\n".join(wrong)


def test_links_lead_somewhere() -> None:
    wrong = []
    for document, text in DOCUMENTS.items():
        for target, anchor in _LINK.findall(text):
            path = (document.parent / target).resolve() if target else document
            if target.startswith("http") or (path.exists() and not anchor):
                continue
            titles = re.findall(r"^#+ (.*)$", DOCUMENTS.get(path, ""), re.MULTILINE)
            # As GitHub makes an anchor of a title.
            plain = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            if anchor not in plain:
                wrong.append(f"{document.name}: {target}#{anchor}")
    assert not wrong, "\n".join(wrong)


def test_the_tests_that_the_promises_name_exist() -> None:
    """Names may be cut off with an ellipsis at either end."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    known = "\n".join(name for text in sources for name in re.findall(r"def (test_\w+)", text))
    named = re.findall(r"`((?:…|test_)\w*…?)`", DOCUMENTS[ROOT / "docs/reliability.md"])
    assert len(named) > 5
    patterns = [re.sub("^…|…$", ".*", name) for name in named]
    wrong = [one for one in patterns if not re.search(f"^{one}$", known, re.MULTILINE)]
    assert not wrong, "\n".join(wrong)


def test_documents_name_every_row() -> None:
    wanted = {
        # The presets of made-up identities are named by the first and the last.
        "docs/training.md": [*RECIPES, *(name for name in PRESETS if name[0].isalpha())],
        # All iResNets exist with squeeze and excitation, which one line says.
        "docs/backbones.md": [name.replace(backbones.SE, "") for name in backbones.names()],
        "docs/grouping-sgd.md": SCHEMES,
    }
    for path, names in wanted.items():
        text = DOCUMENTS[ROOT / path]
        missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
        assert not missing, f"{path} says nothing of {missing}"
    mathematics = DOCUMENTS[ROOT / "docs/partial-fc.md"].lower()
    assert [name for name in LOSSES if name != "softmax" and name not in mathematics] == []


DOCUMENT, DOCKERFILE, INSTALLER, IGNORED, KEPT_OUT = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("docs/many-hosts.md", "Dockerfile", "setup-utils/install.sh", ".gitignore",
                 ".dockerignore")
)  # fmt: skip
# Instructions of the image, each on one line.
LINES = re.sub(r"^#.*\n|\\\n\s*", "", DOCKERFILE, flags=re.M)


def test_what_the_installer_runs_is_copied_before_it() -> None:
    before = LINES[: LINES.index("install.sh")]
    copied = " ".join(re.findall(r"^COPY (.*)$", before, re.MULTILINE)).split()
    scripts = "".join(path.read_text() for path in (ROOT / "setup-utils").glob("install*.sh"))
    modules = re.findall(r"python\" -m (runtime\.\w+)", scripts)
    files = [f"{module.replace('.', '/')}.py" for module in modules]
    assert not {*files, "requirements.lock", "requirements-single.lock", "setup-utils"} - {*copied}


@pytest.mark.parametrize("text", [DOCUMENT, DOCKERFILE], ids=["document", "Dockerfile"])
def test_the_image_for_gpus_has_the_version_of_its_package(text: str) -> None:
    text = re.sub(r"\\\n[# ]*", "", text)
    (cuda,) = re.findall(r"BASE=nvidia/cuda:(\d+\.\d+)\.\d+-cudnn8-devel-ubuntu20\.04", text)
    (package,) = re.findall(r"MXNET_PACKAGE=(mxnet-cu\d+)", text)
    assert package == f"mxnet-cu{cuda.replace('.', '')}" and package in INSTALLER
    assert re.search(r"PYTHON=python3\.9\b", text), "that of Ubuntu 20.04 is 3.8"


def test_what_git_ignores_and_keys_do_not_get_into_the_image() -> None:
    kept_out, ignored = set(KEPT_OUT.split()), [name.strip("/") for name in IGNORED.split()]
    assert [name for name in ignored if not {name, f"**/{name}"} & kept_out] == []
    assert {".git", "keys", "**/*.pem", "**/id_ed25519*", "**/.ssh"} <= kept_out
    assert "mkdir keys && ssh-keygen -t ed25519 -N '' -f keys/id_rsa" in DOCUMENT
    for path in ("keys/id_rsa", "keys/known_hosts", "a/id_ed25519", "a/b.pem", ".ssh/config"):
        assert any(fnmatch(part, one) for part in path.split("/") for one in ignored), path


def test_the_job_for_kubernetes_fits_the_image() -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    job = yaml.safe_load(block)["spec"]
    launcher, worker = (
        job["mpiReplicaSpecs"][name]["template"]["spec"]["containers"][0]
        for name in ("Launcher", "Worker")
    )
    assert launcher["command"] == ["bash", "run.sh"]
    assert launcher["env"][0]["name"] == "HOSTFILE"
    (ssh,) = re.findall(r"^RUN .*sshd_trainer.*$", LINES, re.MULTILINE)
    assert f">{worker['command'][-1]} " in ssh
    assert f"'HostKey {job['sshAuthMountPath']}/id_rsa'" in ssh
    # Server and client of the image speak on one port, and mpirun accepts their user.
    assert re.findall(r"Port (\d+)", ssh) == ["2222", "2222"]
    assert re.findall(r"^USER (.*)$", LINES, re.MULTILINE) == ["trainer"]
    assert " ".join(worker["command"]) in DOCUMENT.replace("\\\n", "")


MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning is an error of MkDocs."""
    if not MKDOCS.exists():
        pytest.skip("needs .venv-docs: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [str(MKDOCS), "--quiet", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr + done.stdout == "", done.stdout + done.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|link|iframe)[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)")
    found = {page.name: loaded.findall(page.read_text()) for page in site.rglob("*.html")}
    assert len(found) > 40 and {name: urls for name, urls in found.items() if urls} == {}


def test_lists_are_lists_for_the_site_too() -> None:
    """Python's Markdown wants a list after an empty line, and the blocks of an item in column 4."""
    wrong = re.compile(r"\n\n {1,3}\S.*|^(?![-\d ]).+\n(?:[-*]|\d+\.) .*", re.MULTILINE)
    for path, text in DOCUMENTS.items():
        assert not wrong.findall(_FENCE.sub("", text)), path


def test_the_readme_is_short() -> None:
    assert DOCUMENTS[ROOT / "README.md"].count("\n") <= 150


TEXT = DOCUMENTS[ROOT / "docs/porting.md"]
PAIRS = {"--rec-val": "--rec-train"}
_TABLE = re.compile(r"<!-- ([a-z. ]+) -->\n\n((?:\|.*\n)+)")
NETWORKS = {
    "networks": ("train.py", "--network", backbones.names()),
    "models": ("classify.py", "--model", classifiers.names()),
}
SYNTHETIC = ("--dataset", "synthetic")
Row = namedtuple("Row", "kind there here why", defaults=[""])


def rows(kind: str) -> list[Row]:
    tables = [table.splitlines()[2:] for named, table in _TABLE.findall(TEXT) if named == kind]
    found = [Row(kind, *cells_of(line)[:3]) for line in chain(*tables)]
    assert len(found) > 3, kind
    return found


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def spans(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def refusal(parse_line: Callable[[list[str]], object], *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_line([*words])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check_commands(row: Row, folder: Path, program: str = "") -> list[str]:
    """Check what the second column says to type; returns the first word of each."""
    for command in spans(row.here):
        if command.startswith("--"):
            accept(program, command.split(), folder)
        else:
            check(command, folder)
    assert program or spans(row.here)
    return [command.split()[0] for command in spans(row.here)]


def check_option(row: Row, folder: Path) -> None:
    program = row.kind.rpartition(" ")[2]
    typed = check_commands(row, folder, program)
    for there in spans(row.there):
        is_variable = re.fullmatch("[a-z_0-9]+", there)
        name, *values = (f"--{there.replace('_', '-')}" if is_variable else there).split()
        if name in names_of(program):
            assert typed in ([name], [PAIRS.get(name)])
        elif program == "classify.py" and name in images.SYNONYMS:
            assert typed == [images.SYNONYMS[name]]
            accept(program, [name, *values], folder)
        else:
            message = refusal(PROGRAMS[program].parse, *SYNTHETIC, name, *values)
            assert f"{name} is not an option here: {'' if typed else row.here}" in message
            assert all(one in message for one in typed)


def check_option_of_evaluation(row: Row, _: Path) -> None:
    """Each is refused with the second column, whose options exist."""
    for there in spans(row.there):
        message = refusal(evaluate_ijb, *there.split())
        assert f"{there.split()[0]} is not an option here: " in message and row.here in message
    others = "".join(text for text in DOCUMENTS.values() if text is not TEXT)
    assert all(name in others for name in re.findall("--[a-z-]+", row.here))


def check_option_of_the_launcher(row: Row, _: Path) -> None:
    """Each is taken for what the second column says, or refused with it."""

    def parse_options(words: list[str]) -> object:
        return parse("", "", ["-n", "2", *words, "--", "python", "x.py"])

    here = spans(row.here)
    for there in spans(row.there):
        name, *values = there.split()
        if row.why.startswith(("both", "all", "taken")):
            (typed,) = here
            assert parse_options([name, *values]) == parse_options(typed.split())
            continue
        assert name in refusal(parse_options, name, *values)


def check_network(row: Row, _: Path) -> None:
    program, option, known = NETWORKS[row.kind]
    here = spans(row.here)
    for name in spans(row.there):
        if row.here == "the same":
            assert name in known
            continue
        message = refusal(PROGRAMS[program].parse, *SYNTHETIC, "--network", name)
        assert f"{option} {name!r} does not exist here" in message
        assert set(here) <= set(known) and (here or row.here in message)
        assert name.startswith("iresnet") or all(one in message for one in here[:1])


CHECKS: dict[str, Callable[[Row, Path], object]] = {
    "options of train.py": check_option,
    "options of classify.py": check_option,
    "options of evaluation": check_option_of_evaluation,
    "options of the launcher": check_option_of_the_launcher,
    **dict.fromkeys(NETWORKS, check_network),
    "commands": check_commands,
}


def test_every_table_has_a_check() -> None:
    others = {"files", "variables", "output"}
    assert {kind for kind, _ in _TABLE.findall(TEXT)} == {*CHECKS, *others}
    # Those without a comment are the presets, which have a test of their own, and the differences.
    assert TEXT.count("<!-- ") == len(_TABLE.findall(TEXT))
    assert len(re.findall(r"^\|[-| :]+\|$", TEXT, re.MULTILINE)) == TEXT.count("<!-- ") + 4


@pytest.mark.parametrize("kind", CHECKS)
def test_what_a_table_says_is_so(kind: str, tmp_path: Path) -> None:
    wrong = []
    for row in rows(kind):
        try:
            CHECKS[kind](row, tmp_path)
        except (AssertionError, ConfigError, pytest.fail.Exception) as error:
            wrong.append(f"{row.there}: {error}")
    assert not wrong, "\n".join(wrong)


def test_presets_are_those_of_the_tables() -> None:
    text = TEXT.partition("## Presets")[2].partition("### Differences")[0]
    lines = [line for line in text.splitlines() if re.match(r"\| `(?!--dataset`)", line)]
    tables = [(name, cells_of(line)) for line in lines for name in spans(line.split("|")[1])]
    recipes = [name for name in RECIPES if name != "synthetic"]
    assert sorted(name for name, _ in tables) == sorted([*PRESETS, *recipes])
    for name, cells in tables:
        if len(cells) == 8:
            recipe = PRESETS[name]
            steps = " ".join(f"{step:,}" for step in recipe.lr_steps)
            targets = " ".join(recipe.get("val_targets", ())) or "none"
            numbers = [f"{recipe.max_update:,}", str(recipe.sample_ratio)]
            assert cells[4:] == [f"{recipe.lr}, {steps}", *numbers, targets]
            assert "debug" in recipe or cells[3] == f"{recipe.num_classes:,}"
        elif len(cells) == 7:
            row = RECIPES[name]
            assert cells[1:4] == [row.model, str(row.batch_size), str(row.lr)]
            assert cells[5] == str(row.epochs)
