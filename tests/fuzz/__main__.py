"""``python -m tests.fuzz``: see ``campaign``."""

import sys

from tests.fuzz.campaign import main

sys.exit(main())
