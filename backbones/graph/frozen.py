"""Parameters that training leaves as they are, by patterns of their names.

A frozen layer is to compute the same in every update. With the statistics of the batch its
BatchNorm would not, whatever its gamma and beta, and its running statistics would move with the new
data. So where a pattern fits them, as ``stage1_*`` does, BatchNorm normalizes by its running
statistics in training, too, and these keep their bytes as the parameters do. A pattern that fits
gamma and beta alone (``*_gamma``) leaves the statistics to the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from backbones.graph.nodes import from_json, to_json
from backbones.layers import Symbol
from runtime.errors import ConfigError, did_you_mean

_GLOBAL = "use_global_stats"


def find(patterns: Sequence[str], symbol: Symbol) -> frozenset[str]:
    """Return the names of a graph's parameters and statistics that patterns fit.

    Patterns are those of file names: ``*``, ``?`` and ``[abc]``. Of a BatchNorm's two statistics,
    both are found if one is.

    Raises:
        ConfigError: a pattern fits none, or no parameter is left to train.
    """
    if not patterns:
        return frozenset()
    parameters = [name for name in symbol.list_arguments() if name != "data"]
    names = [*parameters, *symbol.list_auxiliary_states()]
    found: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in names if fnmatchcase(name, pattern)}
        if not fitting:
            raise ConfigError(
                f"--freeze {pattern!r} fits no parameter of this network"
                f"{did_you_mean(pattern, names)}; its first are {', '.join(names[:3])}"
            )
        found |= fitting
    if found.issuperset(parameters):
        raise ConfigError(
            f"--freeze {','.join(patterns)} leaves no parameter of this network to be trained; "
            "give narrower patterns"
        )
    for statistics in _statistics(symbol):
        if not found.isdisjoint(statistics):
            found.update(statistics)
    return frozenset(found)


def keep_statistics(symbol: Symbol, frozen: Iterable[str]) -> Symbol:
    """Return the graph whose BatchNorms with frozen statistics normalize by these in training."""
    graph, names = to_json(symbol), set(frozen)
    nodes = graph["nodes"]
    for node in nodes:
        if node["op"] == "BatchNorm" and nodes[node["inputs"][3][0]]["name"] in names:
            node["attrs"] = {**node.get("attrs", {}), _GLOBAL: "True"}
    return from_json(graph)


def kept_statistics(symbol: Symbol) -> frozenset[str]:
    """Return the names of the statistics by which a graph normalizes in training."""
    return frozenset().union(*_statistics(symbol, only_kept=True))


def _statistics(symbol: Symbol, *, only_kept: bool = False) -> list[set[str]]:
    """The names of the running mean and variance of each BatchNorm."""
    nodes = to_json(symbol)["nodes"]
    return [
        {nodes[entry[0]]["name"] for entry in node["inputs"][3:5]}
        for node in nodes
        if node["op"] == "BatchNorm"
        and (not only_kept or node.get("attrs", {}).get(_GLOBAL) == "True")
    ]
