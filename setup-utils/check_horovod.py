"""Print the parts that Horovod is built with, in the words of ``horovodrun --check-build``.

    python setup-utils/check_horovod.py

That command starts a process for each pair of part and framework, which takes a busy machine a
minute; this is one import, of what ranks import. It fails as the import does.
"""

from __future__ import annotations

import horovod.mxnet as hvd

if __name__ == "__main__":
    parts = {"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": hvd.nccl_built()}
    for part, is_built in {"MXNet": True, **parts}.items():
        print(f"[{'X' if is_built else ' '}] {part}")
