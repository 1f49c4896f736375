"""The pages of the site and README can be read on a screen and a telephone, in light and dark."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.browser import Browser

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[1]
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
_WIDTHS = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
_BROKEN = "return [...document.images].filter(one => !one.naturalWidth).map(one => one.src)"
# About what GitHub does with a README.
_GITHUB = """<!doctype html><meta charset=utf-8><base href="{base}/">
<meta name=viewport content="width=device-width"><style>
:root {{ color-scheme: light dark }} body {{ margin: 0 auto; padding: 16px; max-width: 980px;
background: light-dark(#fff, #0d1117); font: 16px sans-serif }} img {{ max-width: 100% }}
table {{ display: block; overflow: auto }} pre {{ overflow: auto }} </style>
{content}"""
_RENDER = "import markdown, sys; print(markdown.markdown(sys.stdin.read(), extensions=%r))"
_EXTENSIONS = ["fenced_code", "tables", "sane_lists"]
_BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


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


@pytest.fixture(scope="module")
def readme(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 150, "the README is short"
    command = [str(MKDOCS.with_name("python")), "-c", _RENDER % _EXTENSIONS]
    content = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    page = tmp_path_factory.mktemp("readme") / "readme.html"
    page.write_text(_GITHUB.format(base=ROOT.as_uri(), content=content))
    return page


@pytest.mark.browser
@pytest.mark.skipif(not browser.is_installed(), reason="needs chromium and chromedriver")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_and_the_readme_can_be_read(site: Path, readme: Path, scheme: str) -> None:
    backgrounds = set()
    # That of a server for what is missing has its paths.
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    # A window of its own: the theme remembers the first scheme that it has seen.
    with Browser() as window:
        for page in (readme, *pages):
            for width in (1280, 390):
                window.open(page, width=width, scheme=scheme)
                where = f"{page} {width} {scheme}"
                assert window.console() == [], where
                content, visible = window.ask(_WIDTHS)
                assert content <= visible <= width, where
                assert window.ask(_BROKEN) == [], where
            if page == readme:
                assert window.ask("return document.images.length") == 4
            else:
                backgrounds.add(window.ask(_BACKGROUND))
    (background,) = backgrounds
    red = int(re.findall(r"\d+", background)[0])
    assert red > 200 if scheme == "light" else red < 60, background
