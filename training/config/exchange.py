"""Checks of the options that choose how workers exchange gradients."""

from __future__ import annotations

from typing import Optional, Protocol

from parallel.parameter_server.place import WORKER, Place
from parallel.parameter_server.schemes import SCHEMES
from runtime.errors import ConfigError
from training.checks import check_name

HOROVOD = "horovod"
KV_STORES = (HOROVOD, *SCHEMES)
_LAUNCH = "start it with python -m parallel.launch ... -- python classify.py ..."


class StoreConfig(Protocol):
    """What is asked of a configuration."""

    @property
    def kv_store(self) -> str:
        """How gradients are exchanged."""

    @property
    def staleness(self) -> Optional[int]:
        """The bound of SSP."""

    @property
    def data_allocator(self) -> int:
        """Whether the launcher says who reads what."""

    @property
    def rebalance(self) -> Optional[int]:
        """Epochs after which groups are made anew."""

    @property
    def dtype(self) -> str:
        """Number format of the network."""

    @property
    def fp16_allreduce(self) -> bool:
        """Whether gradients travel in float16."""

    @property
    def gradient_predivide_factor(self) -> float:
        """Divides gradients before their sum."""


def check(config: StoreConfig, place: Optional[Place]) -> None:
    """Refuse what does not go together.

    Args:
        config: the configuration.
        place: where the launcher has put this process, None if it has not started it.

    Raises:
        ConfigError: with the option, its value, the reason and the remedy.
    """
    check_name("kv-store", config.kv_store, KV_STORES)
    _check_staleness(config)
    _check_rebalance(config)
    if config.kv_store == HOROVOD:
        _check_horovod(config, place)
    else:
        _check_servers(config, place)


def _check_staleness(config: StoreConfig) -> None:
    is_bounded = config.kv_store != HOROVOD and SCHEMES[config.kv_store].is_bounded
    if config.staleness is not None and not is_bounded:
        raise ConfigError(
            f"--staleness {config.staleness} goes with --kv-store dist_ssync, not with "
            f"{config.kv_store}; leave it out"
        )
    if config.staleness is None and is_bounded:
        raise ConfigError(
            f"--kv-store {config.kv_store} has no bound: add --staleness, as in --staleness 3"
        )


def _check_rebalance(config: StoreConfig) -> None:
    has_groups = config.kv_store != HOROVOD and SCHEMES[config.kv_store].has_groups
    if config.rebalance is not None and not has_groups:
        raise ConfigError(
            f"--rebalance {config.rebalance} goes with --kv-store dist_gsync, not with "
            f"{config.kv_store}, which has no groups; leave it out"
        )


def _check_horovod(config: StoreConfig, place: Optional[Place]) -> None:
    if place is not None:
        raise ConfigError(
            "parallel.launch has started this process beside parameter servers, but --kv-store is "
            f"{HOROVOD}; give one of {', '.join(SCHEMES)}, or start it with horovodrun"
        )
    if config.data_allocator:
        raise ConfigError(
            f"--data-allocator {config.data_allocator} goes with parameter servers, not with "
            f"--kv-store {HOROVOD}; leave it out"
        )


def _check_servers(config: StoreConfig, place: Optional[Place]) -> None:
    store, scheme = config.kv_store, SCHEMES[config.kv_store]
    if place is None or place.role != WORKER:
        raise ConfigError(f"--kv-store {store} needs servers and a scheduler: {_LAUNCH}")
    if scheme.has_groups and not place.groups:
        raise ConfigError(
            f"--kv-store {store} needs groups: give the launcher --groups FILE, with the addresses "
            "of a group in each line"
        )
    if config.data_allocator and not place.shares:
        raise ConfigError(
            f"--data-allocator {config.data_allocator} needs to know who reads what: give the "
            "launcher --data-sharding FILE, or leave it out for equal shares"
        )
    if place.tolerates and (scheme.is_synchronous or scheme.has_groups):
        raise ConfigError(
            f"--kv-store {store} cannot go on without a worker that others wait for; leave out "
            "the launcher's --tolerate-workers, or use dist_async or dist_ssync"
        )
    if config.dtype == "float16":
        raise ConfigError(
            f"--dtype float16 goes with --kv-store {HOROVOD}: the servers compute in float32; use "
            "float32"
        )
    is_squeezed = config.fp16_allreduce or config.gradient_predivide_factor != 1
    if is_squeezed and not scheme.has_groups:
        raise ConfigError(
            f"--fp16-allreduce and --gradient-predivide-factor are for Allreduce, which --kv-store "
            f"{store} has none of; leave them out"
        )
