"""Headless Chromium, told what to do by chromedriver (W3C WebDriver), without a package for it.

It looks at a page in a window of a given width, in light or dark, and says what a reader would see
and what its console says.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Optional

_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def is_installed() -> bool:
    return all(map(shutil.which, ("chromium", "chromedriver")))


class Browser(AbstractContextManager["Browser"]):
    """A browser with a profile of its own."""

    def __enter__(self) -> Browser:
        with ExitStack() as stack:
            profile = stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            driver = subprocess.Popen(["chromedriver", "--port=0"], text=True, **pipes)
            stack.enter_context(driver)
            stack.callback(driver.terminate)
            found = (re.search(r"successfully on port (\d+)", line) for line in driver.stdout)
            port = next(match[1] for match in found if match)
            self._url = f"http://127.0.0.1:{port}/session"
            options = {"args": [*_ARGUMENTS, f"--user-data-dir={profile}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            session = self._post("", {"capabilities": {"alwaysMatch": wanted}})
            self._url += f"/{session['sessionId']}"
            stack.callback(self._post, "", method="DELETE")
            self._end = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def open(self, page: Path, *, width: int, scheme: str = "light") -> None:
        """Show a file in a window of this width; ``scheme`` is light or dark."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        for name, given in (("setDeviceMetricsOverride", size), ("setEmulatedMedia", media)):
            self._post("/goog/cdp/execute", {"cmd": f"Emulation.{name}", "params": given})
        self._post("/url", {"url": page.resolve().as_uri()})

    def ask(self, script: str) -> Any:
        return self._post("/execute/sync", {"script": script, "args": []})

    def console(self) -> list[str]:
        """What the console has said since it was asked last."""
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]

    def _post(self, path: str, body: Optional[dict[str, Any]] = None, method: str = "POST") -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, content, method=method)
        request.add_header("Content-Type", "application/json")
        # Not over a proxy that the machine may have.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)["value"]
