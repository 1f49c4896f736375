"""The plan of a run of ``classify.py``: memory and collectives, before it is queued.

Unlike the plan of faces it opens the data set, which says how many classes and images there are and
of which shape, and makes the network, for its parameters and the shapes of its graph.
"""

from __future__ import annotations

from typing import NamedTuple

from training.config.images import ImageConfig
from training.plan.table import COMPUTED, ESTIMATED, PROGRAM_BYTES, Item, render

_FLOAT = 4


class ImageSize(NamedTuple):
    """Sizes of the data set and of the network: numbers of parameters, elements of maps."""

    classes: int
    images: int
    parameters: int
    trained: int
    maps: int
    """Elements of the outputs of all operators for one image."""


def describe(config: ImageConfig) -> str:
    """Describe the run of a checked configuration on ``--world-size`` ranks (default 1).

    Raises:
        ConfigError: the network does not take these images.
        DataError: the data is missing or broken.
    """
    size, batch, ranks = _look(config), config.data.batch_size, config.dry_run.world_size or 1
    per_epoch = size.images // (batch * ranks)
    held = _FLOAT * (size.parameters + 2 * size.trained)
    # Maps with their gradients were seen to take less than the outputs of all operators.
    share = 1.0 if config.classifier.dtype == "float32" else 0.5
    maps = round(_FLOAT * share * batch * size.maps)
    libraries = PROGRAM_BYTES + 2 * _FLOAT * size.parameters
    halves = config.classifier.dtype == "float16" or config.exchange.fp16_allreduce
    return render(
        {
            "device": "cpu",
            "ranks": ranks,
            "batch_size": batch,
            "num_classes": size.classes,
            "num_images": size.images,
            "updates_per_epoch": per_epoch,
            "updates": config.schedule.total_updates(per_epoch),
        },
        [
            # Parameters; gradients and momentum of those that are trained.
            Item("backbone", held, COMPUTED),
            Item("activations", maps, ESTIMATED),
            Item("libraries", libraries, ESTIMATED),
        ],
        # The copy of parameters and momentum that rank 0 keeps.
        _FLOAT * (size.parameters + size.trained) if config.run.keep else 0,
        {"allreduce of the gradients": (2 if halves else _FLOAT) * size.trained},
        as_json=config.dry_run.json,
    )


def _look(config: ImageConfig) -> ImageSize:
    """Open the data set and make the network."""
    from backbones.classifiers.classifier import Classifier
    from backbones.graph.recompute import output_elements
    from training.image_data import open_images

    data = open_images(config.data, config.run.seed)
    classifier = Classifier.create(
        config.classifier,
        classes=data.num_classes,
        image_shape=data.shape,
        normalization=data.normalization,
        seed=config.run.seed,
    )
    every = [*classifier.parameters.values()]
    trained = [one for one in every if one.grad_req != "null"]
    return ImageSize(
        data.num_classes,
        data.num_examples(config.data),
        sum(one.data().size for one in every),
        sum(one.data().size for one in trained),
        output_elements(classifier.graph, data.shape),
    )
