"""Programs of a page, in-process: what MXNet loads, and what MkDocs needs of the documents."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.setup.conftest import loaded


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
