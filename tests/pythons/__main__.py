"""``python -m tests.pythons``: see ``campaign``."""

from __future__ import annotations

import sys

from tests.pythons.campaign import main

if __name__ == "__main__":
    sys.exit(main())
