"""A parser whose complaints look like all others of the program."""

from __future__ import annotations

import argparse
from typing import NoReturn

from runtime.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Reports mistakes in one line and without the usage, as a ``ConfigError``."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        raise ConfigError(f"{message.removeprefix('argument ')} (--help lists the options)")
