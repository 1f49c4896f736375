"""The plan of a run of ``classify.py``: memory and collectives, before it is queued.

Unlike the plan of faces it opens the data set, which says how many classes and images there are and
of which shape, and makes the network, for its parameters and the shapes of its graph.
"""

from __future__ import annotations

from training.config.images import ImageConfig
from training.plan import COMPUTED, ESTIMATED, PROGRAM_BYTES, Item, render

_FLOAT = 4


def describe(config: ImageConfig) -> str:
    """Describe the run of a checked configuration on ``--world-size`` ranks (default 1).

    Raises:
        ConfigError: the network does not take these images.
        DataError: the data is missing or broken.
    """
    from backbones.graph.passes import output_elements
    from backbones.model import Classifier
    from training.image_data import open_images

    batch, ranks = config.data.batch_size, config.dry_run.world_size or 1
    data = open_images(config.data, config.run.seed)
    classifier = Classifier.create(
        config.classifier,
        classes=data.training.num_classes,
        image_shape=data.training.shape,
        normalization=data.normalization,
        seed=config.run.seed,
    )
    sizes = [(one.data().size, one.grad_req != "null") for one in classifier.parameters.values()]
    parameters = sum(size for size, _ in sizes)
    trained = sum(size for size, is_trained in sizes if is_trained)
    images = data.num_examples(config.data)
    per_epoch = images // (batch * ranks)
    dtype = config.classifier.dtype
    # Maps with their gradients were seen to take less than the outputs of all operators.
    share = 1.0 if dtype == "float32" else 0.5
    maps = batch * output_elements(classifier.graph, data.training.shape)
    halves = dtype == "float16" or config.exchange.fp16_allreduce
    return render(
        {
            "device": "cpu",
            "ranks": ranks,
            "batch_size": batch,
            "num_classes": data.training.num_classes,
            "num_images": images,
            "updates_per_epoch": per_epoch,
            "updates": config.schedule.total_updates(per_epoch),
        },
        [
            # Parameters; gradients and momentum of those that are trained.
            Item("backbone", _FLOAT * (parameters + 2 * trained), COMPUTED),
            Item("activations", round(_FLOAT * share * maps), ESTIMATED),
            Item("libraries", PROGRAM_BYTES + 2 * _FLOAT * parameters, ESTIMATED),
        ],
        # The copy of parameters and momentum that rank 0 keeps.
        _FLOAT * (parameters + trained) if config.run.keep else 0,
        {"allreduce of the gradients": (2 if halves else _FLOAT) * trained},
        as_json=config.dry_run.json,
    )
