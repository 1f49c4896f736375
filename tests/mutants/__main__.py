"""``python -m tests.mutants``: see ``campaign``."""

import sys

from tests.mutants.campaign import main

sys.exit(main())
