"""The options of the exchange of gradients: by Horovod, or over parameter servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from backbones.options import NetworkOptions
from parallel.parameter_server.assignment import SCHEMES, WORKER, Assignment
from runtime.errors import ConfigError
from runtime.options import COUNT, POSITIVE, POSITIVE_COUNT, Options, Range, name, number
from training.config.schedule import OptimizerOptions

HOROVOD = "horovod"
KV_STORES = (HOROVOD, *SCHEMES)
ALONE = frozenset(("local", "device", "nccl", "local_allreduce_cpu", "local_allreduce_device"))
"""MXNet's stores of one process with several GPUs; here each GPU has a rank, and these are
``HOROVOD``."""


@dataclass(frozen=True)
class ExchangeOptions(Options):
    """Exchange of gradients."""

    kv_store: str = name(HOROVOD, KV_STORES)
    """Exchange of gradients: horovod, or over parameter servers dist_sync, dist_async, dist_ssync
    (bounded by --staleness) or dist_gsync (in groups); these under python -m parallel.launch;
    local, device and nccl, MXNet's for one process, are horovod."""

    staleness: Optional[int] = number(
        None, COUNT.saying("must not be negative; 0 lets no worker run ahead")
    )
    """Steps that a worker of dist_ssync may be ahead of the slowest when it begins another; 0 if
    it is left out."""

    data_allocator: int = number(0, Range(lambda value: value in (0, 1), "must be 0 or 1"))
    """Images of each worker: 0 the same number, 1 by the launcher's --data-sharding."""

    rebalance: Optional[int] = number(None, POSITIVE_COUNT)
    """Epochs after which dist_gsync measures all workers and forms new groups and shares."""

    fp16_allreduce: bool = False
    """Send the gradients between the ranks in float16."""

    gradient_predivide_factor: float = number(
        1.0, POSITIVE.saying("must be above 0; 1 turns it off")
    )
    """Divide the gradients by this before their sum, and multiply after it."""

    @property
    def bound(self) -> Optional[int]:
        """Steps that a worker may be ahead of the slowest; None if the exchange has no bound."""
        scheme = SCHEMES.get(self.kv_store)
        return (self.staleness or 0) if scheme is not None and scheme.is_bounded else None

    def check(self) -> None:
        """Refuse options that belong to another exchange."""
        scheme = SCHEMES.get(self.kv_store)
        if self.staleness is not None and self.bound is None:
            raise ConfigError(
                f"--staleness {self.staleness} goes with --kv-store dist_ssync, not with "
                f"{self.kv_store}; leave it out"
            )
        if self.rebalance is not None and not (scheme is not None and scheme.has_groups):
            raise ConfigError(
                f"--rebalance {self.rebalance} goes with --kv-store dist_gsync, not with "
                f"{self.kv_store}, which has no groups; leave it out"
            )


def check(
    options: ExchangeOptions,
    network: NetworkOptions,
    optimizer: OptimizerOptions,
    assignment: Optional[Assignment],
) -> None:
    """Refuse an exchange that this process was not started for.

    Its role from ``parallel.launch`` is ``assignment``, None if that did not start it.
    """
    if options.kv_store != HOROVOD:
        if assignment is None or assignment.role != WORKER:
            raise ConfigError(
                f"--kv-store {options.kv_store} needs servers and a scheduler: start it with "
                "python -m parallel.launch ... -- python classify.py ..."
            )
        _check_worker(options, network, optimizer, assignment)
    elif assignment is not None:
        raise ConfigError(
            "parallel.launch has started this process next to parameter servers, but --kv-store is "
            f"{HOROVOD}; give one of {', '.join(SCHEMES)}, or start it with horovodrun"
        )
    elif options.data_allocator:
        raise ConfigError(
            f"--data-allocator {options.data_allocator} goes with parameter servers, not with "
            f"--kv-store {HOROVOD}; leave it out"
        )


def _check_worker(
    options: ExchangeOptions,
    network: NetworkOptions,
    optimizer: OptimizerOptions,
    assignment: Assignment,
) -> None:
    """Refuse what this worker's job was not started for, and what only Horovod can do."""
    store, scheme = options.kv_store, SCHEMES[options.kv_store]
    if scheme.has_groups and not assignment.groups:
        raise ConfigError(
            f"--kv-store {store} needs groups: give the launcher --groups FILE, with the addresses "
            "of a group in each line"
        )
    if options.data_allocator and not assignment.shares:
        raise ConfigError(
            f"--data-allocator {options.data_allocator} needs the shares of the workers: give the "
            "launcher --data-sharding FILE, or leave it out for equal shares"
        )
    if assignment.tolerates and (scheme.is_synchronous or scheme.has_groups):
        raise ConfigError(
            f"--kv-store {store} cannot continue without a worker that others wait for; leave out "
            "the launcher's --tolerate-workers, or use dist_async or dist_ssync"
        )
    if network.sync_bn:
        raise ConfigError(
            f"--sync-bn goes with --kv-store {HOROVOD}: servers add gradients, and know no "
            "statistics of BatchNorm; leave it out"
        )
    if network.dtype == "float16":
        raise ConfigError(
            f"--dtype float16 goes with --kv-store {HOROVOD}: the servers compute in float32; use "
            "float32"
        )
    changes_allreduce = options.fp16_allreduce or options.gradient_predivide_factor != 1
    if changes_allreduce and not scheme.has_groups:
        raise ConfigError(
            "--fp16-allreduce and --gradient-predivide-factor are for Allreduce, which --kv-store "
            f"{store} does not use; leave them out"
        )
    if optimizer.clip_norm is not None:
        raise ConfigError(
            f"--clip-norm {optimizer.clip_norm} goes with --kv-store {HOROVOD}: no worker of "
            f"{store} has the sum of all gradients, and no server all parameters; leave it out"
        )
