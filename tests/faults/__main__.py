"""``python -m tests.faults``: see ``campaign``."""

from __future__ import annotations

import sys

from tests.faults.campaign import main

if __name__ == "__main__":
    sys.exit(main())
