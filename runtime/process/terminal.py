r"""Text that no name in it can turn into commands for the terminal.

Names of files, folders and sets come from others. An escape sequence in one moves the cursor,
changes the title or the keys of the terminal; a bidirectional override shows another name than
the file has. Such characters are written as Python writes them, ``\x1b`` or ``\u202e``; letters of
any script stay as they are.
"""

from __future__ import annotations

import io
from typing import Optional, TextIO

# C0, DEL and C1; line and paragraph separators; surrogates, which stand for bytes of no UTF-8;
# marks, embeddings, overrides and isolates of bidirectional text (Unicode 15, UAX 9, table 4).
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000))
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LINE_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*_CONTROLS, *_BIDIRECTIONAL)}
_ESCAPES = {code: text for code, text in _LINE_ESCAPES.items() if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Return a text of several lines with control characters and text direction escaped."""
    return text.translate(_ESCAPES)


def one_line(text: str) -> str:
    """Return a text with tabs and line breaks escaped as well."""
    return text.translate(_LINE_ESCAPES)


def print_line(text: str, *, file: Optional[TextIO] = None, flush: bool = False) -> None:
    """Print a text as one line, on the standard output unless ``file`` is given."""
    print(one_line(text), file=file, flush=flush)


class PrintableOutput(io.TextIOWrapper):
    """A standard output or error that escapes what it is given."""

    def write(self, text: str, /) -> int:
        """Write a text with control characters and text direction escaped."""
        # A progress bar starts each of its writes with a carriage return.
        start = text[:1] if text.startswith("\r") else ""
        super().write(start + printable(text[len(start) :]))
        return len(text)
