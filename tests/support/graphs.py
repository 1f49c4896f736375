from __future__ import annotations

import json
import zlib
from typing import Any


def fingerprint(symbol: Any) -> int:
    """Return a checksum of all operators, their attributes, names and inputs.

    A checkpoint fits a network as long as it stays.
    """
    graph = json.loads(symbol.tojson())
    fields = ("op", "name", "attrs", "inputs")
    nodes = [[node.get(field, {}) for field in fields] for node in graph["nodes"]]
    return zlib.crc32(json.dumps([nodes, graph["heads"]], sort_keys=True).encode())
