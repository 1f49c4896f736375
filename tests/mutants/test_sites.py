"""What is changed in a file and what is left alone."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.mutants.campaign import FOLDERS, ROOT, all_sites
from tests.mutants.sites import choose, find


def changes(source: str) -> set[str]:
    text = dedent(source).encode()
    lines = text.splitlines()
    found = set()
    for site in find("a.py", text):
        assert lines[site.line - 1], "a site is on a line with text"
        for replacement in site.replacements:
            found.add(f"{text[site.start : site.stop].decode()} -> {replacement}")
    return found


@pytest.mark.parametrize(
    "source, expected",
    [
        ("a < b", {"a < b -> pass", "a < b -> (a <= b)"}),
        ("x = a == b", {"a == b -> (a != b)"}),
        ("x = a < b < c", {"a < b < c -> (a <= b < c)", "a < b < c -> (a < b <= c)"}),
        ("x = a + b", {"a + b -> (a - b)"}),
        ("x = -a // b", {"-a // b -> (-a * b)", "-a -> (a)"}),
        ("x = a and not b", {"a and not b -> (a or not b)", "not b -> (b)"}),
        ("x = 3", {"3 -> 4", "3 -> 2"}),
        ("x = 0", {"0 -> 1", "0 -> (-1)"}),
        ("x = 0.5, 0.0", {"0.5 -> 1.0", "0.5 -> 0.25", "0.0 -> 1.0"}),
        ("x = True", {"True -> False"}),
        ("x = f(a, b, *c)", {"f(a, b, *c) -> (f(b, a, *c))"}),
        ("if a: x = b", {"a -> (not a)"}),
        ("if a is b: x = c", {"a is b -> (a is not b)"}),
        ("x = [a for a in b if a]", {"a -> (not a)"}),
        ("while True: break", {"True -> False", "break -> continue"}),
        ("raise Error", {"raise Error -> pass"}),
        ("a.b = c", {"a.b = c -> pass"}),
        ("a = b\na = c", {"a = c -> pass"}),
        ("def f(a):\n  a = c\n  return", {"a = c -> pass", "return -> pass"}),
        ("a += b", {"a += b -> pass"}),
        ("def f(a=1): return a", {"1 -> 2", "1 -> 0"}),
        ("x: int = 1", {"1 -> 2", "1 -> 0"}),
    ],
)
def test_changes(source: str, expected: set[str]) -> None:
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Text 1."""',
        "x = 'a' + b",
        "x = f'{a:.{3 + 4}f} {b + c}'",
        "x: Literal[1]",
        "def f(a: Literal[1], b: int | None) -> Literal[2]: return a",
        "assert a < b",
        "if TYPE_CHECKING: x = 1",
        "def __repr__(self): return self.a + 1",
        "_log.info('%d', a + 1)",
        "x = min(a, b), f(*a, b), f(a, a)",
        "@dataclass(frozen=True)\nclass A: b: int",
        "for a in b: c = d",
    ],
)
def test_left_alone(source: str) -> None:
    assert changes(source) == set()


def test_a_change_of_several_lines_moves_no_line_below() -> None:
    source = b"x = f(\n    a,\n    b < c,\n)\ny = 1\n"
    (swapped,) = (site for site in find("a.py", source) if site.start == 4)
    (mutant,) = choose([swapped], 1, seed=0)
    assert mutant.apply(source).splitlines() == [b"x = (f(b < c, a)", b"", b"", b")", b"y = 1"]
    assert mutant.describe(source) == "a.py:1: x = f( a, b < c, )  ->  x = (f(b < c, a))"


def test_text_beyond_ascii_is_replaced_in_place() -> None:
    (site,) = find("a.py", "x = 'é', a < b".encode())
    (mutant,) = choose([site], 1, seed=0)
    assert mutant.apply("x = 'é', a < b".encode()).decode() == "x = 'é', (a <= b)"


def test_every_mutant_of_the_product_is_a_program_of_as_many_lines() -> None:
    sites = all_sites(ROOT, FOLDERS)
    assert len({site.path.split("/")[0] for site in sites}) == len(FOLDERS)
    for mutant in choose(sites, 150, seed=3):
        source = (ROOT / mutant.site.path).read_bytes()
        changed = mutant.apply(source)
        assert changed != source and changed.count(b"\n") == source.count(b"\n")
        compile(changed, mutant.site.path, "exec")


def test_a_seed_makes_the_same_mutants() -> None:
    source = (ROOT / "data" / "verification" / "pairs.py").read_bytes()
    sites = find("data/verification/pairs.py", source)
    first, again, other = (choose(sites, 20, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({mutant.site for mutant in first}) == 20
    assert len(choose(sites, 10**6, seed=1)) == len(sites)


def test_paths_choose_files(tmp_path: Path) -> None:
    for name in ("shop/a.py", "shop/b.py", "other/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    found = all_sites(tmp_path, ["shop"], only=["shop/b", "other"])
    assert [site.path for site in found] == ["shop/b.py"]
