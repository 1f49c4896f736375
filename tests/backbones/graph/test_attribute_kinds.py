from __future__ import annotations

import pytest

from backbones.graph.attribute_kinds import (
    Kind,
    flag,
    integer,
    one_of,
    optional,
    real,
    several,
    target_shape,
)


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (one_of("relu", "tanh"), {"tanh": "tanh"}, ["Tanh"]),
        (flag, {"true": "True", "0": "False"}, ["2", "None"]),
        (optional(flag), {"None": "None", "1": "True"}, ["2"]),
        # MXNet makes 4294967295 of -1.
        (integer(1, 7), {"7": "7", "3L": "3"}, ["8", "0", "-1", "1.0", "0x1", "١"]),
        (integer(0, 7), {"-0": "0"}, ["-1", "8"]),
        # Python reads no number with leading zeros.
        (
            real(0, 9),
            {"2e-05": "2e-05", "1.": "1.", "007": "7", "00": "0", "0.05": "0.05"},
            ["9.5", "nan"],
        ),
        (real(-9, 9), {"-00.50": "-0.50"}, ["-9.5"]),
        (real(-1e300, 1e300), {"1": "1"}, ["inf", "1e999", "1_0"]),
        (
            several(integer(1, 1024), 0, 2),
            {"[3L, 3L]": "(3, 3)", "(3,5)": "(3, 5)", "()": "()"},
            ["(3,)", "(3, 3, 3)", "(3, )3", "(,)", "(0, 3)", "3"],
        ),
        (several(integer(1, 9), 1, is_bare_allowed=True), {"3": "3"}, ["0"]),
        (several(integer(1, 9), 1), {"[3]": "(3,)"}, ["3"]),
        (
            target_shape,
            {"(0, -1)": "(0, -1)", "(0, -4, 2, -1, -2)": "(0, -4, 2, -1, -2)", "(8, 6)": "(8, 6)"},
            [
                # MXNet divides by the other factor.
                *("(-4, 0, -1)", "(0, -4, -1, 0)", "(-4, -1, -1)", "(-4, -2, 3)", "(-4, 2)"),
                # It writes the size of -1 beyond the end of the shape.
                *("(-4, 1, 2, -4, 1, 2, -1)", "(-2, -1)", "(-1, -1)"),
                # It takes any other negative number for a size.
                *("(-5, 7)", "(-2147483648,)", "()", "-1", "(0, 0, 0, 0, 0, 0, 0, 0, 0)"),
                "(1048577,)",
            ],
        ),
    ],
)
def test_values_are_as_mxnet_writes_them(
    kind: Kind, accepted: dict[str, str], refused: list[str]
) -> None:
    assert {value: kind(value) for value in accepted} == accepted
    assert {value: kind(value) for value in refused} == dict.fromkeys(refused)
