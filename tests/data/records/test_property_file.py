from __future__ import annotations

from pathlib import Path

import pytest

from data.records.property_file import Property, read_property
from runtime.errors import DataError


@pytest.mark.parametrize(
    "content",
    [
        b"16777216,112,96",
        b"16777216, 112 ,\t96\r\n",
        b"\xef\xbb\xbf16777216,112,96\r\n",
        b"\n \n16777216,112,96\n",
        # rec2shufrec.py of InsightFace.
        b"16777216,112,96\n490623\nshuffled\n2018-06-27 10:02:11.483209\n",
    ],
)
def test_spellings(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "property").write_bytes(content)
    assert read_property(tmp_path / "property") == Property(1 << 24, (112, 96))


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "10572,112", "10572,112,112,3", "10572 112 112", "10572.0,112,112",
        "10_572,112,112", "+10572,112,112", "0,112,112", "-1,112,112", "10572,0,112",
        "10572,112,-112", "10572,112,5000", "16777217,112,112", "9" * 5000 + ",112,112", "a,b,c",
        "10572,112,112 faces", "\u0661,112,112", "nan,112,112",
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "property").write_text(text, "utf-8")
    with pytest.raises(DataError, match="begins with .* correct it") as caught:
        read_property(tmp_path / "property")
    assert "\n" not in str(caught.value)
