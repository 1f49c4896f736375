"""Backbones and classifiers with their weights: created from options, or loaded from a checkpoint.

On a CPU they run a rewritten graph (``backbones.graph.onednn.prelu``); what is exported is always
the plain graph, a backbone's with the tensor names of the InsightFace checkpoints.
"""

from __future__ import annotations

import logging
import zlib
from functools import partial
from pathlib import Path
from typing import Any, Optional, Union

import backbones
from backbones import classifiers
from backbones.checkpoint import FACE_SIZE, read_tensors, read_weights, take
from backbones.classifiers import Normalization
from backbones.graph.nodes import Shape, to_json
from backbones.graph.passes import Accumulation, Recomputation, cut
from backbones.graph.symbol_file import infer_shapes, read_graph
from backbones.network import Context, Network, checkpoint_paths, for_device
from backbones.options import BackboneOptions, ClassifierOptions, split_checkpoint
from runtime.environment import usable_dtype
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx

_log = logging.getLogger(__name__)

_SUMS = ("elemwise_add", "broadcast_add", "_Plus")


class Backbone(Network):
    """A network from images to embeddings."""

    _dropout_seed: Optional[int] = None
    _update = ""

    @classmethod
    def create(
        cls,
        options: BackboneOptions,
        *,
        image_size: tuple[int, int] = FACE_SIZE,
        seed: int,
        ctx: Context = None,
    ) -> Backbone:
        """Return an untrained network, or one that starts from a checkpoint.

        Equal seeds give equal initial weights on every rank. The image size is height and width.

        Raises:
            ConfigError: there is no such network, it cannot take such images, or nothing of it fits
                ``--freeze``.
            DataError: the checkpoint is missing or broken, nothing in it fits, or a shape differs.
        """
        ctx = ctx or mx.cpu()
        name, output = options.network, options.net_output
        build = partial(backbones.build, name, embedding_size=options.embedding_size, output=output)
        shape = (3, *image_size)
        backbone = cls.assemble(options, f"--network {name}", build, shape, seed, ctx)
        if any(node["op"] == "Dropout" for node in to_json(backbone.graph)["nodes"]):
            backbone._dropout_seed = seed
        if options.recompute:
            parts = cut(backbone._trained, image_size)
            backbone._training_pass = Recomputation(parts, backbone.own_parameters, ctx)
        if options.accumulate > 1:
            backbone.accumulate(options.accumulate)
        if options.pretrained:
            backbone.load_pretrained(*split_checkpoint("pretrained", options.pretrained))
        return backbone

    @classmethod
    def load(
        cls,
        prefix: Union[str, Path],
        epoch: int = 0,
        *,
        image_size: tuple[int, int] = FACE_SIZE,
        ctx: Context = None,
        dtype: str = "float32",
    ) -> Backbone:
        """Return the network up to ``fc1_output`` of a checkpoint, exported here or by InsightFace.

        Reads ``<prefix>-symbol.json`` and ``<prefix>-<epoch, four digits>.params``. Nodes and
        tensors after the embedding (a classifier) are ignored. ``dtype`` is that of maps and
        products on a CPU: float32, or bfloat16 where there are tiles.

        Raises:
            DataError: a file is missing or broken, or a tensor is missing or has a wrong shape.
        """
        ctx = ctx or mx.cpu()
        symbol_path, parameter_path = checkpoint_paths(prefix, epoch)
        symbol = read_graph(symbol_path)
        found = read_weights(parameter_path, infer_shapes(symbol, image_size, symbol_path))
        weights = {name: mx.nd.array(array, dtype=array.dtype) for name, array in found.items()}
        dtype = usable_dtype("--dtype", dtype)
        trained = for_device(symbol, ctx, (3, *image_size), weights, dtype)
        return cls(trained, symbol, weights, ctx, dtype=dtype)

    def load_pretrained(self, prefix: Union[str, Path], epoch: int) -> None:
        """Load the tensors of another checkpoint that this network has, too.

        Only ``<prefix>-<epoch, four digits>.params`` is read, exported here or by InsightFace.
        Tensors that the file lacks keep their values; these, and those that only the file has, such
        as a classifier's, are logged: fine-tuning depends on them.

        Raises:
            DataError: the file is missing or broken, a tensor is not finite or has another shape
                than here, or no tensor is of this network.
        """
        path = checkpoint_paths(prefix, epoch)[1]
        found = read_tensors(path)
        # InsightFace's MobileFaceNets have another name for this tensor than its iResNets.
        parameters = self.parameters
        if "pre_fc1_weight" in parameters and "pre_fc1_weight" not in found:
            if "fc1_weight" in found:
                found["pre_fc1_weight"] = found.pop("fc1_weight")
        loaded = [name for name in parameters if name in found]
        if not loaded:
            raise DataError(
                f"{path} has no tensor of this network (its first is {next(iter(found), None)!r}); "
                "choose the --network that the checkpoint was made with"
            )
        remedy = (
            "choose the --network, --net-output and --embedding-size that the checkpoint was made "
            "with, and images of its size"
        )
        take(parameters, path, found, loaded, remedy)
        missing = [name for name in parameters if name not in found]
        left_over = [name for name in found if name not in parameters]
        kinds = ("loaded", "missing, left at their initial values", "left over in the file")
        for kind, names in zip(kinds, (loaded, missing, left_over)):
            listed = ": " + " ".join(names) if names else ""
            _log.info("pretrained %s: %d tensors %s%s", path, len(names), kind, listed)

    def accumulate(self, parts: int) -> None:
        """Train on batches in parts of one size, of which there are at least 2."""
        self._training_pass = Accumulation(
            parts, self._training_pass, self.parameters, self.statistics, self._begin_part
        )

    def begin_update(self, update: int, rank: int) -> None:
        """Have the dropout of an update depend on seed, update and rank alone.

        So a run that goes on from a checkpoint drops what it would have dropped.
        """
        self._update = f"{update} {rank}"
        self._begin_part(0)

    def _begin_part(self, part: int) -> None:
        """The same for a part of its batch."""
        if self._dropout_seed is not None:
            text = f"{self._dropout_seed} {self._update}" + (f" {part}" if part else "")
            mx.random.seed(zlib.crc32(text.encode()) % 2**31, ctx=self.context)


class Classifier(Network):
    """A network from images to logits."""

    @classmethod
    def create(
        cls,
        options: ClassifierOptions,
        *,
        classes: int,
        image_shape: Shape,
        normalization: Normalization,
        seed: int,
        ctx: Context = None,
    ) -> Classifier:
        """Return an untrained network; equal seeds give equal weights on every rank.

        With ``last_gamma`` every residual unit begins as the identity (Goyal et al.,
        arXiv:1706.02677, section 5.1). The image shape is channels, height and width.

        Raises:
            ConfigError: there is no such classifier, the images are too small for it, or it has no
                residual unit for ``last_gamma``, or nothing fits ``freeze``.
            DataError: the checkpoint of ``pretrained`` is broken or of another model.
        """
        name = options.model
        build = partial(classifiers.build, name, classes=classes, normalization=normalization)
        ctx = ctx or mx.cpu()
        classifier = cls.assemble(options, f"--model {name}", build, image_shape, seed, ctx)
        if options.last_gamma:
            for gamma in _last_gammas(name, classifier.graph):
                classifier.parameters[gamma].data()[:] = 0
        if options.pretrained:
            classifier.load_pretrained(*split_checkpoint("pretrained", options.pretrained))
        return classifier

    def load_pretrained(self, prefix: Union[str, Path], epoch: int) -> None:
        """Take the tensors of a checkpoint of the same model, possibly for other classes.

        Only ``<prefix>-<epoch, four digits>.params`` is read. With another number of classes the
        last layer keeps its initial values.

        Raises:
            DataError: the file is missing or broken, or has other tensors, or of other shapes, or
                some that are not finite.
        """
        path = checkpoint_paths(prefix, epoch)[1]
        found, parameters = read_tensors(path), self.parameters
        remedy = "give a checkpoint of this --model, for images of this size"
        for name in [*parameters, *found]:
            if name not in parameters or name not in found:
                where = "this --model" if name in found else "the file"
                raise DataError(f"{path}: {where} has no tensor {name!r}; {remedy}")
        # The kernel that makes the logits, and its bias or what is before it.
        last = self.graph.list_arguments()[-2:]
        fresh = [name for name in last if found[name].shape[:1] != parameters[name].shape[:1]]
        taken = [name for name in parameters if name not in fresh]
        take(parameters, path, found, taken, remedy)
        _log.info(
            "pretrained %s: %d tensors loaded; %s",
            *(path, len(found) - len(fresh)),
            f"new for another number of classes: {' '.join(fresh)}" if fresh else "all of them",
        )


def _last_gammas(name: str, symbol: Any) -> list[str]:
    """Return the names of the gammas of the BatchNorms that end the residual units of a graph.

    Their outputs are added to the shortcuts. Where both addends come from a BatchNorm (the shortcut
    is a projection, or the unit before), the one that is deeper in the graph ends the residual.
    """
    nodes = to_json(symbol)["nodes"]
    depths: list[int] = []
    found = []
    for node in nodes:
        inputs = [entry[0] for entry in node["inputs"]]
        depths.append(1 + max((depths[index] for index in inputs), default=0))
        if node["op"] in _SUMS:
            last = max(inputs, key=depths.__getitem__)
            if nodes[last]["op"] == "BatchNorm":
                found.append(nodes[nodes[last]["inputs"][1][0]]["name"])
    if not found:
        raise ConfigError(
            f"--last-gamma has no effect on --model {name}, which has no residual units that end "
            "in BatchNorm; leave it out"
        )
    return found
