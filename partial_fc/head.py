"""One training step of the head: the model-parallel, sampled margin softmax.

The class centers are spread over the ranks. Every rank sees the features of the whole global
batch, computes logits for the sampled classes of its own shard, and two small reductions make one
softmax out of the shards (An et al., "Partial FC", 2021, section 3). The logits are the only matrix
of their size: they become unnormalized probabilities in place, which serve as the gradient because
the factors of the rows are applied to the small matrices of the products.

The gradient scale: the loss is the mean over the global batch, and the returned gradient is the
exact one of the whole loss, so backbone gradients are summed over the ranks, not averaged.

Shapes: b batch of a rank, B global batch, D embedding, S sampled rows of this rank's shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from partial_fc import margin as margins
from partial_fc.blocks import Block, Products
from partial_fc.initial import initial_centers, read_centers
from partial_fc.margin import Margin, Targets
from partial_fc.optimizers import RowOptimizer
from partial_fc.options import HeadOptions
from partial_fc.rows.device import DeviceRows
from partial_fc.rows.host import HostRows
from partial_fc.rows.interface import NEVER, SMALLEST_NORM, Logits, Negatives, Placed, Rows
from partial_fc.rows.stored import StoredRows
from partial_fc.shard import Sample, Sampler, Shard, centers_of
from runtime import devices
from runtime.devices import Communicator
from runtime.environment import usable_dtype
from runtime.errors import ConfigError
from runtime.mxnet import mx
from runtime.ndarray import BFLOAT16, array_of
from runtime.state import Saved, State, Stateful

# MXNet's dtypes for ``--head-dtype``.
TYPES = {"float32": np.float32, "bfloat16": BFLOAT16}
# The least logarithm of exp(shift − M), see ``_softmax``. Where the logits of a rank are so far
# below M, the weights of its negatives are below 5e-18, which changes no float32 beside 1; but the
# entry of a target would overflow.
_LEAST = -40.0


@dataclass(frozen=True)
class HeadStep:
    """The result of one step.

    Attributes:
        loss: NDArray [1], the mean over the global batch of cross-entropy and the margin's penalty,
            the same on every rank.
        gradient: NDArray [b, D], of that loss with respect to this rank's features.
        update_centers: the update that ``hold`` leaves to the caller, due before the next step.
    """

    loss: Any
    gradient: Any
    update_centers: Callable[[], None]


class PartialFC(Stateful):
    """The head of one rank: its shard of the class centers, and the step that trains them."""

    def __init__(
        self,
        options: HeadOptions,
        margin: Margin,
        rows: Rows,
        sampler: Sampler,
        shard: Shard,
        world: Communicator,
    ) -> None:
        """Read scale, filter, type of the products and folder of centers from ``options``.

        The products read and write that type; sums, norms, softmax and update are float32.
        """
        self.rows = rows
        self.shard = shard
        self._sampler = sampler
        self._world = world
        self.margin = margin
        self._scale = options.scale
        self._pretrained = None if options.starts_from_means else options.pretrained_centers
        threshold = options.filter_threshold
        self._limit = threshold * options.scale if threshold < 1.0 else NEVER
        self._products = Products(TYPES[options.head_dtype])
        # Look-ahead queues: announced (update, labels) pairs, then their samples.
        self._announced: list[tuple[int, NDArray[np.int64]]] = []
        self._drawn: list[Sample] = []

    @classmethod
    def create(
        cls,
        options: HeadOptions,
        shape: tuple[int, int],
        world: Communicator,
        context: Any,
        *,
        optimizer: RowOptimizer,
        seed: int,
    ) -> PartialFC:
        """Cut the classes over the ranks and draw this rank's centers.

        Args:
            options: of the whole head.
            shape: of the centers of all ranks: classes, at least one per rank, and D.
            world: the ranks.
            context: the MXNet device of features and centers.
            optimizer: of the centers.
            seed: of the centers and the samples.

        Raises:
            ConfigError: the device has no products of that type, or there is another run's store.
            DataError: the store is damaged.
        """
        num_classes, embedding_size = shape
        if options.head_dtype == "bfloat16" and not devices.is_host(context):
            raise ConfigError(
                "--head-dtype bfloat16 is for CPUs: MXNet has no bfloat16 on a GPU; use float32"
            )
        dtype = usable_dtype("--head-dtype", options.head_dtype)
        options = replace(options, head_dtype=dtype)
        shard = Shard(world.rank, world.size, num_classes)
        rows: Rows
        if options.center_store is not None:
            if not devices.is_host(context):
                raise ConfigError(
                    f"--center-store {options.center_store} is for CPUs, whose kernels read its "
                    "rows; leave it out on a GPU"
                )
            rows = StoredRows(options, shard, embedding_size, optimizer, world, seed)
        else:
            centers = initial_centers(shard, embedding_size, seed)
            if devices.is_host(context):
                rows = HostRows(centers, optimizer)
            else:
                rows = DeviceRows(centers, optimizer, context)
        sampler = Sampler(shard, options.sample_ratio, seed)
        return cls(options, margins.build(options), rows, sampler, shard, world)

    @override
    def begin(self, run: Path) -> None:
        self.rows.begin(str(run.resolve()))
        if self._pretrained is not None:
            (size,) = self.rows.row_shapes["centers"]
            self.rows.load("centers", 0, read_centers(Path(self._pretrained), self.shard, size))

    def start_from(self, directions: NDArray[np.float32]) -> None:
        """Replace the initial centers by others of the same length, in these directions.

        The directions are float32 [shard.size, D], of any length; where one is 0 the center stays.
        """
        centers = centers_of(directions, self.rows.export()["centers"])
        self.rows.load("centers", 0, centers)

    @override
    def export_state(self, update: int) -> State:
        rows = self.rows.export_state(update, self.shard)
        return replace(rows, arrays={**rows.arrays, **self.margin.export_state(update).arrays})

    @override
    def load_state(self, saved: Saved) -> None:
        self.rows.load_state(saved, self.shard)
        self.margin.load_state(saved)

    def prepare(self, labels: NDArray[np.int64], update: int) -> None:
        """Announce the labels of the step after the next, on all ranks or on none.

        While the next step computes, they are exchanged and the sample is drawn. Rows that are not
        in memory begin to be read at once. ``labels``, int64 [b], are the class ids of that step.
        """
        self._announced.append((update, labels))
        # Rows of the next step have to be known: those that both have are passed on in memory.
        if self.rows.reads_ahead and self._drawn:
            self._draw()

    def _draw(self) -> None:
        """Draw the samples of the announced steps."""
        for update, labels in self._announced:
            sample = self._sampler.sample(self._gather_labels(labels), update)
            self._drawn.append(sample)
            self.rows.read_ahead(sample)
        self._announced = []

    def step(
        self,
        features: Any,
        labels: NDArray[np.int64],
        update: int,
        lr: float,
        *,
        hold: bool = False,
    ) -> HeadStep:
        """Compute the loss, update the sampled centers and return the features' gradient.

        Args:
            features: NDArray float32 [b, D], the embeddings of this rank's images.
            labels: int64 [b], their class ids.
            update: the number of the step, which the sample depends on.
            lr: the learning rate of the centers in this step.
            hold: leave the update of the centers to the caller, who may have to skip it; otherwise
                it runs during the reduction of the gradient.
        """
        sample = self._sample(labels, update)
        placed = self.rows.place(sample)
        products, batch = self._products, len(features) * self._world.size
        products.begin((batch, sample.rows.size, features.shape[1]), features.context)
        # The first rows are on their way while the features are normalized.
        first, *others = products.blocks
        gathered = [self._gather(placed, first)]
        norms_b1 = mx.nd.norm(features, axis=1, keepdims=True)
        inverse_norms_b1 = 1.0 / mx.nd.maximum(norms_b1, SMALLEST_NORM)
        units_bD = mx.nd.broadcast_mul(features, inverse_norms_b1)
        units_BD = self._world.allgather(units_bD, "head.features")
        products.set_features(units_BD, self._scale)
        products.multiply(first)
        for block in others:
            gathered.append(self._gather(placed, block))
            products.multiply(block)
        loss, row_scale_B1, radial_B1 = self._softmax(products.logits, placed, inverse_norms_b1)

        gradient_BD = mx.nd.broadcast_mul(products.features_gradient(), row_scale_B1)
        scaled_BD = mx.nd.broadcast_mul(units_BD, row_scale_B1)
        # Not waited for: the reduction runs while the centers are updated.
        gradient_BD = self._world.allreduce(gradient_BD, "head.gradient")
        update_centers = partial(self._update_centers, gathered, scaled_BD, lr)
        if not hold:
            update_centers()
        start = self._world.rank * features.shape[0]
        own = slice(start, start + features.shape[0])
        gradient_bD = self.rows.project(gradient_BD[own], units_bD, inverse_norms_b1)
        if radial_B1 is not None:
            gradient_bD = gradient_bD + mx.nd.broadcast_mul(units_bD, radial_B1[own])
        # All is queued: the next sample is drawn while it runs.
        self._draw()
        self.rows.settle()
        self._world.wait(gradient_BD)
        # Without the closure the arrays of an update that has run can be freed.
        held = partial(self._update_held, update_centers) if hold else lambda: None
        return HeadStep(loss, gradient_bD, held)

    def _gather(self, placed: Placed, block: Block) -> Any:
        return self.rows.gather(placed, block.part, block.units_KD, block.gradient_KD)

    def _update_held(self, update_centers: Callable[[], None]) -> None:
        update_centers()
        self.rows.settle()

    def _update_centers(self, gathered: list[Any], scaled_BD: Any, lr: float) -> None:
        """Update block by block, while the gradient of a block is in the processor's cache."""
        self._products.set_features(scaled_BD)
        for block, rows in zip(self._products.blocks, gathered):
            self._products.rows_gradient(block)
            self.rows.update(rows, lr)

    def _softmax(
        self, weights: Logits, placed: Placed, inverse_norms_b1: Any
    ) -> tuple[Any, Any, Optional[Any]]:
        """Turn logits into the weights of the gradient, in place: one softmax out of the shards.

        A rank keeps exp(logit − shift) of the negatives in the matrix, with its own largest logit
        of the sample as the shift, so that it passes over its logits once, before it knows those of
        others. With M the largest shift of all ranks and Z = Σ exp(logit − M), the gradient of the
        mean loss is (p − 1[target]) / B with p = exp(logit − M) / Z. The factor
        exp(shift − M) · scale / (B·Z) of a row makes the matrix the gradient, and the entry of the
        target is written such that this factor makes it right. Z lies between 1 and the number of
        classes, so nothing over- or underflows, however large the scale. The targets stay out of
        the sum at first: Z·(1 − p[target]) is then a sum, exact where a difference would cancel.
        Rules for negatives change what enters the sum, and multiply what the matrix keeps by their
        derivative.

        Returns:
            The loss, NDArray [1]; the factor of each row of the weights, NDArray [B, 1]; and the
            loss's derivative with respect to the norm of each feature, NDArray [B, 1], if the
            margin depends on it.
        """
        rows, world, local_B = self.rows, self._world, placed.local_B
        cosines_B = rows.get_targets(weights, placed) / self._scale
        margined = self.margin(Targets(cosines_B, local_B, inverse_norms_b1, world))
        target_B, terms = margined.cosines_B * self._scale, margined.norm_terms
        negatives = Negatives(self._limit, margined.curriculum, self._scale)
        shift_B, sums_B = rows.exponentiate(weights, placed, target_B, negatives)
        # Copy first: allreduce works in place.
        largest_B = world.allreduce(shift_B.copy(), "head.maximum", op="max")
        kept_B = mx.nd.exp(mx.nd.maximum(shift_B - largest_B, _LEAST))
        # target_B and slopes_B are undefined for images whose target is on another rank.
        none_B = mx.nd.zeros_like(local_B)
        addends = [sums_B * kept_B, mx.nd.where(local_B, target_B - largest_B, none_B)]
        if terms is not None:
            addends.append(mx.nd.where(local_B, terms.slopes_B, none_B))
        totals = world.allreduce(mx.nd.stack(*addends), "head.denominator")

        others_B, target_B = totals[0], totals[1]
        denominator_B = others_B + mx.nd.exp(target_B)
        loss = mx.nd.mean(mx.nd.log(denominator_B) - target_B)
        factor_B = (self._scale / others_B.size) / denominator_B
        rows.set_targets(weights, placed, -margined.slopes_B * others_B / kept_B)
        row_factor_B1, radial_B1 = (factor_B * kept_B).reshape((-1, 1)), None
        if terms is not None:
            radial_B = terms.penalty_slopes_B / local_B.size - factor_B * others_B * totals[2]
            loss, radial_B1 = loss + mx.nd.mean(terms.penalties_B), radial_B.reshape((-1, 1))
        return loss, row_factor_B1, radial_B1

    def _sample(self, labels: NDArray[np.int64], update: int) -> Sample:
        if any(announced == update for announced, _ in self._announced):
            self._draw()
        while self._drawn:
            sample = self._drawn.pop(0)
            if sample.update == update:
                return sample
        return self._sampler.sample(self._gather_labels(labels), update)

    def _gather_labels(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        # On the CPU whatever the device: the sampler works there, without waiting for the device.
        labels_b = array_of(labels, np.int64)
        gathered: NDArray[np.int64] = self._world.allgather(labels_b, "head.labels").asnumpy()
        return gathered
