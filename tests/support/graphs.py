"""What a network computes, in one number."""

from __future__ import annotations

import json
import zlib
from typing import Any


def fingerprint(symbol: Any) -> int:
    """Return a checksum of all operators, their attributes, names and inputs.

    A checkpoint fits a network as long as this stays: names and shapes of its parameters, and what
    is computed from them.
    """
    graph = json.loads(symbol.tojson())
    nodes = [
        [node["op"], node["name"], node.get("attrs", {}), node["inputs"]] for node in graph["nodes"]
    ]
    return zlib.crc32(json.dumps([nodes, graph["heads"]], sort_keys=True).encode())
