"""Make a release: a tag whose message is what CHANGELOG.md says of it (``make release``).

The version is that of CITATION.cff. Nothing is sent anywhere: pushing the tag is up to its owner.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from runtime.errors import ConfigError, run_program  # noqa: E402

_SECTION = re.compile(r"^## (\S+) \(([^)]*)\)\n+(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


class Release(NamedTuple):
    """A version, the date of its release, and its notes in Markdown."""

    version: str
    date: str
    notes: str


def main() -> None:
    """Tag the commit that is checked out."""
    release = read(ROOT)
    tag(ROOT, release)
    print(f"tagged v{release.version}; to publish it: git push origin v{release.version}")


def read(root: Path) -> Release:
    """The release that the files describe.

    Raises:
        ConfigError: they contradict each other, or the release has no date yet.
    """
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    found = dict(re.findall(r"^([\w-]+): (\S+)$", citation, re.MULTILINE))
    section = _SECTION.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if section is None:
        raise ConfigError("CHANGELOG.md has no section '## VERSION (DATE)'; write one")
    version, date, notes = section.groups()
    if found.get("version") != version:
        raise ConfigError(
            f"CITATION.cff has version {found.get('version')}, the first section of CHANGELOG.md "
            f"{version}; make them the same"
        )
    if not _DATE.fullmatch(date) or found.get("date-released") != date:
        raise ConfigError(
            f"{version} is dated ({date}) in CHANGELOG.md and {found.get('date-released')} as "
            "date-released in CITATION.cff; write the day of the release, such as 2026-11-24, "
            "into both"
        )
    return Release(version, date, notes.strip())


def tag(root: Path, release: Release) -> None:
    """Make the tag.

    Raises:
        ConfigError: files have changed since the last commit, or there is such a tag.
    """
    if changed := _git(root, "status", "--porcelain"):
        first = changed.splitlines()[0].split(maxsplit=1)[1]
        raise ConfigError(f"{first} differs from the last commit; commit first")
    name = f"v{release.version}"
    if _git(root, "tag", "--list", name):
        raise ConfigError(f"there is a tag {name} already; give the release another version")
    message = f"{release.version} ({release.date})\n\n{release.notes}\n"
    _git(root, "tag", "--annotate", name, "--cleanup=verbatim", "--message", message)


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigError(f"git {arguments[0]} in {root} failed: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    run_program(main)
