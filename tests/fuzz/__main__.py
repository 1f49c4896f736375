"""``python -m tests.fuzz``: see ``campaign``."""

from __future__ import annotations

import sys

from tests.fuzz.campaign import main

if __name__ == "__main__":
    sys.exit(main())
