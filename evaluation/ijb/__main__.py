"""The protocols of IJB-B and IJB-C with a trained network.

    python -m evaluation.ijb IJBC --model models/run/model,0 --out ijbc-features

Features of all faces go to a folder first, which several ranks share and which a killed command
continues. Then rank 0 makes templates of them, compares pairs (1:1) and searches galleries (1:N).
InsightFace has two programs for 1:1, which add the views of a face in two ways: ``--like`` names
the one whose numbers are wanted, and the default is that of Partial FC.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Optional

import numpy as np

from data.align.points import read_face
from data.worker_threads import add_workers, map_in_order, track
from evaluation.features import FACE_SIZE, Images, batches
from evaluation.files import check_output, write_output
from evaluation.ijb import protocols
from evaluation.ijb.features_folder import PART, FeaturesFolder, describe
from evaluation.ijb.lists import (
    GALLERIES,
    Faces,
    Lists,
    Pairs,
    Subjects,
    find_lists,
    read_faces,
    read_pairs,
    read_subjects,
)
from evaluation.network import check_same, device_of, files_of, open_network
from evaluation.options import add_network
from runtime.command_line import Parser
from runtime.environment import prepare_lanes
from runtime.errors import ConfigError, run_stoppable

_ONE_TO_ONE, _ONE_TO_MANY = "1:1", "1:N"
# The program of Partial FC, and the other ones of InsightFace.
_UNIT_VIEWS, _RAW_VIEWS = "ijb.py", "ijb_11.py"


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m evaluation.ijb",
        description="Verify (1:1) and identify (1:N) the templates of IJB-B or IJB-C with a "
        "trained network. Under horovodrun or mpirun the ranks share the faces, each on the GPU "
        "of its local rank if there is one; all of them have to see the same files under the same "
        "paths.",
    )
    add = parser.add_argument
    folder_help = "IJBB or IJBC of InsightFace's release, with loose_crop and meta"
    add("folder", type=Path, metavar="FOLDER", help=folder_help)
    out_help = (
        "the folder of the features; what it has of this model is not computed again, so a command "
        "that was stopped continues"
    )
    add("--out", required=True, type=Path, metavar="DIR", help=out_help)
    add_network(parser)
    protocol_help = "one of the protocols (both)"
    add("--protocol", choices=(_ONE_TO_ONE, _ONE_TO_MANY), help=protocol_help)
    like_help = (
        "the program of InsightFace whose numbers 1:1 gives (%(default)s, of Partial FC): it "
        "normalizes the features of each view of a face before they are added, ijb_11.py does not; "
        "1:N is that of ijb_evals.py with both"
    )
    add("--like", choices=(_UNIT_VIEWS, _RAW_VIEWS), default=_UNIT_VIEWS, help=like_help)
    score_help = "do not multiply the features of a face by the detector's score"
    add("--no-detector-score", action="store_true", help=score_help)
    norm_help = "normalize the features of each face, which otherwise counts by their length"
    add("--no-norm-score", action="store_true", help=norm_help)
    add("--json", type=Path, metavar="FILE", help="write the results there, too")
    result_help = "the folder in which 1:1 writes IJBB_result or IJBC_result (this one)"
    add("--result-dir", type=Path, default=Path(), metavar="DIR", help=result_help)
    job_help = "the name of its files, JOB.npy (cosines) and JOB.pdf (ROC) (%(default)s)"
    add("--job", default="insightface", metavar="JOB", help=job_help)
    add_workers(parser)
    return parser.parse_args(argv)


def _embed(
    options: argparse.Namespace, world: Any, lists: Lists, faces: Faces, folder: FeaturesFolder
) -> None:
    """Embed what the folder lacks; the ranks share its parts."""
    missing = world.broadcast_object(folder.missing(), "ijb.missing")
    if not missing:
        return
    network = open_network(options, device_of(options, world))
    if network.image_size != FACE_SIZE:
        raise ConfigError(
            f"faces are aligned to 112 x 112, and {network.name} is to take images of "
            f"{network.image_size}; leave --image-size out, or give another network"
        )
    network = replace(network, batch_size=min(options.batch_size, PART))
    own = missing[world.rank :: world.size]
    numbers = list(chain.from_iterable(map(folder.faces, own)))

    def read(number: int) -> Images:
        return read_face(lists.images / faces.names[number], faces.points[number])

    with map_in_order(read, numbers, options.workers) as images:
        shown = track(images, len(numbers), "embedding") if world.rank == 0 else images
        for part in own:
            found = islice(shown, len(folder.faces(part)))
            views = [network.views(batch) for batch in batches(found, network.batch_size)]
            folder.write(part, np.concatenate([np.concatenate(one, axis=1) for one in views]))
    world.barrier()


def _compare(
    options: argparse.Namespace,
    lists: Lists,
    faces: Faces,
    tables: tuple[Optional[Pairs], list[Subjects]],
    folder: FeaturesFolder,
) -> None:
    """Print the results of the protocols, and write them."""
    name = options.model if isinstance(options.model, Path) else "{},{}".format(*options.model)
    pairs, of_subjects = tables
    weighting = {
        "detector_score": not options.no_detector_score,
        "norm_score": not options.no_norm_score,
    }
    found: dict[str, Any] = {
        "set": lists.name,
        "model": str(name),
        "like": options.like,
        "flip": not options.no_flip,
        **weighting,
    }
    if pairs is not None:
        unit_views = options.like == _UNIT_VIEWS
        features = protocols.template_features(
            folder.read(), faces, unit_views=unit_views, **weighting
        )
        cosines = protocols.cosines_of_pairs(features, pairs)
        found[_ONE_TO_ONE], curve = protocols.verify(cosines, pairs.same)
        print(
            f"{lists.name} 1:1, {len(cosines):,} pairs of {len(features):,} templates, "
            f"{pairs.same.sum():,} of one person, as {options.like}; in percent"
        )
        print(*protocols.verification_lines(str(name), found[_ONE_TO_ONE]), sep="\n")
        text = f"{options.job}: AUC {100 * found[_ONE_TO_ONE]['auc']:.4f} %"
        protocols.write_results(_result_files(options, lists), cosines, curve, text)
    if of_subjects:
        features = protocols.template_features(folder.read(), faces, unit_views=False, **weighting)
        *galleries, probes = of_subjects
        results = {
            word: protocols.identify(features, one, probes)
            for word, one in zip(GALLERIES[lists.prefix], galleries)
        }
        print(f"{lists.name} 1:N, {len(probes.templates):,} mixed probes; in percent")
        print(*protocols.identification_lines(results), sep="\n")
        found[_ONE_TO_MANY] = {"galleries": results, "mean": protocols.mean_of(results)}
    if options.json:
        write_output(options.json, (json.dumps(found, indent=1) + "\n").encode(), "--json")


def _result_files(options: argparse.Namespace, lists: Lists) -> tuple[Path, Path]:
    """Return where InsightFace's program writes the cosines of a job, and its curve."""
    results = options.result_dir / f"{lists.prefix.upper()}_result"
    return results / f"{options.job}.npy", results / f"{options.job}.pdf"


def main(argv: Optional[Sequence[str]] = None, world: Any = None) -> None:
    """Embed the faces and print the results; ``world`` is that of a test."""
    options = _parse(argv)
    prepare_lanes()
    lists = find_lists(options.folder)
    faces = read_faces(lists)
    description = describe(options, lists.points, len(faces.names))
    # Here, because rooms meet in programs only.
    from parallel.world import join_ranks

    world = world or join_ranks()
    check_same(world, description, "ijb.description", "models or lists")
    with FeaturesFolder(options.out, description) as folder:
        if world.rank == 0:
            # Before hours of work, so that a wrong line is named first.
            tables = (*lists.galleries, lists.probes) if options.protocol != _ONE_TO_ONE else ()
            subjects = [read_subjects(path, faces.template_ids) for path in tables]
            is_verified = options.protocol != _ONE_TO_MANY
            pairs = read_pairs(lists.pairs, faces.template_ids) if is_verified else None
            folder.claim()
            if pairs is not None:
                for path in _result_files(options, lists):
                    check_output(path, "--result-dir")
            if options.json:
                read = (lists.points, lists.media, lists.pairs, *lists.galleries, lists.probes)
                check_output(options.json, "--json", [*read, *files_of(options.model)])
        _embed(options, world, lists, faces, folder)
        if world.rank == 0:
            _compare(options, lists, faces, (pairs, subjects), folder)


if __name__ == "__main__":
    run_stoppable(main)
