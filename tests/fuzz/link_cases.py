"""Files that readers open and writers make, each with a case that uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import safetensors.numpy

from tests.fuzz.ijb_readers import DESCRIPTION, SIZES
from tests.support.ijb_set import template_ids, write_set

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
    from data.records.writer import RecordWriter

    with RecordWriter(folder, image_size=(8, 8)) as writer:
        for label in range(2):
            writer.write(_image(), label)


def _use_set(folder: Path) -> None:
    from data.records.record_set import RecordSet

    RecordSet(folder).labels()


def _make_shards(folder: Path) -> None:
    from data.records.writer import shard_writer

    with shard_writer(folder, [1, 1], image_size=(8, 8)) as writer:
        for label in range(2):
            writer.write(_image(), label)


def _use_shards(folder: Path) -> None:
    from data.records.shards import open_sets

    open_sets([folder])


def _make_images(folder: Path) -> None:
    for person in ("a", "b"):
        (folder / person).mkdir()
        (folder / person / f"{person}_0001.jpg").write_bytes(_image())


def _pack(folder: Path) -> None:
    from data.pack.image_files import ImageReader

    ImageReader().read(str(folder / "a" / "a_0001.jpg"))


def _embed(folder: Path) -> None:
    from data.named_images import NamedImages, Size, open_sources

    for inputs in ([str(folder / "a" / "a_0001.jpg")], [str(folder)]):
        images = NamedImages(open_sources(inputs), Size(8, 8))
        for number in range(len(images)):
            images.read(number)


def _classify(folder: Path) -> None:
    from data.images.class_files import ClassFolders

    images = ClassFolders(folder)
    for number in range(len(images)):
        images.image(number)


def _compare_hosts(folder: Path) -> None:
    from data.fingerprint import fingerprint

    fingerprint([folder, folder / "a" / "a_0001.jpg"])


def _listed_faces(folder: Path) -> None:
    from data.align.points import ListedFaces

    points = np.arange(10, dtype=np.float64).reshape(1, 5, 2)
    ListedFaces(folder, ["a/a_0001.jpg"], points).read(0)


def _make_pairs(folder: Path) -> None:
    from data.verification.bin_file import write_bin

    write_bin(folder / "a.bin", [_image()] * 4, [True, False])


def _read_bin(folder: Path) -> None:
    from data.verification.bin_file import read_bin

    read_bin(folder / "a.bin")


def _writes(name: str, content: bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return make


def _read_pairs(folder: Path) -> None:
    from data.verification.pairs import read_pairs

    read_pairs(folder / "pairs.txt", folder)


def _make_pairs_list(folder: Path) -> None:
    _make_images(folder)
    (folder / "a" / "a_0002.jpg").write_bytes(_image())
    (folder / "pairs.txt").write_bytes(b"1\t1\na\t1\t2\na\t1\tb\t1\n")


def _read_points(folder: Path) -> None:
    from data.align.points import PointsFile

    PointsFile(folder / "points.txt", folder)


def _read_groups(folder: Path) -> None:
    from evaluation.verification.groups import read_groups

    read_groups(folder / "groups.txt", 2, "rfw")


def _read_hosts(folder: Path) -> None:
    from parallel.host_lists import read_file

    read_file(folder / "hosts")


def _read_servers(folder: Path) -> None:
    from parallel.launch.cluster_files import read_hosts, read_servers

    read_servers(folder / "servers", 1, read_hosts(folder / "hosts", 1).addresses)


def _make_servers(folder: Path) -> None:
    (folder / "hosts").write_bytes(b"a\n")
    (folder / "servers").write_bytes(b"a 1\n")


def _read_shares(folder: Path) -> None:
    from parallel.launch.cluster_files import read_lines

    read_lines(folder / "data_sharding", "two numbers")


def _make_embeddings(folder: Path) -> None:
    np.save(folder / "e.npy", np.ones((2, 3), np.float32))
    (folder / "e.tsv").write_text("0\ta\tb\n1\tc\td\n")


def _read_embeddings(folder: Path) -> None:
    from evaluation.embed.index import read_embeddings

    read_embeddings(folder / "e.npy")


def _make_params(folder: Path) -> None:
    from backbones.graph.parameter_file import write_parameters

    with (folder / "m-0000.params").open("wb") as file:
        write_parameters(file, {"arg:a": np.ones((2, 3), np.float32)})


def _read_params(folder: Path) -> None:
    from backbones.graph.parameter_file import read_parameters

    read_parameters(folder / "m-0000.params")


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


def _read_config(folder: Path) -> None:
    from training.config import faces

    faces.parse(["--config", str(folder / "config.json"), "--dataset", "synthetic"])


def _make_state_dict(folder: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(3, np.float32)}, folder / "m.safetensors")


def _read_state_dict(folder: Path) -> None:
    from evaluation.export.arcface_torch import read_state_dict

    read_state_dict(folder / "m.safetensors")


def _make_mnist(folder: Path) -> None:
    for part in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        shape = (2, 28, 28) if "images" in part else (2,)
        head = (0x0800 + len(shape)).to_bytes(4, "big")
        head += b"".join(side.to_bytes(4, "big") for side in shape)
        (folder / part).write_bytes(head + bytes(int(np.prod(shape))))


def _read_mnist(folder: Path) -> None:
    from data.images import mnist

    mnist.read(folder, "validation")


def _make_cifar(folder: Path) -> None:
    with (folder / "test_batch.bin").open("wb") as file:
        file.truncate(10_000 * (1 + 3 * 32 * 32))


def _read_cifar(folder: Path) -> None:
    from data.images import cifar

    cifar.read(cifar.CIFAR10, folder, "validation")


def _make_ijb(folder: Path) -> None:
    write_set(folder / "IJBC", SIZES)


def _read_ijb(folder: Path) -> None:
    from evaluation.ijb.lists import find_lists, read_faces, read_pairs

    lists = find_lists(folder / "IJBC")
    read_faces(lists)
    read_pairs(lists.pairs, template_ids(SIZES))


def _features(folder: Path) -> None:
    from evaluation.ijb.features_folder import FeaturesFolder

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


def _read_run(folder: Path) -> None:
    from evaluation.report.run_files import read

    read(folder)


def _write_file(folder: Path) -> None:
    from runtime.files import write_atomically

    write_atomically(folder / "file", b"content")


def _lock_run(folder: Path) -> None:
    from training.run_folder import locked

    with locked(folder):
        pass


def _log(folder: Path) -> None:
    import logging

    from runtime.errors import DataError
    from training.log.handlers import FileHandler

    try:
        handler = FileHandler(folder, 0)
    except OSError as error:
        raise DataError(f"it cannot be written: {error.strerror}") from None
    handler.emit(logging.makeLogRecord({"msg": "x"}))
    handler.close()


def _write_metrics(folder: Path) -> None:
    from runtime.errors import DataError
    from training.log.metric_files import MetricFiles

    try:
        files = MetricFiles(folder)
    except OSError as error:
        raise DataError(f"it cannot be written: {error.strerror}") from None
    files.write(1, {"loss": 0.5})
    files.close()


def _trace(folder: Path) -> None:
    from parallel.parameter_server.trace import Trace

    Trace(str(folder), "worker-0").write("word")


def _nothing(_: Path) -> None:
    pass


def _make_logs(folder: Path) -> None:
    (folder / "logs").mkdir()


READ = {
    "rec": Case(_make_set, "train.rec", _use_set),
    "idx": Case(_make_set, "train.idx", _use_set),
    "property": Case(_make_set, "property", _use_set),
    "shard": Case(_make_shards, "train-00001.rec", _use_shards),
    "packed image": Case(_make_images, "a/a_0001.jpg", _pack),
    "embedded image": Case(_make_images, "a/a_0001.jpg", _embed),
    "listed face": Case(_make_images, "a/a_0001.jpg", _listed_faces),
    "bin": Case(_make_pairs, "a.bin", _read_bin),
    "pairs": Case(_make_pairs_list, "pairs.txt", _read_pairs),
    "points": Case(_writes("points.txt", _POINTS), "points.txt", _read_points),
    "groups": Case(_writes("groups.txt", b"a\nb\n"), "groups.txt", _read_groups),
    "hosts": Case(_writes("hosts", b"a slots=2\n"), "hosts", _read_hosts),
    "servers": Case(_make_servers, "servers", _read_servers),
    "data_sharding": Case(_writes("data_sharding", b"0 1\n"), "data_sharding", _read_shares),
    "npy": Case(_make_embeddings, "e.npy", _read_embeddings),
    "tsv": Case(_make_embeddings, "e.tsv", _read_embeddings),
    "params": Case(_make_params, "m-0000.params", _read_params),
    "manifest": Case(_make_checkpoint, "manifest.json", _read_checkpoint),
    "rank": Case(_make_checkpoint, "rank-0000.bin", _read_checkpoint),
    "index of a store": Case(_make_store, "index.bin", _read_store),
    "config": Case(_writes("config.json", b'{"lr": 0.5}'), "config.json", _read_config),
    "state dict": Case(_make_state_dict, "m.safetensors", _read_state_dict),
    "mnist": Case(_make_mnist, "t10k-images-idx3-ubyte", _read_mnist),
    "cifar": Case(_make_cifar, "test_batch.bin", _read_cifar),
    "ijb": Case(_make_ijb, "IJBC/meta/ijbc_face_tid_mid.txt", _read_ijb),
    "description of features": Case(_features, "features/features.json", _features),
    "metrics": Case(_make_run, "metrics.jsonl", _read_run),
}
"""Files without which a reader has to refuse."""

OPTIONAL = {
    "cache of an index": Case(_make_set, "train.idx.cache", _use_set),
    "cache of labels": Case(_make_set, "train.labels.cache", _use_set),
    "image of a class": Case(_make_images, "a/a_0001.jpg", _classify),
    "compared image": Case(_make_images, "a/a_0001.jpg", _compare_hosts),
    "part of features": Case(_features, "features/part-00000.npy", _features),
    "store.json": Case(_make_store, "store.json", _read_store),
    "scores": Case(_make_run, "report/scores-lfw.npy", _read_run),
    "samples": Case(_make_run, "report/samples.jpg", _read_run),
    "config of a run": Case(_make_run, "config.json", _read_run),
}
"""Files without which, or in place of which, a reader may go on."""

WRITTEN = {
    "file": Case(_nothing, "file", _write_file),
    "lock of a run": Case(_nothing, "run.lock", _lock_run),
    "log": Case(_make_logs, "logs/rank-0000.log", _log),
    "metrics.jsonl": Case(_nothing, "metrics.jsonl", _write_metrics),
    "trace": Case(_nothing, "worker-0", _trace),
    "file of a rank": Case(_nothing, "rank-0000.bin", _write_checkpoint),
    "marker of a rank": Case(_nothing, ".rank-0000.json", _write_checkpoint),
    "failure of a rank": Case(_nothing, "rank-0000.failed", _write_checkpoint),
}
"""Files that are written."""

CASES = {**READ, **OPTIONAL, **WRITTEN}
