"""Options of the launchers of MXNet-G, MXNet and dmlc-core, and what to type here instead.

A command that was written for ``tools/launch.py`` or ``dmlc-submit`` runs here as it is where the
option means the same, and is answered in one line where it does not. docs/porting.md has the same
tables.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from runtime.errors import ConfigError

# In "python -u PROGRAM" the program is the third word; later ones are its arguments.
_PROGRAM_BEFORE = 3

_HINTS = {
    "--sync-dst-dir --files --archives --auto-file-cache": (
        "all hosts have the project in the same folder: give --sync, which copies it there, or "
        "--sync=NAME,... for files and folders of this folder as well"
    ),
    "--env*": (
        "write NAME=VALUE before the launcher; those that libraries read go to all processes, such "
        "as MXNET_... and OMP_..., and those that SEND_VARIABLES=NAME,... names"
    ),
    "--p3": "leave it out: weights are sent in buckets; see --bucket-elements",
    "--*-cores --*-memory": (
        "a process takes what its machine has; processors are shared by OMP_NUM_THREADS"
    ),
    "--log-*": "leave it out: the launcher prints to the terminal, and each worker writes logs/",
    "--host-ip": "give -i, the interface on which the processes reach each other",
    "--local-num-attempt": "leave it out: a process that died ends the job; see --tolerate-workers",
    "--jobname --queue --hdfs-* --sge-* --yarn-* --mesos-* --slurm-* --kube-* --ship-libcxx": (
        "leave it out: jobs start by --launcher local or ssh alone"
    ),
}
OPTIONS = {name: hint for names, hint in _HINTS.items() for name in names.split()}
"""Options of these launchers, as patterns, and what to type here instead."""

PROGRAMS = {
    "train_cifar10.py": "classify.py --dataset cifar10_grouping",
    "train_cifar100.py": "classify.py --dataset cifar100_grouping",
    "train_cifar10_mirroring.py": "classify.py --dataset cifar10_grouping",
    "train_cifar10_resnet.py": "classify.py --dataset cifar10_grouping_resnet",
    "train_resnet.py": "classify.py --dataset cifar10_grouping_resnet (or imagenet)",
    "train_imagenet.py": "classify.py --dataset imagenet",
    "train_mnist.py": "classify.py --dataset mnist",
}
"""Programs that MXNet-G's scripts start, and what does the same here."""


def check_program(command: Sequence[str]) -> None:
    """Refuse a command whose program is one of MXNet-G's and not a file of this folder.

    Raises:
        ConfigError: with the program to type here.
    """
    for word in command[:_PROGRAM_BEFORE]:
        here = PROGRAMS.get(Path(word).name)
        if here and not os.path.exists(word):
            raise ConfigError(
                f"{word} is not in this folder; type {here} in its place, without another "
                "--dataset or --data-type"
            )
