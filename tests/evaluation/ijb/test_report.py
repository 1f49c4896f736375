from __future__ import annotations

import json
import math

from evaluation.ijb.identification import Identification
from evaluation.ijb.report import as_json, identification_table, verification_table
from evaluation.ijb.verification import AcceptRate, Verification

WANTED = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
VERIFIED = Verification(
    1000, 100, [AcceptRate(far, far, 0.9 + n / 100, math.inf) for n, far in enumerate(WANTED)], 0.99
)
GALLERIES = [
    Identification(1772, 10, 30, [5, 6, 8], [0.25, 0.5], [0.6, 0.5]),
    Identification(1759, 30, 10, [30, 30, 30], [0.75, 1.0], [0.7, 0.6]),
]


def test_tables() -> None:
    """Ranks are averaged over probes, rates over galleries."""
    table = """\
+------------+-------+-------+--------+-------+-------+-------+-------+
| TAR at FAR | 1e-06 | 1e-05 | 0.0001 | 0.001 | 0.01  |  0.1  |  AUC  |
+------------+-------+-------+--------+-------+-------+-------+-------+
|    m,0     | 90.00 | 91.00 | 92.00  | 93.00 | 94.00 | 95.00 | 99.00 |
+------------+-------+-------+--------+-------+-------+-------+-------+"""
    assert verification_table("m,0", VERIFIED) == table
    lines = identification_table(["G1", "G2"], GALLERIES).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    names = ["gallery", "templates", "mated", "others", "rank-1", "rank-5", "rank-10"]
    assert rows == [
        [*names, "TPIR at FPIR 0.01", "TPIR at FPIR 0.1"],
        ["G1", "1,772", "10", "30", "50.00", "60.00", "80.00", "25.00", "50.00"],
        ["G2", "1,759", "30", "10", "100.00", "100.00", "100.00", "75.00", "100.00"],
        ["mean", "", "", "", "87.50", "90.00", "95.00", "50.00", "75.00"],
    ]


def test_json() -> None:
    found = as_json(VERIFIED, GALLERIES, ["G1", "G2"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    verified = found["1:1"]
    assert [verified[name] for name in ("pairs", "same", "auc")] == [1000, 100, 0.99]
    assert verified["tar_at_far"][2] == {
        "far": 1e-4, "tar": 0.92, "nearest_far": 1e-4, "threshold": None,
    }  # fmt: skip
    assert found["1:N"]["galleries"]["G1"] == {
        "templates": 1772, "mated": 10, "others": 30, "rank-1": 0.5, "rank-5": 0.6, "rank-10": 0.8,
        "tpir_at_fpir": {"0.01": 0.25, "0.1": 0.5}, "thresholds": {"0.01": 0.6, "0.1": 0.5},
    }  # fmt: skip
    mean = {"rank-1": 35 / 40, "rank-5": 36 / 40, "rank-10": 38 / 40}
    assert found["1:N"]["mean"] == {**mean, "tpir_at_fpir": {"0.01": 0.5, "0.1": 0.75}}
    assert as_json(VERIFIED, [], []).keys() == {"1:1"}
