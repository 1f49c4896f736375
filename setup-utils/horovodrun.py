"""Horovod's launcher, told the interface and the GPUs that the user has chosen for all hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from horovod.runner import launch
from horovod.runner.common.util import env
from horovod.runner.driver import driver_service

_find_interfaces = driver_service.get_common_interfaces


def interfaces(
    settings: Any, hosts: Sequence[str], remote_hosts: Sequence[str], cache: Any
) -> Sequence[str]:
    """The one in ``NIC``; Horovod's own option for it fails where all ranks are on this host."""
    chosen = os.environ.get("NIC")
    if chosen and remote_hosts:
        return [chosen]
    found: Sequence[str] = _find_interfaces(settings, hosts, remote_hosts, cache)
    return found


def main() -> None:
    """Run it with these changes."""
    driver_service.get_common_interfaces = interfaces
    # It sends every variable to other hosts but this one.
    if "SLURM_JOB_ID" not in os.environ:
        env.IGNORE_REGEXES.discard(".*CUDA_VISIBLE_DEVICES")
    sys.argv[0] = "horovodrun"
    try:
        launch.run_commandline()
    except (RuntimeError, ValueError) as error:
        # Of ranks, which have said why, and of hosts: Horovod prints the reason of each.
        print(f"horovodrun: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2 if "via ssh" in str(error) else 1)


# Horovod's own processes import this file, too.
if __name__ == "__main__":
    main()
