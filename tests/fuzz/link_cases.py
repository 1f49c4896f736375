"""Files that readers open and writers make, each with a case that uses it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import safetensors.numpy

from backbones.graph import parameter_file
from data.align.points import ListedFaces, PointsFile
from data.fingerprint import fingerprint
from data.images import cifar, mnist
from data.images.class_files import ClassFolders
from data.named_images import NamedImages, Size, open_sources
from data.pack.image_files import ImageReader
from data.records.record_set import RecordSet
from data.records.shards import open_sets
from data.records.writer import RecordWriter, shard_writer
from data.verification.bin_file import read_bin, write_bin
from data.verification.pairs import read_pairs
from evaluation.embed.index import read_embeddings
from evaluation.export.arcface_torch import read_state_dict
from evaluation.ijb import lists as lists_of_faces
from evaluation.ijb.features_folder import FeaturesFolder
from evaluation.report import run_files
from evaluation.verification.groups import read_groups
from parallel import host_lists
from parallel.launch import cluster_files
from runtime.files import write_atomically
from tests.fuzz.ijb_readers import DESCRIPTION, SIZES
from tests.support.ijb_set import template_ids, write_set

_IMAGE, _PARAMS = "a/a_0001.jpg", "m-0000.params"
_FACE = np.arange(10, dtype=np.float64).reshape(1, 5, 2)
_POINTS = b"a.jpg 69 109 106 113 77 142 73 152 108 154\n"


class Case(NamedTuple):
    """A file that is read or written."""

    make: Callable[[Path], None]
    """Makes all that belongs to it in a folder; nothing if the file is only written."""
    name: str
    """Name of the file in the folder."""
    use: Callable[[Path], Any]
    """Reads or writes it; gets the folder."""


def _image() -> bytes:
    return bytes(cv2.imencode(".jpg", np.full((8, 8, 3), 9, np.uint8))[1])


def _make_set(folder: Path) -> None:
    with RecordWriter(folder, image_size=(8, 8)) as writer:
        for label in range(2):
            writer.write(_image(), label)


def _make_shards(folder: Path) -> None:
    with shard_writer(folder, [1, 1], image_size=(8, 8)) as writer:
        for label in range(2):
            writer.write(_image(), label)


def _make_images(folder: Path) -> None:
    for person in ("a", "b"):
        (folder / person).mkdir()
        (folder / person / f"{person}_0001.jpg").write_bytes(_image())


def _embed(folder: Path) -> None:
    for inputs in ([str(folder / "a" / "a_0001.jpg")], [str(folder)]):
        images = NamedImages(open_sources(inputs), Size(8, 8))
        for number in range(len(images)):
            images.read(number)


def _make_pairs(folder: Path) -> None:
    write_bin(folder / "a.bin", [_image()] * 4, [True, False])


def _written(name: str, content: bytes, use: Callable[[Path], Any]) -> Case:
    """A file that is read alone."""

    def make(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return Case(make, name, lambda at: use(at / name))


def _nothing(_: Path) -> None:
    pass


def _use_set(folder: Path) -> None:
    RecordSet(folder).labels()


def _classify(folder: Path) -> None:
    images = ClassFolders(folder)
    for number in range(len(images)):
        images.image(number)


def _read_servers(folder: Path) -> None:
    hosts = cluster_files.read_hosts(folder / "hosts", 1)
    cluster_files.read_servers(folder / "servers", 1, hosts.addresses)


def _read_config(path: Path) -> None:
    from training.config import faces

    faces.parse(["--config", str(path), "--dataset", "synthetic"])


def _make_pairs_list(folder: Path) -> None:
    _make_images(folder)
    (folder / "a" / "a_0002.jpg").write_bytes(_image())
    (folder / "pairs.txt").write_bytes(b"1\t1\na\t1\t2\na\t1\tb\t1\n")


def _make_servers(folder: Path) -> None:
    (folder / "hosts").write_bytes(b"a\n")
    (folder / "servers").write_bytes(b"a 1\n")


def _make_embeddings(folder: Path) -> None:
    np.save(folder / "e.npy", np.ones((2, 3), np.float32))
    (folder / "e.tsv").write_text("0\ta\tb\n1\tc\td\n")


def _make_params(folder: Path) -> None:
    with (folder / _PARAMS).open("wb") as file:
        parameter_file.write_parameters(file, {"arg:a": np.ones((2, 3), np.float32)})


def _make_checkpoint(folder: Path) -> None:
    from runtime.state import OWN, Stored
    from training.checkpoint import files
    from training.checkpoint.layout import Part

    files.write_rank(folder / "hidden", 0, {"a": Stored(OWN, np.ones(3, np.float32))})
    final = folder / files.name_of(7)
    files.publish(folder / "hidden", final, Part(7, 1, "", (), {}, {}, {}), [0], keep=1)
    for path in final.iterdir():
        path.rename(folder / path.name)


def _read_checkpoint(folder: Path) -> None:
    from training.checkpoint.reader import Checkpoint

    checkpoint = Checkpoint(folder)
    checkpoint.verify(0)
    checkpoint.own("a", 0, 1)


def _write_checkpoint(folder: Path) -> None:
    from runtime.state import OWN, Stored
    from training.checkpoint import files

    files.write_rank(folder, 0, {"a": Stored(OWN, np.ones(3, np.float32))})
    files.report_failure(folder, 0, "full")


def _make_store(folder: Path) -> None:
    from partial_fc.store.header import Header

    Header(5, 2, 3, {}, 0, 0, 2).write(folder)
    (folder / "index.bin").write_bytes(bytes(16))


def _read_store(folder: Path) -> None:
    from partial_fc.store.header import Header

    header = Header.read(folder)
    if header is not None:
        header.check_files(folder)
        header.private_index(folder)


def _make_state_dict(folder: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(3, np.float32)}, folder / "m.safetensors")


def _make_mnist(folder: Path) -> None:
    for part in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        shape = (2, 28, 28) if "images" in part else (2,)
        head = (0x0800 + len(shape)).to_bytes(4, "big")
        head += b"".join(side.to_bytes(4, "big") for side in shape)
        (folder / part).write_bytes(head + bytes(int(np.prod(shape))))


def _make_cifar(folder: Path) -> None:
    with (folder / "test_batch.bin").open("wb") as file:
        file.truncate(10_000 * (1 + 3 * 32 * 32))


def _make_ijb(folder: Path) -> None:
    write_set(folder / "IJBC", SIZES)


def _read_ijb(folder: Path) -> None:
    lists = lists_of_faces.find_lists(folder / "IJBC")
    lists_of_faces.read_faces(lists)
    lists_of_faces.read_pairs(lists.pairs, template_ids(SIZES))


def _features(folder: Path) -> None:
    with FeaturesFolder(folder / "features", DESCRIPTION) as features:
        features.claim()
        if features.missing():
            features.write(0, np.ones((5, 6), np.float32))
        list(features.read())


def _make_run(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    record = {"update": 1, "target": "lfw", "accuracy": 0.5}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    (folder / "report").mkdir()
    scores = np.array([[0.5, 1], [0.25, 0]], np.float32)
    np.save(folder / "report" / "scores-lfw.npy", scores)
    (folder / "report" / "samples.jpg").write_bytes(_image())


def _lock_run(folder: Path) -> None:
    from training.run_folder import locked

    with locked(folder):
        pass


def _log(folder: Path) -> None:
    from training.log.handlers import FileHandler

    handler = FileHandler(folder, 0)
    handler.emit(logging.makeLogRecord({"msg": "x"}))
    handler.close()


def _write_metrics(folder: Path) -> None:
    from training.log.metric_files import MetricFiles

    files = MetricFiles(folder)
    files.write(1, {"loss": 0.5})
    files.close()


def _trace(folder: Path) -> None:
    from parallel.parameter_server.trace import Trace

    Trace(str(folder), "worker-0").write("word")


READ = {
    "rec": Case(_make_set, "train.rec", _use_set),
    "idx": Case(_make_set, "train.idx", _use_set),
    "property": Case(_make_set, "property", _use_set),
    "shard": Case(_make_shards, "train-00001.rec", lambda at: open_sets([at])),
    "packed image": Case(_make_images, _IMAGE, lambda at: ImageReader().read(str(at / _IMAGE))),
    "embedded image": Case(_make_images, _IMAGE, _embed),
    "listed face": Case(_make_images, _IMAGE, lambda at: ListedFaces(at, [_IMAGE], _FACE).read(0)),
    "bin": Case(_make_pairs, "a.bin", lambda at: read_bin(at / "a.bin")),
    "pairs": Case(_make_pairs_list, "pairs.txt", lambda at: read_pairs(at / "pairs.txt", at)),
    "points": _written("points.txt", _POINTS, lambda path: PointsFile(path, path.parent)),
    "groups": _written("groups.txt", b"a\nb\n", lambda path: read_groups(path, 2, "rfw")),
    "hosts": _written("hosts", b"a slots=2\n", host_lists.read_file),
    "servers": Case(_make_servers, "servers", _read_servers),
    "data_sharding": _written(
        "data_sharding", b"0 1\n", lambda path: cluster_files.read_lines(path, "two numbers")
    ),
    "npy": Case(_make_embeddings, "e.npy", lambda at: read_embeddings(at / "e.npy")),
    "tsv": Case(_make_embeddings, "e.tsv", lambda at: read_embeddings(at / "e.npy")),
    "params": Case(_make_params, _PARAMS, lambda at: parameter_file.read_parameters(at / _PARAMS)),
    "manifest": Case(_make_checkpoint, "manifest.json", _read_checkpoint),
    "rank": Case(_make_checkpoint, "rank-0000.bin", _read_checkpoint),
    "index of a store": Case(_make_store, "index.bin", _read_store),
    "config": _written("config.json", b'{"lr": 0.5}', _read_config),
    "state dict": Case(
        _make_state_dict, "m.safetensors", lambda at: read_state_dict(at / "m.safetensors")
    ),
    "mnist": Case(_make_mnist, "t10k-images-idx3-ubyte", lambda at: mnist.read(at, "validation")),
    "cifar": Case(
        _make_cifar, "test_batch.bin", lambda at: cifar.read(cifar.CIFAR10, at, "validation")
    ),
    "ijb": Case(_make_ijb, "IJBC/meta/ijbc_face_tid_mid.txt", _read_ijb),
    "description of features": Case(_features, "features/features.json", _features),
    "metrics": Case(_make_run, "metrics.jsonl", run_files.read),
}
"""Files without which a reader has to refuse."""

OPTIONAL = {
    "cache of an index": Case(_make_set, "train.idx.cache", _use_set),
    "cache of labels": Case(_make_set, "train.labels.cache", _use_set),
    "image of a class": Case(_make_images, _IMAGE, _classify),
    "compared image": Case(_make_images, _IMAGE, lambda at: fingerprint([at, at / _IMAGE])),
    "part of features": Case(_features, "features/part-00000.npy", _features),
    "store.json": Case(_make_store, "store.json", _read_store),
    "scores": Case(_make_run, "report/scores-lfw.npy", run_files.read),
    "samples": Case(_make_run, "report/samples.jpg", run_files.read),
    "config of a run": Case(_make_run, "config.json", run_files.read),
}
"""Files without which, or in place of which, a reader may go on."""

WRITTEN = {
    "file": Case(_nothing, "file", lambda at: write_atomically(at / "file", b"content")),
    "lock of a run": Case(_nothing, "run.lock", _lock_run),
    "log": Case(lambda at: (at / "logs").mkdir(), "logs/rank-0000.log", _log),
    "metrics.jsonl": Case(_nothing, "metrics.jsonl", _write_metrics),
    "trace": Case(_nothing, "worker-0", _trace),
    "file of a rank": Case(_nothing, "rank-0000.bin", _write_checkpoint),
    "marker of a rank": Case(_nothing, ".rank-0000.json", _write_checkpoint),
    "failure of a rank": Case(_nothing, "rank-0000.failed", _write_checkpoint),
}
"""Files that are written."""

CASES = {**READ, **OPTIONAL, **WRITTEN}
