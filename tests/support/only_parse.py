"""Runs a module up to the point at which its command line is understood: ``only_parse MODULE ...``.

Prints ``understood`` then. A module that ends before has no command line of its own. What is wrong
with the command line is said by the module, in its own way.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from typing import Any


class Understood(BaseException):
    """Passes every handler of errors and ends the program."""


if __name__ == "__main__":
    parse_args = argparse.ArgumentParser.parse_args

    def only(parser: argparse.ArgumentParser, *arguments: Any, **options: Any) -> None:
        parse_args(parser, *arguments, **options)
        raise Understood

    argparse.ArgumentParser.parse_args = only  # type: ignore[assignment]
    module, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Understood:
        print("understood")
