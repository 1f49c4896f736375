"""The time of an update: each part's work over the speed that ``--calibrate`` measured for it.

Parts that share the processors add up: on a CPU neither a collective nor a loader's thread hides
behind the products, it takes their time. Two things are assumed and said to be so: that a forward
pass takes a third of a step of the backbone (``--accumulate`` does all but one part's twice), and,
for more ranks than were measured, that the network between hosts is what the memory of this one is.

Shapes: B global batch, D embedding, S sampled rows of a shard.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from partial_fc.shard import Shard
from training.config.faces import FaceConfig
from training.plan import keys
from training.plan.calibration import (
    Calibration,
    CollectiveRates,
    HeadRates,
    InputRates,
    NetworkCost,
    StoreRates,
    find,
)
from training.plan.items import ASSUMED, MEASURED, Duration, communication
from training.plan.keys import Cell
from training.plan.memory import sampled_rows
from training.plan.traffic import collective_bytes

# Bytes of an encoded face, as in the sets of 112 x 112 that are in use (JPEG, quality 95).
_IMAGE_BYTES = 8_000
_FORWARD = 1 / 3


class Measured(NamedTuple):
    """What the file of this host has for a plan; None for what was not measured."""

    cell: Cell
    network: Optional[NetworkCost]
    head: Optional[HeadRates]
    input: Optional[InputRates]
    collectives: Optional[CollectiveRates]
    store: Optional[StoreRates] = None

    @classmethod
    def of(cls, config: FaceConfig, world_size: int, found: Calibration) -> Measured:
        """Look up what holds for this configuration on so many ranks."""
        cell = Cell.of(world_size)
        return cls(
            cell,
            find(found.networks, keys.network_key(config, cell)),
            find(found.heads, keys.head_key(config, cell)),
            find(found.inputs, keys.input_key(config)),
            find(found.collectives, str(cell)),
            find(found.stores, keys.store_key(config, cell)),
        )


def update_time(config: FaceConfig, shard: Shard, measured: Measured) -> Optional[list[Duration]]:
    """The parts of an update's time; None unless backbone, head, ranks and store were measured.

    The shard is that of the rank with the most classes.
    """
    network, head, read = measured.network, measured.head, measured.input
    if network is None or head is None or read is None:
        return None
    if shard.world_size > 1 and measured.collectives is None:
        return None
    if config.head.center_store is not None and measured.store is None:
        return None
    parts = config.backbone.accumulate
    durations = [
        Duration(
            "backbone",
            "backbone",
            backbone_seconds(network, config.images_per_pass, parts),
            MEASURED if parts == 1 else ASSUMED,
        ),
        *_head(config, shard, head),
        *_store(config, shard, measured.store),
        *_input(config, read, measured.cell.threads),
    ]
    if measured.collectives is not None:
        durations.append(_communication(config, shard.world_size, measured))
    return durations


def backbone_seconds(network: NetworkCost, images: int, parts: int) -> float:
    """Forward, backward and optimizer of ``parts`` parts of so many images.

    All parts but the last have a second forward pass. What does not depend on the images is mostly
    the optimizer's, which updates once.
    """
    share = 1 + _FORWARD * (parts - 1) / parts
    return network.base_seconds + parts * images * share * network.seconds_per_image


def _head(config: FaceConfig, shard: Shard, rates: HeadRates) -> list[Duration]:
    batch, rows = config.data.batch_size * shard.world_size, sampled_rows(config, shard)
    width = config.backbone.embedding_size
    numbers = rows * width
    # With all rows there is nothing to draw.
    drawn = rows / rates.drawn if rows < shard.size else 0.0
    multiplied = 6 * batch * numbers / rates.operations
    return [
        Duration("products", "products of the head", multiplied, MEASURED),
        Duration(
            "rows",
            "sampled rows: draw, gather, update",
            drawn + numbers / rates.gathered + numbers / rates.updated,
            MEASURED,
        ),
        Duration("softmax", "softmax", batch * rows / rates.logits, MEASURED),
        Duration("head", "rest of the head", rates.base_seconds, MEASURED),
    ]


def _store(config: FaceConfig, shard: Shard, rates: Optional[StoreRates]) -> list[Duration]:
    """Rows on their way from and to the disk take processors from the backbone.

    All of it counts, on any number of threads: the threads of an operator wait for the one whose
    processor was taken. The disk itself works beside them.
    """
    if config.head.center_store is None:
        return []
    assert rates is not None
    seconds = sampled_rows(config, shard) / rates.rows
    return [Duration("store", "rows of the store: read, write", seconds, MEASURED)]


def _input(config: FaceConfig, rates: InputRates, threads: int) -> list[Duration]:
    """Decoding takes the processors' time, on as many threads as the rank computes with."""
    if config.data.debug:
        return []
    images = config.data.batch_size
    decoding = images / (rates.decoded * (config.data.threads or threads))
    # The disk works beside the processors; what it takes longer than them is not known here.
    reading = images * _IMAGE_BYTES / rates.read_bytes
    return [
        Duration("decoding", "decoding", decoding, MEASURED),
        Duration("reading", "reading (images of 8 kB)", reading, ASSUMED),
    ]


def _communication(config: FaceConfig, world_size: int, measured: Measured) -> Duration:
    assert measured.collectives is not None
    sizes = collective_bytes(config, world_size)
    return communication(sizes, world_size, measured.collectives, measured.cell)
