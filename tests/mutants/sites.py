"""The places of a Python file that a mutant may change, and the changes.

One mutant is one change: a comparison, an arithmetic or a Boolean operator is exchanged, a number
changes, ``True`` becomes ``False``, a condition is negated, the first two arguments of a call are
swapped, or a statement is deleted. Numbers count everywhere, limits and timeouts included.

Not changed, because no test could or should detect it: strings, numbers that an f-string formats,
annotations, assertions, ``__repr__`` and ``__str__``, arguments of ``@dataclass``, statements that
only write to the log, assignments to names (most tests would end in NameError), and the order of
arguments where it has no meaning.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple, Optional, Union

_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_NEGATIONS = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}  # fmt: skip
_COMMUTATIVE = set("min max minimum maximum gcd logical_and logical_or array_equal".split())
_LOG = re.compile(
    r"(_log|log|_LOGGER|logger|logging)\.(debug|info|warning|error|exception|critical|log)\("
)


class Site(NamedTuple):
    """A place that can be changed: bytes from ``start`` to ``stop``, whose line counts from 1."""

    path: str
    line: int
    start: int
    stop: int
    replacements: tuple[str, ...]
    """One of them takes the text's place."""


class Mutant(NamedTuple):
    """A site and the replacement that was chosen."""

    site: Site
    replacement: str

    def apply(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.site.start] + self.replacement.encode() + source[self.site.stop :]

    def describe(self, source: bytes) -> str:
        """Return the file, the line, and what stands there before and after, in a line."""
        site = self.site
        first = source.rfind(b"\n", 0, site.start) + 1
        last = source.find(b"\n", site.stop)
        changed = source[first : site.start] + self.replacement.encode() + source[site.stop : last]
        before, after = (" ".join(text.decode().split()) for text in (source[first:last], changed))
        return f"{site.path}:{site.line}: {before}  ->  {after}"


def choose(sites: Iterable[Site], count: int, seed: int) -> list[Mutant]:
    """Return ``count`` different mutants, or all there are; every site is equally likely."""
    rng = random.Random(seed)
    places = list(sites)
    chosen = rng.sample(places, min(count, len(places)))
    return [Mutant(site, rng.choice(site.replacements)) for site in chosen]


def find(path: str, source: bytes) -> list[Site]:
    """Return all places of a file, in the order of its text."""
    lines = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    sites = []
    for node, *others in _places(ast.parse(source)):
        start = lines[node.lineno - 1] + node.col_offset
        stop = lines[node.end_lineno - 1] + node.end_col_offset
        # An expression is put in brackets, whatever stands around it.
        texts = (one if isinstance(one, str) else f"({ast.unparse(one)})" for one in others)
        sites.append(Site(path, node.lineno, start, stop, tuple(texts)))
    return sorted(sites)


def _places(node: Any) -> Iterator[tuple[Any, ...]]:
    """Yield places in a node, each with its replacements."""
    if _is_left_alone(node):
        return
    yield from _changes(node)
    parts: list[Any] = [*ast.iter_child_nodes(node)]
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        decorators = [one for one in node.decorator_list if _called(one) != "dataclass"]
        arguments = [node.args] if isinstance(node, ast.FunctionDef) else []
        parts = [*arguments, *decorators, *node.body]
    elif isinstance(node, ast.Delete):
        parts = []
    elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        parts = [node.value] if node.value else []
    for part in parts:
        yield from _places(part)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and _LOG.match(ast.unparse(node)) is not None
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    is_for_people = getattr(node, "name", "") in ("__repr__", "__str__")
    return is_for_people or isinstance(node, (ast.Assert, ast.JoinedStr, ast.arg))


def _changes(node: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the places that a node itself is or negates, each with its replacements."""
    if isinstance(node, (ast.AugAssign, ast.Raise, ast.Delete)):
        yield node, "pass"
    elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        yield node, "pass"
    elif isinstance(node, ast.Return) and node.value is None:
        yield node, "pass"
    elif isinstance(node, ast.Assign):
        if isinstance(node.targets[0], (ast.Attribute, ast.Subscript)):
            yield node, "pass"
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield node, "continue" if isinstance(node, ast.Break) else "break"
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield from _negation(node.test)
    elif isinstance(node, ast.comprehension):
        for condition in node.ifs:
            yield from _negation(condition)
    elif isinstance(node, ast.Compare):
        for number, operator in enumerate(node.ops):
            operators = [*node.ops]
            operators[number] = _COMPARISONS[type(operator)]()
            yield node, ast.Compare(node.left, operators, node.comparators)
    elif isinstance(node, ast.BinOp):
        other = _ARITHMETIC.get(type(node.op))
        # Not where it joins or formats strings.
        if other and not any(map(_is_text, (node.left, node.right))):
            yield node, ast.BinOp(node.left, other(), node.right)
    elif isinstance(node, ast.BoolOp):
        yield node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, (ast.Not, ast.USub)):
            yield node, node.operand
    elif isinstance(node, ast.Constant):
        others = [f"({other!r})" if other < 0 else repr(other) for other in _others(node.value)]
        if others:
            yield node, *others
    elif isinstance(node, ast.Call) and len(node.args) >= 2:
        first, second, *rest = node.args
        is_plain = not any(isinstance(one, ast.Starred) for one in (first, second))
        has_order = _called(node) not in _COMMUTATIVE and ast.dump(first) != ast.dump(second)
        if is_plain and has_order:
            yield node, ast.Call(node.func, [second, first, *rest], node.keywords)


def _negation(condition: ast.expr) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield a negation, except where the change of the operator is the same."""
    is_not = isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not)
    is_plain = isinstance(condition, ast.Compare) and isinstance(condition.ops[0], _NEGATIONS)
    if not (is_not or is_plain or isinstance(condition, ast.Constant)):
        yield condition, ast.UnaryOp(ast.Not(), condition)


def _called(node: ast.expr) -> Optional[str]:
    """Return the last name of what is called, or of the expression itself."""
    if isinstance(node, ast.Call):
        return _called(node.func)
    return getattr(node, "attr", None) or getattr(node, "id", None)


def _is_text(node: ast.expr) -> bool:
    return isinstance(getattr(node, "value", None), (str, bytes)) or isinstance(node, ast.JoinedStr)


def _others(value: object) -> Iterator[Union[bool, int, float]]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, float):
        yield from (value * 2, value / 2) if value else (1.0,)
