"""A classifier with its weights, created from the options of a run."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any, Union

from backbones import classifiers
from backbones.checkpoint import read_tensors, take
from backbones.classifiers import Normalization
from backbones.graph.nodes import Shape, to_json
from backbones.network import Context, Network, checkpoint_paths
from backbones.options import ClassifierOptions, split_checkpoint
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx

_log = logging.getLogger(__name__)

_SUMS = ("elemwise_add", "broadcast_add", "_Plus")


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
