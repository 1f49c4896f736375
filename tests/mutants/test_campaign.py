"""Mutants of a small project: those that its tests notice are killed, the others survive."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from textwrap import dedent

from tests.mutants.__main__ import FOLDERS, ROOT, Campaign, all_sites, report
from tests.mutants.sites import Mutant, choose

FILES = {
    "pyproject.toml": """
        [tool.pytest.ini_options]
        pythonpath = ["."]
        addopts = ["--import-mode=importlib"]
        markers = ["launcher: late", "learning: late"]
        """,
    "shop/price.py": """
        def price(amount, each):
            discount = 1 if amount >= 10 else 0
            most = max(amount + 0, 0)
            return most * each - discount

        def wait(left):
            while left > 0:
                left = left - 1

        def note(folder, wanted=False):
            if wanted:
                (folder / "noted").write_text("")
        """,
    "shop/kernels.py": """
        import numba

        from runtime.kernels import kernel
        from shop.rates import taxed

        @kernel
        def total(prices):
            total = 0.0
            for i in range(prices.size):
                total += taxed(prices[i])
            return total
        """,
    "shop/rates.py": """
        from runtime.kernels import inlined

        @inlined
        def taxed(price):
            return price + 0.5
        """,
    "shop/alone.py": "def unknown(): return 1\n",
    "runtime/kernels.py": """
        import numba

        kernel = numba.njit(cache=True)
        inlined = numba.njit(inline="always", cache=True)
        """,
    "tests/shop/test_price.py": """
        from pathlib import Path
        from shop.price import note, price, wait

        def test_price():
            assert [price(amount, 2) for amount in (1, 9, 10)] == [2, 18, 19]

        def test_wait():
            wait(3)

        def test_note():
            note(Path(PROJECT))
        """,
    "tests/shop/test_kernels.py": """
        import numpy as np
        from shop.kernels import total

        def test_total():
            assert total(np.ones(2)) == 3.0
        """,
}

# What stands there before and after, and what becomes of the mutant.
PLANTED = [
    (b"amount >= 10", b"(amount > 10)", "failed"),
    (b"1 if", b"2 if", "failed"),
    # max(amount, 0) is max(amount, 0).
    (b"amount + 0", b"(amount - 0)", "passed"),
    # The loop does not end.
    (b"left - 1", b"(left + 1)", "failed"),
    # Writes into the project itself.
    (b"wanted=False", b"wanted=True", "failed"),
    # In the file of the inlined function, not of the kernel that was compiled before.
    (b"0.5", b"1.0", "failed"),
    (b"return 1\n", b"return 2\n", "no test"),
]


def planted(project: Path, before: bytes, after: bytes) -> Mutant:
    for site in all_sites(project, ["shop"]):
        source = (project / site.path).read_bytes()
        for mutant in (Mutant(site, replacement) for replacement in site.replacements):
            if mutant.apply(source) == source.replace(before, after, 1) != source:
                return mutant
    raise AssertionError(f"no place for {before!r} -> {after!r}")


def test_what_tests_notice_is_killed(tmp_path: Path) -> None:
    project, work = tmp_path / "project", tmp_path / "work"
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).replace("PROJECT", repr(str(project))))
    written = {path: path.read_bytes() for path in project.rglob("*.*")}
    mutants = [planted(project, old, new) for old, new, _ in PLANTED]
    work.mkdir()
    with closing(Campaign(project, work, ["shop"], test_seconds=2.0)) as campaign:
        assert campaign.check(mutants) == []
        outcomes = list(campaign.run(mutants))
    assert [outcome.how for outcome in outcomes] == [how for _, _, how in PLANTED]
    assert outcomes[0].by == "tests/shop/test_price.py::test_price"
    if campaign.is_isolated:
        found = [path for path in project.rglob("*") if path.is_file()]
        assert {path: path.read_bytes() for path in found} == written
    said = report(outcomes, 1.0).splitlines()
    assert said[0].startswith("survived: shop/alone.py:1: def unknown(): return 1  ->  ")
    assert said[1].startswith("survived: shop/price.py:4: most = max(amount + 0, 0)  ->  ")
    assert said[-1] == "killed 5 of 7: 71.4 % (5 failed), 1 s"


def test_every_mutant_of_the_product_is_a_program() -> None:
    sites = all_sites(ROOT, FOLDERS)
    assert len({site.path.split("/")[0] for site in sites}) == len(FOLDERS)
    for mutant in choose(sites, 150, seed=3):
        source = (ROOT / mutant.site.path).read_bytes()
        changed = mutant.apply(source)
        assert changed != source
        compile(changed, mutant.site.path, "exec")
