"""Faults of GPUs and their driver: pure functions of the survey."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from parallel.check.facts import Facts
from parallel.check.hosts import Finding, listed
from parallel.check.survey import Survey
from runtime import installed
from runtime.installed import dotted


def is_for_gpus(facts: Facts) -> bool:
    """Whether the installed MXNet computes on GPUs."""
    return installed.cuda_of(facts.mxnet_package) is not None


def gpus(survey: Survey) -> Iterator[Finding]:
    """As ``runtime.devices`` assigns them: one to a rank, and to all ranks or none."""
    with_gpus = next((host for host, facts in survey.facts.items() if facts.gpus), None)
    for host, facts in survey.facts.items():
        count, ranks, package = len(facts.gpus), survey.slots[host], facts.mxnet_package
        errors = facts.errors if is_for_gpus(facts) else {}
        if "gpus" in errors:
            what, _, remedy = errors["gpus"].partition("; ")
            yield Finding(host, what, remedy or "look at nvidia-smi there")
        elif "driver" in errors:
            yield Finding(
                host,
                f"nvidia-smi fails ({errors['driver']})",
                "install the driver again; after an update of it, restart the host",
            )
        if count and ranks > count:
            yield Finding(
                host,
                f"more ranks ({ranks}) than GPUs ({count})",
                f"give it no more than {host}:{count}, or show more by CUDA_VISIBLE_DEVICES",
            )
        if not count and (with_gpus or is_for_gpus(facts)) and "gpus" not in errors:
            why = f"but {with_gpus} does" if with_gpus else f"but its MXNet is {package}"
            yield Finding(
                host,
                f"it has no GPU that ranks would see, {why}",
                "repair its driver (nvidia-smi), leave it out, or CUDA_VISIBLE_DEVICES= for all",
            )
        if count and facts.mxnet and not is_for_gpus(facts):
            yield Finding(
                host,
                f"its MXNet is for processors and would not use its {count} GPUs",
                "MXNET_PACKAGE=mxnet-cu112 make env there, or CUDA_VISIBLE_DEVICES= to do without",
            )


def cuda(survey: Survey) -> Iterator[Finding]:
    """GPUs and driver go with the package of MXNet."""
    for host, facts in survey.facts.items():
        package = facts.mxnet_package
        cuda = installed.cuda_of(package)
        if cuda is None:
            continue
        names = {gpu.name for gpu in facts.gpus if gpu.runs(package) is False}
        if names:
            yield Finding(
                host,
                f"{package} has no machine code for {listed(sorted(names))}",
                "docs/gpu.md says which package has",
            )
        number = 1000 * cuda[0] + 10 * cuda[1]
        if facts.cuda_of_driver and installed.is_too_old(facts.cuda_of_driver, number):
            yield Finding(
                host,
                f"its driver{_of(facts.driver)} is for CUDA {dotted(facts.cuda_of_driver)}, too "
                f"old for {package}",
                "install a newer driver",
            )


def _of(version: Optional[str]) -> str:
    return f" {version}" if version else ""
