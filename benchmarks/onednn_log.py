"""What oneDNN 2.4.4 prints about every primitive that it executes (``DNNL_VERBOSE=1``).

A line is

    dnnl_verbose,exec,cpu,convolution,jit:avx2,forward_training,<layouts>,<attributes>,
    <auxiliary>,<problem>,<milliseconds>

with commas in none of the fields; other lines of the library begin with ``dnnl_verbose,info``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_PREFIX = "dnnl_verbose,"
_EXECUTED = "exec"
_FIELDS = 11
_LAYOUT = re.compile(r"([a-z]+)_[a-z0-9]+:[^:\s]*:blocked:([A-Za-z0-9]+):")
# Kernels are blocked along their outputs, or have a dimension for the groups; maps do not.
_KERNEL_LAYOUT = re.compile(r"A|^abcde$|e")


class LogError(ValueError):
    """A line of the log is not of the form of oneDNN 2.4.4."""


@dataclass(frozen=True)
class Primitive:
    """One execution.

    Attributes:
        kind: convolution, batch_normalization, reorder, ...
        implementation: jit:avx2, bnorm_ref:any, ...
        direction: forward_training, forward_inference, backward_data, ...; undef for some kinds.
        layouts: of the arrays by their names, such as src and dst: abcd is the plain one,
            aBcd16b has blocks of 16 channels.
        problem: the sizes.
        milliseconds: how long it took.
    """

    kind: str
    implementation: str
    direction: str
    layouts: tuple[tuple[str, str], ...]
    problem: str
    milliseconds: float

    @property
    def is_reference(self) -> bool:
        """Whether oneDNN had no other implementation than the one that defines the result."""
        return re.search(r"\bref|_ref", self.implementation) is not None

    @property
    def is_reorder(self) -> bool:
        """Whether it only copies an array into another layout, or into the same one."""
        return self.kind == "reorder"

    @property
    def moves_kernel(self) -> bool:
        """Whether this is a reorder of a convolution's kernel, and not of feature maps."""
        return self.is_reorder and any(_KERNEL_LAYOUT.search(layout) for _, layout in self.layouts)

    @property
    def moves_maps(self) -> bool:
        """Whether this is a reorder of maps or their gradients; of plain kernels as well.

        Arrays of one pixel are no maps: one number for each channel, as of squeeze-and-excitation.
        """
        is_image = all("d" in layout for _, layout in self.layouts)
        has_pixels = not self.problem.endswith("x1x1")
        return self.is_reorder and is_image and has_pixels and not self.moves_kernel

    @property
    def title(self) -> str:
        """What it is, without sizes: a reorder by its layouts, all others by their direction."""
        if self.is_reorder:
            names = " to ".join(layout for _, layout in self.layouts)
            return f"{self.implementation} {names}"
        return f"{self.implementation} {self.direction}"


def read(lines: Iterable[str]) -> Iterator[Primitive]:
    """Yield the primitives of a log, among which may be lines of others.

    Raises:
        LogError: a line of oneDNN has another form.
    """
    for line in lines:
        if line.startswith(_PREFIX) and not line.startswith(f"{_PREFIX}info,"):
            yield parse(line)


def parse(line: str) -> Primitive:
    """Return the primitive of a line.

    Raises:
        LogError: it has another form.
    """
    fields = line.rstrip("\n").split(",")
    try:
        if len(fields) != _FIELDS or fields[1] != _EXECUTED:
            raise ValueError
        milliseconds = float(fields[10])
    except ValueError:
        raise LogError(f"not a line of oneDNN 2.4.4 about a primitive: {line!r}") from None
    kind, implementation, direction, arrays = fields[3:7]
    layouts = tuple(_LAYOUT.findall(arrays))
    return Primitive(kind, implementation, direction, layouts, fields[9], milliseconds)
