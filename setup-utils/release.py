"""Make a release: a tag whose message is what CHANGELOG.md says of it (``make release``).

The version is that of CITATION.cff. Nothing is sent anywhere: pushing the tag is up to its owner.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from runtime.errors import ConfigError, run_program  # noqa: E402

_SECTION = re.compile(r"^## (\S+) \(([^)]*)\)\n+(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def main() -> None:
    """Tag the commit that is checked out.

    Raises:
        ConfigError: files have changed since the last commit, or there is such a tag.
    """
    version, date, notes = read(ROOT)
    if changed := _git("status", "--porcelain"):
        first = changed.splitlines()[0].split(maxsplit=1)[1]
        raise ConfigError(f"{first} differs from the last commit; commit first")
    name = f"v{version}"
    if _git("tag", "--list", name):
        raise ConfigError(f"there is a tag {name} already; give the release another version")
    message = f"{version} ({date})\n\n{notes}\n"
    _git("tag", "--annotate", name, "--cleanup=verbatim", "--message", message)
    print(f"tagged {name}; to publish it: git push origin {name}")


def read(root: Path) -> tuple[str, str, str]:
    """Return the version that the files describe, the day of its release, its notes in Markdown.

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
    return version, date, notes.strip()


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigError(f"git {arguments[0]} in {ROOT} failed: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    run_program(main)
