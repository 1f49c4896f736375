"""Programs of a page, in-process: MXNet's libraries, pages of the site, releases."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from runtime.errors import ConfigError
from tests.setup.conftest import loaded
from tests.support.launch import ROOT


@pytest.mark.parametrize(
    ("package", "runtime", "cudnn", "mistake"),
    [
        ("", 0, 0, None),
        ("11.2", 11020, 11020, None),
        ("11.7", 11080, 11000, None),
        ("11.2", 0, 11020, None),
        ("11.2", 11010, 11020, "/a/libcudart.so.11.0 is of CUDA 11.1, older than the package's 1"),
        ("11.2", 11020, 12010, "/a/libcudnn.so.8 is a cuDNN for CUDA 12.1, not for the package's"),
        ("10.2", 10020, 10010, "/a/libcudnn.so.8 is a cuDNN for CUDA 10.1, not for the package's"),
    ],
)
def test_cuda_that_does_not_fit_is_told(monkeypatch, package, runtime, cudnn, mistake) -> None:
    class Library:
        def __init__(self, path: str) -> None:
            self.cudnnGetCudartVersion: Any = lambda: cudnn

        @staticmethod
        def cudaRuntimeGetVersion(out: Any) -> int:
            # Without a GPU it fails, and leaves the number as it is.
            out._obj.value = runtime
            return 100 if runtime == 0 else 0

    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setitem(sys.modules, "mxnet", ModuleType("mxnet"))
    maps = "7f r 0 08:01 1 /a/libcudart.so.11.0\n7f r 0 08:01 1 /a/libcudnn.so.8\n7f r 0 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda path: maps)
    said = loaded("check_mxnet").main(package)
    assert said == mistake or (mistake and said.startswith(mistake))


def test_documents_are_pages_of_the_site() -> None:
    pages = loaded("site_pages")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="lab/one.md"))
    text = (
        "1. first\n   more\n\n   ```\n   code\n\n   ```\n2. second\n"
        "[a](../../CONTRIBUTING.md#style) [b](../../run.sh) [c](../data.md) ![d](../../x.svg)\n"
    )
    assert pages.on_page_markdown(text, page) == (
        "1. first\n    more\n\n    ```\n    code\n\n    ```\n\n2. second\n"
        "[a](../contributing.md#style) b [c](../data.md) ![d](../../x.svg)\n"
    )


release = loaded("release")
CITATION = "cff-version: 1.2.0\nversion: 0.2.0\ndate-released: 2026-11-24\n"
NOTES = "### Added\n\n- `train.py`: trains.\n# Not a comment of git's."
CHANGES = "# Changes\n\n## {} ({})\n\n{}\n\n## 0.1.0 (2026-01-01)\n\n- First.\n"


def shell(folder: Path, script: str) -> str:
    return subprocess.check_output(["bash", "-ec", script], cwd=folder, text=True)


def test_the_tag_holds_the_notes_of_its_version_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    changes, text = tmp_path / "CHANGELOG.md", CHANGES.format("0.2.0", "2026-11-24", NOTES)
    (tmp_path / "CITATION.cff").write_text(CITATION)
    changes.write_text(text)
    with pytest.raises(ConfigError, match="git status in .* failed: .*not a git repository"):
        release.main()
    script = "git init -q; git config user.name tests; git config user.email t@localhost"
    shell(tmp_path, f"{script}; git add .; git commit -qm release")
    changes.write_text(f"{text}- More.\n")
    with pytest.raises(ConfigError, match="CHANGELOG.md differs from the last commit"):
        release.main()
    assert shell(tmp_path, "git tag") == ""
    changes.write_text(text)
    release.main()
    assert capsys.readouterr().out.endswith("to publish it: git push origin v0.2.0\n")
    told = shell(tmp_path, "git for-each-ref refs/tags --format='%(objecttype)%0a%(contents)'")
    assert told.strip() == f"tag\n0.2.0 (2026-11-24)\n\n{NOTES}"
    with pytest.raises(ConfigError, match="there is a tag v0.2.0 already"):
        release.main()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (CHANGES.format("0.3.0", "2026-11-24", NOTES), "CITATION.cff has version 0.2.0"),
        (CHANGES.format("0.2.0", "unreleased", NOTES), r"0.2.0 is dated \(unreleased\)"),
        (CHANGES.format("0.2.0", "2026-11-25", NOTES), "2026-11-24 as date-released"),
        ("# Changes\n", "no section"),
    ],
)
def test_what_does_not_agree(tmp_path: Path, changes: str, said: str) -> None:
    (tmp_path / "CITATION.cff").write_text(CITATION)
    (tmp_path / "CHANGELOG.md").write_text(changes)
    with pytest.raises(ConfigError, match=said):
        release.read(tmp_path)


def test_the_versions_of_this_project_agree() -> None:
    version, _, _ = release.read(ROOT)
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
