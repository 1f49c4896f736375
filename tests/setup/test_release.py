"""A release: what has to agree before a tag is made, and what the tag says."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from runtime.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("release", ROOT / "setup-utils/release.py")
assert _SPEC is not None and _SPEC.loader is not None
release = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(release)

NOTES = "### Added\n\n- `train.py`: trains.\n# Not a comment of git's."


def project(folder: Path, version: str = "0.2.0", date: str = "2026-11-24") -> Path:
    """A repository with a release to be made."""
    (folder / "CITATION.cff").write_text(
        "cff-version: 1.2.0\nversion: 0.2.0\ndate-released: 2026-11-24\n"
    )
    (folder / "CHANGELOG.md").write_text(
        f"# Changes\n\n## {version} ({date})\n\n{NOTES}\n\n## 0.1.0 (2026-01-01)\n\n- First.\n"
    )
    for words in (
        "init --quiet", "config user.name tests", "config user.email tests@localhost", "add .",
        "commit --quiet -m release",
    ):  # fmt: skip
        git(folder, *words.split())
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=folder, text=True)


def test_the_tag_holds_the_notes_of_its_version_alone(tmp_path: Path) -> None:
    folder = project(tmp_path)
    changes = folder / "CHANGELOG.md"
    text = changes.read_text()
    changes.write_text(f"{text}- More.\n")
    with pytest.raises(ConfigError, match="CHANGELOG.md differs from the last commit"):
        release.tag(folder, release.read(folder))
    assert git(folder, "tag") == ""
    changes.write_text(text)
    release.tag(folder, release.read(folder))
    told = git(folder, "for-each-ref", "refs/tags/v0.2.0", "--format=%(objecttype)%0a%(contents)")
    assert told.strip() == f"tag\n0.2.0 (2026-11-24)\n\n{NOTES}"
    with pytest.raises(ConfigError, match="there is a tag v0.2.0 already"):
        release.tag(folder, release.read(folder))


@pytest.mark.parametrize(
    ("version", "date", "said"),
    [
        ("0.3.0", "2026-11-24", "CITATION.cff has version 0.2.0"),
        ("0.2.0", "unreleased", r"0.2.0 is dated \(unreleased\)"),
        ("0.2.0", "2026-11-25", "2026-11-24 as date-released"),
    ],
)
def test_what_does_not_agree(tmp_path: Path, version: str, date: str, said: str) -> None:
    folder = project(tmp_path, version, date)
    with pytest.raises(ConfigError, match=said):
        release.read(folder)
    (folder / "CHANGELOG.md").write_text("# Changes\n")
    with pytest.raises(ConfigError, match="no section"):
        release.read(folder)


def test_the_versions_of_this_project_agree() -> None:
    found = release.read(ROOT)
    assert f'version = "{found.version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
