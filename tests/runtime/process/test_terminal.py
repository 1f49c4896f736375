from __future__ import annotations

import io

import pytest

from runtime.process.terminal import PrintableOutput, one_line, printable


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m\x7f\x85", r"\x9b31m\x7f\x85"),
        ("a\rb\x00\x08", r"a\rb\x00\x08"),
        ("photo_\u202egpj.exe", r"photo_\u202egpj.exe"),
        ("a\udcff\ud800", r"a\udcff\ud800"),
        ("\u2066\u2069\u200f\u061c\u2028", r"\u2066\u2069\u200f\u061c\u2028"),
        ("\x1f\x9f\u2029\u200e\u202a\udfff", r"\x1f\x9f\u2029\u200e\u202a\udfff"),
        (" ~\u2027\u202f\u2065\u206a\ud7fb\ue000", None),
        # Legal text: Latin, Han, Arabic, a family joined by ZWJ, no-break and ideographic spaces.
        ("Zoë 漢字 علي 👨\u200d👩\u200d👧 a\u00a0b\u3000c", None),
    ],
)
def test_control_characters_are_shown_and_letters_are_kept(name: str, shown: str | None) -> None:
    assert printable(name) == one_line(name) == (shown or name)


def test_lines_are_kept_in_a_text_and_the_carriage_return_of_a_progress_bar() -> None:
    assert printable("a\tb\nc\x1b") == "a\tb\nc\\x1b"
    assert one_line("a\tb\nc") == r"a\tb\nc"
    raw = io.BytesIO()
    output = PrintableOutput(raw, encoding="utf-8", newline="\n", write_through=True)
    print("set \x1b[2Jé\rerror: forged", file=output)
    assert output.write("\r 50%|█\x1b") == 8
    output.writelines(["\x9b\n"])
    assert raw.getvalue().decode() == "set \\x1b[2Jé\\rerror: forged\n\r 50%|█\\x1b\\x9b\n"
