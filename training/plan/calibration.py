"""What ``--calibrate`` has measured on this host, in a file that the next plan reads.

The file lies in the user's cache folder (``XDG_CACHE_HOME``, else ``~/.cache``), one per host,
since home folders are shared by hosts that differ. It is JSON that a person can read. Whatever is
in it is checked when it is read: a plan that rests on half a file would be worse than none.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Optional, TypeVar

from runtime import environment, processors
from runtime.errors import ConfigError
from runtime.files import StagedFiles, read_text

VERSION = 1
"""Of the file; raised whenever a field changes its meaning."""

_Entry = TypeVar(
    "_Entry", "NetworkCost", "HeadRates", "StoreRates", "InputRates", "CollectiveRates"
)


@dataclass(frozen=True)
class NetworkCost:
    """A training step of a backbone: what does not depend on the images of a pass, and one image.

    The bytes are those of the whole process beside the head's, at their peak.
    """

    key: str
    """The options that it depends on, see ``network_key``."""
    base_bytes: float
    bytes_per_image: float
    base_seconds: float
    seconds_per_image: float


@dataclass(frozen=True)
class HeadRates:
    """The passes of the head, in numbers of float32 or bfloat16 per second."""

    key: str
    """See ``head_key``."""
    operations: float
    """Additions and multiplications per second of the products, two for each pair of numbers."""
    gathered: float
    """Numbers of class centers that are normalized into the sample per second."""
    updated: float
    """Numbers of class centers that the optimizer updates per second."""
    logits: float
    """Logits per second through the maximum and the exponential."""
    drawn: float
    """Rows per second that the sampler draws."""
    base_seconds: float
    """A step on almost no rows."""


@dataclass(frozen=True)
class StoreRates:
    """A store of class centers (``--center-store``)."""

    key: str
    """See ``store_key``."""
    rows: float
    """Per second of a processor that are read and written."""


@dataclass(frozen=True)
class InputRates:
    """Reading and decoding."""

    key: str
    """The folder whose disk was read."""
    read_bytes: float
    """Per second, from the disk and not from memory."""
    decoded: float
    """Images of 112 x 112 per second and thread."""


@dataclass(frozen=True)
class CollectiveRates:
    """Allreduces of Horovod between the ranks of this host."""

    key: str
    base_seconds: float
    """Of one small array."""
    sent_bytes: float
    """Per second, that a rank sends."""


_KINDS: Mapping[str, Any] = {
    "networks": NetworkCost,
    "heads": HeadRates,
    "stores": StoreRates,
    "inputs": InputRates,
    "collectives": CollectiveRates,
}


@dataclass(frozen=True)
class Calibration:
    """All that was measured on a host; each entry holds for its ranks and their threads."""

    processor: str
    networks: tuple[NetworkCost, ...] = ()
    heads: tuple[HeadRates, ...] = ()
    inputs: tuple[InputRates, ...] = ()
    collectives: tuple[CollectiveRates, ...] = ()
    stores: tuple[StoreRates, ...] = ()

    def added(self, kind: str, entry: Any) -> Calibration:
        """With an entry in place of the former one of its key."""
        others = [one for one in getattr(self, kind) if one.key != entry.key]
        changed: dict[str, Any] = {kind: (*others, entry)}
        return replace(self, **changed)


def find(entries: tuple[_Entry, ...], key: str) -> Optional[_Entry]:
    """The entry of this key."""
    return next((entry for entry in entries if entry.key == key), None)


def path() -> Path:
    """The file of this host."""
    home = environment.variables().get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "partial-fc" / f"calibration-{platform.node() or 'host'}.json"


def read() -> Calibration:
    """What was measured here; nothing if nothing was, or if the processor is another one by now.

    Raises:
        ConfigError: the file cannot be read, or is not what ``write`` writes.
    """
    file, processor = path(), processors.model()
    try:
        content = json.loads(read_text(file))
    except FileNotFoundError:
        return Calibration(processor)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read ({error.strerror}): it has what --calibrate measured; make it "
            "readable or remove it"
        ) from None
    except (ValueError, RecursionError):
        raise _damaged(file, "it is no JSON") from None
    if not isinstance(content, dict):
        raise _damaged(file, "it is no table")
    if content.get("version") != VERSION:
        raise _damaged(file, f"its version is {content.get('version')!r}, not {VERSION}")
    if not isinstance(content.get("processor"), str):
        raise _damaged(file, "it does not name its processor")
    found = {kind: _entries(file, content, kind) for kind in _KINDS}
    if content["processor"] != processor:
        return Calibration(processor)
    return Calibration(processor, **found)


def write(calibration: Calibration) -> None:
    """Replace the file of this host.

    Raises:
        ConfigError: the folder cannot be written.
    """
    file = path()
    content = {"version": VERSION, "host": platform.node(), **asdict(calibration)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with StagedFiles() as files:
            files.open(file).write(json.dumps(content, indent=1).encode() + b"\n")
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written ({error.strerror}), where --calibrate keeps what it "
            "measures; set XDG_CACHE_HOME to a folder in which you may write"
        ) from None


def _entries(file: Path, content: Mapping[str, Any], kind: str) -> tuple[Any, ...]:
    # An earlier version had not all kinds.
    entries = content.get(kind, [])
    if not isinstance(entries, list):
        raise _damaged(file, f"{kind!r} is no list")
    return tuple(_entry(file, kind, entry) for entry in entries)


def _entry(file: Path, kind: str, entry: Any) -> Any:
    kind_of_entry = _KINDS[kind]
    names = [field.name for field in fields(kind_of_entry)]
    if not isinstance(entry, dict) or set(entry) != set(names):
        raise _damaged(file, f"an entry of {kind!r} has not the fields {', '.join(names)}")
    for name, value in entry.items():
        if name == "key":
            is_right = isinstance(value, str)
        else:
            is_number = type(value) in (int, float) and math.isfinite(value)
            # What costs nothing may be 0, a speed may not.
            is_right = is_number and (value > 0 or (value == 0 and name.startswith("base_")))
        if not is_right:
            raise _damaged(file, f"{name!r} of {kind!r} is {str(value)[:40]!r}")
    return kind_of_entry(**entry)


def _damaged(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} is not what --calibrate writes: {why}; remove it and measure again with "
        "--dry-run --calibrate"
    )
