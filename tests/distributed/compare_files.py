"""A rank that takes itself for the first of its host and compares the files of a folder of its own.

    python -m tests.distributed.compare_files FOLDER_OF_RANK_0 FOLDER_OF_RANK_1
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from parallel.world import HorovodWorld
from runtime.errors import run_program
from training import same_data


def main() -> None:
    """Look at the files by the same relative paths on each rank, and go on if they are the same."""
    world = HorovodWorld()
    os.chdir(sys.argv[1 + world.rank])
    world.local_rank = 0
    same_data.check([Path("train.rec"), Path("train.idx")], world)
    print(f"rank {world.rank} goes on")


if __name__ == "__main__":
    run_program(main)
