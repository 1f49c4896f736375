"""The file of what was measured: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from runtime import processors
from runtime.errors import ConfigError
from training.plan import calibration
from training.plan.calibration import Calibration, CollectiveRates, NetworkCost

NETWORK = NetworkCost("tiny", 4e8, 1.5e6, 0.0, 0.25)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_is_written_is_read_where_it_was_measured(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collectives = (CollectiveRates("2 ranks", 1e-3, 1e9),)
    made = Calibration(processors.model(), networks=(NETWORK,), collectives=collectives)
    monkeypatch.setattr(platform, "node", lambda: "first")
    calibration.write(made)
    assert calibration.read() == made
    # An earlier version did not measure stores.
    content = json.loads(calibration.path().read_text())
    assert content.pop("stores") == []
    calibration.path().write_text(json.dumps(content))
    assert calibration.read() == made
    assert [path.name for path in (cache / "partial-fc").iterdir()] == ["calibration-first.json"]
    # Another host has a file of its own, and another processor has measured nothing.
    monkeypatch.setattr(platform, "node", lambda: "second")
    assert calibration.read() == Calibration(processors.model())
    calibration.write(Calibration("another one", (NETWORK,)))
    assert calibration.read() == Calibration(processors.model())
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert calibration.path().parent == Path("/home/someone/.cache/partial-fc")


def test_a_new_measurement_replaces_that_of_its_key() -> None:
    found = Calibration("p").added("networks", NETWORK)
    again = NetworkCost("tiny", 5e8, 1.5e6, 0.0, 0.25)
    found = found.added("networks", NetworkCost("mbf", 4e8, 1.0, 0.0, 1.0)).added("networks", again)
    assert [one.key for one in found.networks] == ["mbf", "tiny"]
    assert calibration.find(found.networks, "tiny") == again
    assert calibration.find(found.networks, "r50") is None


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"version": 2}, "its version is 2, not 1"),
        ({"processor": 3}, "does not name its processor"),
        ({"networks": {}}, "'networks' is no list"),
        ({"networks": [[]]}, "an entry of 'networks' has not the fields key, base_bytes"),
        ({"further": 1.0}, "an entry of 'networks' has not the fields"),
        ({"key": 1}, "'key' of 'networks' is '1'"),
        ({"base_bytes": True}, "'base_bytes' of 'networks' is 'True'"),
        ({"bytes_per_image": 0}, "'bytes_per_image' of 'networks' is '0'"),
        ({"seconds_per_image": -1.0}, "'seconds_per_image' of 'networks' is '-1.0'"),
        ({"seconds_per_image": float("nan")}, "'seconds_per_image' of 'networks' is 'nan'"),
        ({"base_seconds": float("inf")}, "'base_seconds' of 'networks' is 'inf'"),
    ],
)
def test_what_it_does_not_write_is_refused(fields: dict[str, Any], reason: str) -> None:
    calibration.write(Calibration(processors.model(), (NETWORK,)))
    content: dict[str, Any] = json.loads(calibration.path().read_text())
    for name, value in fields.items():
        place = content if name in content else content["networks"][0]
        place[name] = value
    calibration.path().write_text(json.dumps(content))
    with pytest.raises(ConfigError) as raised:
        calibration.read()
    assert reason in str(raised.value) and "remove it and measure again" in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000])
def test_what_is_no_table_is_refused(text: str) -> None:
    calibration.path().parent.mkdir()
    calibration.path().write_text(text)
    with pytest.raises(ConfigError, match="is not what --calibrate writes: it is no"):
        calibration.read()


def test_a_folder_that_cannot_be_written_is_one_line(cache: Path) -> None:
    (cache / "partial-fc").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written .* set XDG_CACHE_HOME"):
        calibration.write(Calibration("p"))
