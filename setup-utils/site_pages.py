"""What MkDocs has to know of these documents, which GitHub shows as they are.

They are written for both: blocks of a list's item stand four columns in, as Python's Markdown wants
them. CONTRIBUTING.md and CHANGELOG.md stand beside ``docs``, and become pages of the site; links to
other files outside ``docs`` lead to nothing there and are text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+)([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that stand beside docs."""
    # Of .venv-docs, where MkDocs calls this.
    from mkdocs.structure.files import File

    for name, page in BESIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make a document one of the site."""
    depth = page.file.src_uri.count("/")
    return _LINK.sub(lambda link: _of_the_site(link, depth), markdown)


def _of_the_site(link: re.Match[str], depth: int) -> str:
    text, up, path, anchor = link[1], link[2].count("../"), link[3], link[4] or ""
    if up <= depth:
        return link[0]
    if path in BESIDE:
        return f"[{text}]({'../' * depth}{BESIDE[path]}{anchor})"
    return text
