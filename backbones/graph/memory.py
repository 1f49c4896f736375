"""The memory of a training step of a graph on a device, computed without running it.

MXNet plans it in blocks (``src/nnvm/plan_memory.cc`` of 1.9.1), and a hybridized network has two
plans (``src/imperative/cached_op.cc``): for the outputs of the forward pass, and for the gradients
of the backward pass. An output that a backward operator reads keeps its block for the whole step;
all others share blocks, and some operators write their result over their input. The same rules are
applied here to the graph, whose shapes and types MXNet infers. Tests compare the blocks with those
that a step on ``mx.cpu(1)`` allocates.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from backbones.graph.nodes import Node, Shape, to_json
from backbones.graph.recompute import cut
from backbones.layers import Symbol

# A free block is taken for a tensor up to so many times larger or smaller.
_MATCH_RANGE = 16
# While it plans, MXNet takes every element for four bytes; the blocks then get their true sizes.
_PLANNED_ELEMENT = 4
# Whose backward operators read their inputs, their output, and neither; others may read both.
_READ_INPUTS = frozenset(
    """Convolution FullyConnected BatchNorm LeakyReLU Pooling elemwise_mul broadcast_mul
    broadcast_div""".split()
)
_READ_OUTPUT = frozenset(("LeakyReLU", "Activation", "Pooling", "sqrt"))
_READ_NOTHING = frozenset(
    "elemwise_add _minus_scalar _mul_scalar Cast Flatten sum mean tile".split()
)
# Of this one, its second output, which has the size of the first.
_MASKED = "Dropout"
_KNOWN = _READ_INPUTS | _READ_OUTPUT | _READ_NOTHING | {_MASKED}
# These may write their output over an input, and their backward operators over a gradient.
_IN_PLACE = _READ_NOTHING | {"LeakyReLU", "Activation", _MASKED}


class StepMemory(NamedTuple):
    """The blocks of a training step: how many there are of each size in bytes.

    MXNet's pool for GPUs gives a free block to an array of the same size only, so what exists at
    different times shares memory if its sizes are equal.
    """

    maps: Counter[int]
    """Of the operators' outputs."""
    gradients: Counter[int]
    """Of the gradients of these outputs."""


class Tensor(NamedTuple):
    """The size of a tensor."""

    elements: int
    element_size: int

    @property
    def num_bytes(self) -> int:
        """Its memory."""
        return self.elements * self.element_size


class _Step(NamedTuple):
    """An operator of a pass: the names of what it reads, writes, and may write over."""

    reads: Sequence[str]
    writes: Sequence[str]
    overwrites: Sequence[str]


def step_memory(
    symbol: Symbol, batch_size: int, image_size: tuple[int, int], *, recompute: bool = False
) -> StepMemory:
    """Return the blocks of a forward and backward pass.

    Args:
        symbol: a graph with the input ``data`` and one output; its other inputs are parameters.
        batch_size: images.
        image_size: their height and width.
        recompute: whether the step is one of ``backbones.graph.recompute``.
    """
    tensors = tensor_sizes(symbol, (batch_size, 3, *image_size))
    if not recompute:
        return _blocks(symbol, tensors)
    parts = cut(symbol, image_size)
    inputs = [tensors[part.source].num_bytes for part in parts]
    maps: Counter[int] = Counter()
    gradients: Counter[int] = Counter()
    for index, part in enumerate(parts):
        memory = _blocks(part.symbol, tensors)
        # Until the part is done there are its input and those of the parts before it; its output,
        # which is the input of the next; and the gradients of both. The images count elsewhere.
        output = inputs[index + 1 : index + 2]
        maps |= memory.maps + Counter([*inputs[1 : index + 1], *output])
        gradients |= memory.gradients + Counter([*inputs[1 : index + 1][-1:], *output])
    return StepMemory(maps, gradients)


def tensor_sizes(symbol: Symbol, batch_shape: Shape) -> dict[str, Tensor]:
    """Return the size of each variable and of the first output of each operator, by node.

    The input ``data`` is float32 and of the shape ``batch_shape``.
    """
    internals = symbol.get_internals()
    _, shapes, _ = internals.infer_shape(data=batch_shape)
    _, types, _ = internals.infer_type(data=np.float32)
    sizes = {}
    for name, shape, dtype in zip(internals.list_outputs(), shapes, types):
        sizes[name] = Tensor(int(np.prod(shape)), np.dtype(dtype).itemsize)
    names = [node["name"] for node in to_json(symbol)["nodes"]]
    keys = {name: (name, f"{name}_output", f"{name}_output0") for name in names}
    return {name: next(sizes[key] for key in keys[name] if key in sizes) for name in names}


def _blocks(symbol: Symbol, tensors: Mapping[str, Tensor]) -> StepMemory:
    """The blocks of a graph, whose inputs get gradients, except for ``data``."""
    nodes: list[Node] = to_json(symbol)["nodes"]
    operators = {node["name"]: node["op"] for node in nodes if node["op"] != "null"}
    forward = []
    read_later: Counter[str] = Counter()
    masks = {}
    for node in nodes:
        if node["op"] == "null":
            continue
        reads = [nodes[entry[0]]["name"] for entry in node["inputs"]]
        writes = [node["name"]]
        if node["op"] == _MASKED:
            writes.append(f"mask of {node['name']}")
            masks[writes[1]] = tensors[node["name"]]
            read_later.update(writes[1:])
        forward.append(_Step(reads, writes, reads if node["op"] in _IN_PLACE else []))
        if node["op"] in _READ_INPUTS or node["op"] not in _KNOWN:
            read_later.update(reads)
        if node["op"] in _READ_OUTPUT or node["op"] not in _KNOWN:
            read_later.update([node["name"]])
    output = forward[-1].writes[0]
    # What the graph hands out is not among its blocks.
    outputs = {name: tensors[name] for name in operators if name != output} | masks
    arguments = symbol.list_arguments()
    # Running statistics have no gradient.
    differentiable = {name: tensors[name] for name in (*arguments, *operators)}
    wanted = [name for name in arguments if name != "data"]
    backward, gradients = _backward(forward, wanted, differentiable)
    return StepMemory(_plan(forward, outputs, read_later), _plan(backward, gradients, Counter()))


def _backward(
    forward: Sequence[_Step], wanted: Sequence[str], differentiable: Mapping[str, Tensor]
) -> tuple[list[_Step], dict[str, Tensor]]:
    """The operators of the backward pass in MXNet's order, and the gradients among its blocks.

    Args:
        forward: the operators of the forward pass.
        wanted: the inputs whose gradients are handed out.
        differentiable: the tensors of the forward pass that have a gradient.
    """
    # By tensor, the gradients that the operators that read it contribute; by gradient, its step.
    contributions: defaultdict[str, list[str]] = defaultdict(list)
    step_of: dict[str, _Step] = {}
    sizes = {}

    def total(name: str) -> str:
        addends = contributions[name]
        if len(addends) == 1:
            return addends[0]
        gradient = f"sum of {name}"
        step_of[gradient] = _Step(addends, [gradient], addends[:1])
        sizes[gradient] = differentiable[name]
        return gradient

    last = forward[-1].writes[0]
    for step in reversed(forward):
        output = step.writes[0]
        gradient = "of the output" if output == last else total(output)
        inputs = [name for name in step.reads if name in differentiable]
        writes = [f"{name} by {output}" for name in inputs]
        backward = _Step([gradient], writes, [gradient] if step.overwrites else [])
        for name, contribution in zip(inputs, writes):
            contributions[name].append(contribution)
            step_of[contribution], sizes[contribution] = backward, differentiable[name]
    handed_out = [total(name) for name in wanted]
    steps = _in_order(handed_out, step_of)
    return steps, {name: size for name, size in sizes.items() if name not in handed_out}


def _in_order(results: Sequence[str], step_of: Mapping[str, _Step]) -> list[_Step]:
    """The steps that the results need, each after those whose results it reads."""
    ordered: list[_Step] = []
    visited: set[int] = set()
    waiting = [(step_of[name], False) for name in reversed(results)]
    while waiting:
        step, is_ready = waiting.pop()
        if is_ready:
            ordered.append(step)
        elif id(step) not in visited:
            visited.add(id(step))
            waiting.append((step, True))
            waiting += [(step_of[name], False) for name in reversed(step.reads) if name in step_of]
    return ordered


def _plan(
    steps: Sequence[_Step], sizes: Mapping[str, Tensor], held: Mapping[str, int]
) -> Counter[int]:
    """The blocks for the tensors of ``sizes``, of which ``held`` are read after all steps."""
    readers = Counter(name for step in steps for name in step.reads)
    readers.update(held)
    # By block: the size that it is planned for, its true size, and how many reads are to come.
    planned: list[int] = []
    actual: list[int] = []
    pending: list[int] = []
    block_of: dict[str, int] = {}
    free: list[tuple[int, int]] = []
    for step in steps:
        overwritten: set[str] = set()
        for name in [name for name in step.writes if name in sizes]:
            size, block = sizes[name], None
            for read in step.overwrites:
                alone = read in block_of and pending[block_of[read]] == 1
                if alone and readers[name] and read not in overwritten and sizes[read] == size:
                    block = block_of[read]
                    overwritten.add(read)
                    break
            if block is None:
                block = _take(free, size.elements * _PLANNED_ELEMENT, planned)
                if block == len(actual):
                    actual.append(0)
                    pending.append(0)
            planned[block] = max(planned[block], size.elements * _PLANNED_ELEMENT)
            actual[block] = max(actual[block], size.num_bytes)
            pending[block] += readers[name]
            block_of[name] = block
        for name in [name for name in step.reads if name in block_of]:
            pending[block_of[name]] -= 1
            if not pending[block_of[name]]:
                insort(free, (planned[block_of[name]], block_of[name]))
        for name in step.writes:
            if name in block_of and not readers[name]:
                insort(free, (planned[block_of[name]], block_of[name]))
    return Counter(actual)


def _take(free: list[tuple[int, int]], size: int, planned: list[int]) -> int:
    """Take the smallest free block that is large enough, else the largest, else a new one."""
    position = bisect_left(free, (size, -1))
    if position == len(free) or free[position][0] > size * _MATCH_RANGE:
        position -= 1
        if position < 0 or free[position][0] < size // _MATCH_RANGE:
            planned.append(size)
            return len(planned) - 1
    return free.pop(position)[1]
