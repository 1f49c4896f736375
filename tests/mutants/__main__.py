"""``python -m tests.mutants``: see ``campaign``."""

from __future__ import annotations

import sys

from tests.mutants.campaign import main

if __name__ == "__main__":
    sys.exit(main())
