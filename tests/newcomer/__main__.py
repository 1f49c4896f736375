"""``python -m tests.newcomer``: see ``walk``."""

from __future__ import annotations

import sys

from tests.newcomer.walk import main

if __name__ == "__main__":
    sys.exit(main())
