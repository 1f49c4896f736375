"""Headless Chromium, told what to do by chromedriver (W3C WebDriver), without a package for it.

It looks at a page in a window of a given width, in light or dark, and says what a reader would see
and what its console says.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Optional

PROGRAMS = ("chromium", "chromedriver")
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_HEIGHT = 900
_SECONDS = 60


def is_installed() -> bool:
    return all(map(shutil.which, PROGRAMS))


class Browser(AbstractContextManager["Browser"]):
    """A browser with a profile of its own."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._driver = subprocess.Popen(["chromedriver", "--port=0"], text=True, **pipes)
        try:
            found = (re.search(r"successfully on port (\d+)", line) for line in self._driver.stdout)
            port = next(match[1] for match in found if match)
            self._url = f"http://127.0.0.1:{port}/session"
            options = {"args": [*_ARGUMENTS, f"--user-data-dir={self._profile.name}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            session = self._post("", {"capabilities": {"alwaysMatch": wanted}})
            self._url += f"/{session['sessionId']}"
        except BaseException:
            self._end()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._post("", method="DELETE")
        finally:
            self._end()

    def open(self, page: Path, *, width: int, scheme: str = "light") -> None:
        """Show a file in a window of this width; ``scheme`` is light or dark."""
        size = {"width": width, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": width < 500}
        self._command("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._command("Emulation.setEmulatedMedia", {"features": [feature]})
        self._post("/url", {"url": page.resolve().as_uri()})

    def ask(self, script: str) -> Any:
        """What a script returns that runs in the page."""
        return self._post("/execute/sync", {"script": script, "args": []})

    def console(self) -> list[str]:
        """What the console has said since it was asked last."""
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]

    def _command(self, name: str, parameters: dict[str, Any]) -> Any:
        return self._post("/goog/cdp/execute", {"cmd": name, "params": parameters})

    def _post(self, path: str, body: Optional[dict[str, Any]] = None, method: str = "POST") -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, content, method=method)
        request.add_header("Content-Type", "application/json")
        # Not over a proxy that the machine may have.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_SECONDS) as answer:
            return json.load(answer)["value"]

    def _end(self) -> None:
        self._driver.terminate()
        self._driver.wait()
        self._driver.stdout.close()
        self._profile.cleanup()
