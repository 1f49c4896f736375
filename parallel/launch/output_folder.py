"""The folder into which a launcher writes what each rank prints, ``--output-filename``."""

from __future__ import annotations

from pathlib import Path

from runtime.errors import ConfigError


def make_output_folder(path: str) -> None:
    """Make it, if need be, before ranks start.

    Raises:
        ConfigError: it cannot be made, or is a file.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--output-filename {path[:80]} is no folder, and cannot be made ({error.strerror}); "
            "name another place"
        ) from None
