"""The places of a Python file that a mutant may change, and the changes.

One mutant is one change: a comparison, an arithmetic or a Boolean operator is exchanged, a number
changes, ``True`` becomes ``False``, a condition is negated, the first two arguments of a call are
swapped, or a statement is deleted.

Not changed, because no test could or should detect it:

- Strings and docstrings: messages and names. Numbers inside f-strings format messages.
- Annotations, and code under ``if TYPE_CHECKING``: read by mypy alone.
- ``assert``: it states what cannot happen; without it the program does the same.
- ``__repr__`` and ``__str__``: read by people who look for an error.
- Arguments of ``@dataclass``: ``frozen`` forbids what mypy forbids too.
- Statements that write to the log and do nothing else. What is *computed* for the log elsewhere
  is changed like everything.
- The first binding of a name: without it every test ends in NameError, which says nothing about
  the tests.
- The order of arguments where it has no meaning (``min``, ``max`` and NumPy's like them).

Numbers count everywhere else, limits and timeouts included.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator
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
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_LOGGERS = {"_log", "log", "_LOGGER", "logger", "logging"}
_FOR_PEOPLE = {"__repr__", "__str__"}


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
        """Return the changed source, which has as many lines as before."""
        site, text = self.site, self.replacement
        lost = "\n" * source[site.start : site.stop].count(b"\n")
        text = f"{text[:-1]}{lost})" if text.endswith(")") else text + lost
        return source[: site.start] + text.encode() + source[site.stop :]

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
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(finder.sites)


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes) -> None:
        self.sites: list[Site] = []
        self._path = path
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        # The names that the function has bound so far.
        self._bound: set[str] = set()

    def _add(self, node: Any, *replacements: Union[ast.AST, str]) -> None:
        """Note a place; an expression is put in brackets, whatever stands around it."""
        start = self._line_starts[node.lineno - 1] + node.col_offset
        stop = self._line_starts[node.end_lineno - 1] + node.end_col_offset
        texts = tuple(
            text if isinstance(text, str) else f"({ast.unparse(text)})" for text in replacements
        )
        self.sites.append(Site(self._path, node.lineno, start, stop, texts))

    def _leave(self, node: ast.AST) -> None:
        """Leave alone what is in an assertion, a formatted string or an annotation."""

    visit_Assert = visit_JoinedStr = visit_arg = _leave

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        self._bind([node.target])

    def visit_FunctionDef(self, node: Union[ast.FunctionDef, ast.ClassDef]) -> None:
        if node.name in _FOR_PEOPLE:
            return
        for decorator in node.decorator_list:
            if _called(decorator) != "dataclass":
                self.visit(decorator)
        around, self._bound = self._bound, set()
        if not isinstance(node, ast.ClassDef):
            self.visit(node.args)
            named = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            self._bound = {one.arg for one in named}
        for statement in node.body:
            self.visit(statement)
        self._bound = around

    visit_ClassDef = visit_FunctionDef

    # Statements.

    def visit_Expr(self, node: ast.Expr) -> None:
        if _writes_to_the_log(node.value):
            return
        if not isinstance(node.value, ast.Constant):
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        (first, *_) = node.targets
        stays = isinstance(first, (ast.Attribute, ast.Subscript))
        if stays or (isinstance(first, ast.Name) and first.id in self._bound):
            self._add(node, "pass")
        self.visit(node.value)
        self._bind(node.targets)

    def _bind(self, targets: Iterable[ast.AST]) -> None:
        for target in targets:
            self._bound.update(node.id for node in ast.walk(target) if isinstance(node, ast.Name))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "pass")
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add(node, "pass")
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._add(node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "break")

    # Conditions.

    def visit_If(self, node: Union[ast.If, ast.IfExp, ast.While]) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._negate(condition)
        self.generic_visit(node)

    def _negate(self, condition: ast.expr) -> None:
        """Note a negation, except where the change of the operator is the same."""
        is_not = isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not)
        is_plain = isinstance(condition, ast.Compare) and isinstance(condition.ops[0], _NEGATIONS)
        if not (is_not or is_plain or isinstance(condition, ast.Constant)):
            self._add(condition, ast.UnaryOp(ast.Not(), condition))

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        for number, operator in enumerate(node.ops):
            operators = list(node.ops)
            operators[number] = _COMPARISONS[type(operator)]()
            self._add(node, ast.Compare(node.left, operators, node.comparators))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = _ARITHMETIC.get(type(node.op))
        # Not where it joins or formats strings.
        if other and not any(map(_is_text, (node.left, node.right))):
            self._add(node, ast.BinOp(node.left, other(), node.right))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, (ast.Not, ast.USub)):
            self._add(node, node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        changed = [f"({value!r})" if value < 0 else repr(value) for value in _others(node.value)]
        if changed:
            self._add(node, *changed)

    def visit_Call(self, node: ast.Call) -> None:
        if len(node.args) >= 2 and _called(node) not in _COMMUTATIVE:
            first, second, *rest = node.args
            is_plain = not any(isinstance(one, ast.Starred) for one in (first, second))
            if is_plain and ast.dump(first) != ast.dump(second):
                self._add(node, ast.Call(node.func, [second, first, *rest], node.keywords))
        self.generic_visit(node)


def _called(node: ast.expr) -> Optional[str]:
    """Return the last name of what is called, or of the expression itself."""
    if isinstance(node, ast.Call):
        return _called(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _writes_to_the_log(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner = node.func.value
    return node.func.attr in _LOG_METHODS and isinstance(owner, ast.Name) and owner.id in _LOGGERS


def _is_text(node: ast.expr) -> bool:
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    return isinstance(node, ast.JoinedStr) or is_constant


def _others(value: object) -> Iterator[Union[bool, int, float]]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, float):
        yield from (value * 2, value / 2) if value else (1.0,)
