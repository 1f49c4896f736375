"""The pages of the site can be read on a screen and a telephone, in light and dark."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import browser
from tests.support.browser import Browser

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[1]
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
_WIDTHS = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
_BROKEN = "return [...document.images].filter(one => !one.naturalWidth).map(one => one.src)"
_BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def site_pages():
    """The hooks of mkdocs.yml."""
    spec = importlib.util.spec_from_file_location(
        "site_pages", ROOT / "setup-utils" / "site_pages.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_items_of_lists_are_moved_to_the_fourth_column(site_pages) -> None:
    before = "1. one:\n\n   ```\n   make x\n     more\n\n   ```\n\n  two\n"
    after = "1. one:\n\n    ```\n    make x\n      more\n\n    ```\n\n    two\n"
    assert site_pages.indented("1. a\n\n   b\n2. c\n") == "1. a\n\n    b\n\n2. c\n"
    as_it_is = "```\n  kept\n```\n    four\n"
    assert site_pages.indented(before + as_it_is) == after + as_it_is


def test_links_that_leave_the_documents(site_pages) -> None:
    def on(page: str, text: str) -> str:
        file = SimpleNamespace(src_uri=page)
        return site_pages.on_page_markdown(text, page=SimpleNamespace(file=file))

    assert on("a.md", "[c](../CONTRIBUTING.md#style)") == "[c](contributing.md#style)"
    assert on("lab/a.md", "[c](../../CHANGELOG.md)") == "[c](../changelog.md)"
    assert on("lab/a.md", "[f](../faq.md)") == "[f](../faq.md)"
    assert on("a.md", "[r](../run.sh) ![p](../p.svg)") == "r ![p](../p.svg)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew; without a warning, or MkDocs fails."""
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


@pytest.mark.browser
@pytest.mark.skipif(not browser.is_installed(), reason="needs chromium and chromedriver")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_can_be_read(site: Path, scheme: str) -> None:
    backgrounds = set()
    # That of a server for what is missing has its paths.
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    # A window of its own: the theme remembers the first scheme that it has seen.
    with Browser() as window:
        for page in pages:
            for width in (1280, 390):
                window.open(page, width=width, scheme=scheme)
                where = f"{page} {width} {scheme}"
                assert window.console() == [], where
                content, visible = window.ask(_WIDTHS)
                assert content <= visible <= width, where
                assert window.ask(_BROKEN) == [], where
            backgrounds.add(window.ask(_BACKGROUND))
    (background,) = backgrounds
    red = int(re.findall(r"\d+", background)[0])
    assert red > 200 if scheme == "light" else red < 60, background
