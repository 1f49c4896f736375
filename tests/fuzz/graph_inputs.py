"""Graphs that are almost right, so that MXNet sees them: damaged bytes rarely give any.

They have every operator of the table, each attribute with any value, and one or two errors.
"""

from __future__ import annotations

import json
import random
from typing import Any

from backbones.graph.operators import LAYERS, OPERATORS, kind_of
from runtime.mxnet import mx

_HOSTILE = [
    "", " ", "-1", "-0", "0", "1", "2", "3", "7", "64", "1024", "1025", "131072", "9999999",
    "2147483647", "2147483648", "4294967295", "-2147483648", "9" * 30, "1e400", "1e-400", "-1e38",
    "nan", "inf", "-inf", "1.5", "0x10", "3L", "None", "True", "False", "1_0", "\x00", "é",
    "\x1b[2J",
    "()", "[]", "(,)", "(0, 0)", "(-1, -1)", "(1, 1)", "(2, 2)", "[3L, 3L]", "(3, 3)", "(1, 2, 3)",
    "(1024, 1024)", "(0, -1)", "(-5, 7)", "(-1, 0)", "(-4, 0, -1)", "(-4, -1, -1)", "(0, -4, 2, 0)",
    "(0, -4, -1, 0, -2)", "(-2, -1)", "(65536, 65536, -1)", "(-3, -3, -3)", "(0, 0, 0, 0, 0, 0, 0)",
    "(None, None)", "(None, 0, 9999999)", "(1, 0, 1, 1)", "(" + "1, " * 40 + ")", "float64", "int8",
    "bfloat16", "NHWC", "same", "reflect", "lp", "custom",
]  # fmt: skip
_USUAL = [
    "0", "1", "1", "2", "3", "4", "8", "-1", "0.4", "0.5", "0.9", "1e-3", "2e-05", "127.5", "True",
    "False", "None", "()", "(0, 0)", "(0, 1)", "(1, 1)", "(1, 1)", "(1, 2)", "(2, 2)", "(2, 3)",
    "(3, 1)", "(3, 3)", "[2L, 2L]", "(1, -1)", "(0, -1)", "(0, -4, 1, -1, -2)", "(0, 0, -1)",
    "(0, -3, -2)", "(-1, 3, 4, 4)", "(0, 0, 0, 0, 1, 1, 1, 1)", "(0, 0, 0, 0, 0, 2, 0, 1)",
    "(None, 0)", "(None, 1, 1)", "(0, 0, 0, 0)", "(None, 2)", "(None, None, 3)", "(1, 2, 1, 1)",
    "(0, 2, 3, 1)", "(0.5, 0.5, 0.5)",
    *"relu prelu sigmoid tanh leaky elu selu gelu max avg sum valid full constant edge".split(),
    *"channel instance spatial training float32 float16 NCHW off".split(),
]  # fmt: skip
_PARAMETERS = {
    "Convolution": ("weight", "bias"), "FullyConnected": ("weight", "bias"),
    "BatchNorm": ("gamma", "beta", "moving_mean", "moving_var"), "LeakyReLU": ("gamma",),
    "InstanceNorm": ("gamma", "beta"), "LayerNorm": ("gamma", "beta"),
}  # fmt: skip
_REQUIRED = frozenset(
    "kernel num_filter num_hidden act_type num_outputs shape scalar dim1 dim2 a_min a_max mean std "
    "axis begin end pad_width mode reps dtype no_bias".split()
)
_UNKNOWN = ["foo", "num_filters", "__shape__", "lr_mult", "weight_wd_mult", "info", "op_type"]
_LAYERS = ("Convolution", "Pooling", "BatchNorm", "LeakyReLU")
_SUFFIXES = (
    "output output0 output1 call1 raised factor scaled_gamma scaled_beta inverse bent_kernel bend "
    "bent linear slope positive linear_kernel weight bias gamma"
).split()
_OPERATORS = sorted(set(OPERATORS) - {"null"})
_KINDS = {
    op: {key: kind_of(op, key) for key in mx.operator.get_operator_arguments(op).names}
    for op in _OPERATORS
}


class _Graph:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.nodes: list[dict[str, Any]] = [{"op": "null", "name": "data", "inputs": []}]
        self._results = [0]

    def _variable(self, name: str) -> list[int]:
        """Append a parameter; some say their shape or type."""
        node: dict[str, Any] = {"op": "null", "name": name, "inputs": []}
        if self._rng.random() < 0.1:
            key = self._rng.choice(("__shape__", "__dtype__", "__init__", "__storage_type__"))
            node["attrs"] = {key: self._rng.choice([*_HOSTILE, "(1, 3, 32, 32)"])}
        self.nodes.append(node)
        return [len(self.nodes) - 1, 0, 0]

    def operator(self, op: str, name: str) -> None:
        rng = self._rng
        attributes = self._attributes(op)
        recent = self._results[-4:]
        given = [[rng.choice(recent if rng.random() < 0.3 else recent[-1:]), 0, 0]]
        if OPERATORS[op] == 2:
            given.append([rng.choice(self._results), 0, 0])
        if op in LAYERS:
            names = _PARAMETERS[op]
            if attributes.get("no_bias") in ("True", "1"):
                names = names[:1]
            if op == "LeakyReLU" and attributes.get("act_type") != "prelu":
                names = ()
            given += [self._variable(f"{name}_{one}") for one in names]
        if not OPERATORS[op]:
            given += [[rng.choice(self._results), 0, 0] for _ in range(rng.randrange(3))]
            attributes["num_args"] = str(len(given))
        self.nodes.append({"op": op, "name": name, "attrs": attributes, "inputs": given})
        self._results.append(len(self.nodes) - 1)

    def _attributes(self, op: str) -> dict[str, str]:
        rng = self._rng
        found = {}
        for key, kind in _KINDS[op].items():
            if kind is None:
                continue
            is_hostile = rng.random() < 0.01
            if key in _REQUIRED or is_hostile or rng.random() < 0.35:
                values = _HOSTILE if rng.random() < 0.1 else _USUAL
                # The ends of a range are hostile values that are allowed.
                usual = [one for one in values if kind(one) is not None]
                found[key] = rng.choice(_HOSTILE if is_hostile or not usual else usual)
        if rng.random() < 0.02:
            found[rng.choice(_UNKNOWN)] = rng.choice(_HOSTILE)
        return found


def make_graph(rng: random.Random) -> bytes:
    """Return a file from an image of 3 channels to ``fc1``."""
    graph = _Graph(rng)
    for number in range(rng.choice((1, 1, 2, 3, 5, 8))):
        op = rng.choice(_OPERATORS)
        if op in LAYERS or rng.random() < 0.5:
            graph.operator(rng.choice(_LAYERS), f"l{number}")
        graph.operator(op, f"n{number}")
    graph.operator("FullyConnected" if rng.random() < 0.9 else rng.choice(_OPERATORS), "fc1")
    content: dict[str, Any] = {
        "nodes": graph.nodes,
        "arg_nodes": [index for index, node in enumerate(graph.nodes) if node["op"] == "null"],
        "heads": [[len(graph.nodes) - 1, 0, 0]],
        "attrs": {"mxnet_version": ["int", rng.choice((10901, 10901, 10000, 905, 800))]},
    }
    if rng.random() < 0.15:
        _damage(content, rng)
    return json.dumps(content).encode("utf-8", "surrogatepass")


def _damage(content: dict[str, Any], rng: random.Random) -> None:
    """Make one thing of a graph wrong that concerns several nodes, or a node as a whole."""
    nodes = content["nodes"]
    first, second = rng.choice(nodes), rng.choice(nodes)
    damages = ["attrs", "node", "key", "order", "name", *["derived name"] * 2, "input", "parameter"]
    damage = rng.choice(damages)
    if damage == "attrs":
        for node in nodes:
            if "attrs" in node:
                node[rng.choice(("param", "attr"))] = node.pop("attrs")
        if rng.random() < 0.5:
            del content["attrs"]
    elif damage == "node":
        words = ["", "data", "fc1", "n0", "Custom", "_Native", "a$b", "x" * 300, "\ud800"]
        values: list[Any] = [*words, "\x1b[2J", None, 0, [], {}, {"a": 1}, [[0]]]
        first[rng.choice(("op", "name", "attrs", "inputs"))] = rng.choice(values)
    elif damage == "key":
        values = [[], [[0, 0, 0]], [[99, 0]], [-1], None, {}, "x", [[1 << 40, 9, 9]]]
        content[rng.choice(("heads", "arg_nodes", "node_row_ptr", "attrs"))] = rng.choice(values)
    elif damage == "input":
        values = [[len(nodes), 0, 0], [0, 9, 0], [-1, 0, 0], [1 << 40, 0, 0], "0", None]
        first["inputs"].insert(rng.randrange(len(first["inputs"]) + 1), rng.choice(values))
        del first["inputs"][: rng.randrange(2)]
    elif damage == "order":
        nodes.insert(rng.randrange(len(nodes)), nodes.pop(rng.randrange(len(nodes))))
    elif damage == "name":
        first["name"] = second["name"]
    elif damage == "derived name":
        # As MXNet names outputs, and this project the operators that replace a layer.
        first["name"] = f"{second['name']}_{rng.choice(_SUFFIXES)}"
    else:
        node, other = (rng.choice([one for one in nodes if one["inputs"]]) for _ in range(2))
        node["inputs"][-1] = other["inputs"][-1]
