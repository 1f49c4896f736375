"""``python -m tests.soak``: see ``soak``."""

import sys

from tests.soak.soak import main

sys.exit(main())
