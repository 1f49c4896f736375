"""Something else in place of a file: a pipe, a device, a folder, or a link.

A reader has to refuse it in one line, and a file that a link leads to must stay as it was, whatever
is written.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.numpy

from data.align.points import PointsFile, read_face
from data.contents import fingerprint
from data.images import cifar, mnist
from data.images.image_set import ClassFolders
from data.named_images import NamedImages, open_sources
from data.pack.image_files import ImageReader
from data.records.record_set import RecordSet
from data.records.shards import open_sets
from data.records.writer import RecordWriter
from data.verification.bin_file import read_bin, write_bin
from data.verification.pairs import read_pairs
from evaluation.export.arcface_torch import read_state_dict
from evaluation.files import read_embeddings
from evaluation.ijb import lists as lists_of_faces
from evaluation.report import run_files
from evaluation.verification.report import read_groups
from parallel import host_lists
from parallel.launch import cluster_files
from parallel.parameter_server.messages import Trace
from runtime.errors import DataError
from runtime.files import write_atomically
from runtime.state import OWN, Stored
from runtime.untrusted import parameter_file
from runtime.untrusted.onnx_model import import_onnx, read_model
from tests.fuzz.reader import SIZES, image, use_features, write_ijb, write_records
from tests.support.ijb_set import template_ids
from tests.support.made_up_runs import write_faces
from training.checkpoint import files
from training.checkpoint.layout import Part
from training.checkpoint.reader import Checkpoint
from training.config import faces
from training.log.files import FileHandler, RunFiles
from training.run_folder import locked

VICTIM = b"a file of the user"
KINDS: dict[str, Callable[[Path, Path], object]] = {
    "pipe": lambda path, _: os.mkfifo(path),
    "device": lambda path, _: path.symlink_to("/dev/zero"),
    "folder": lambda path, _: path.mkdir(),
    "link to a file": lambda path, victim: path.symlink_to(victim),
    "hard link": lambda path, victim: os.link(victim, path),
}
"""What puts something at a path; the second path is that of the user's file."""

_IMAGE = "people/a/a_0001.jpg"
_ROW = np.ones((2, 3), np.float32)
_CONTENTS = {
    **dict.fromkeys((_IMAGE, "people/a/a_0002.jpg", "people/b/b_0001.jpg"), image(suffix=".jpg")),
    "pairs.txt": b"1\t1\na\t1\t2\na\t1\tb\t1\n",
    "points.txt": b"a.jpg 69 109 106 113 77 142 73 152 108 154\n",
    "groups.txt": b"a\nb\n",
    "hosts": b"a slots=2\n",
    "servers": b"a 1\n",
    "data_sharding": b"0 1\n",
    "config.json": b'{"lr": 0.5}',
    "e.tsv": b"0\ta\tb\n1\tc\td\n",
    "logs/rank-0001.log": b"",
    "t10k-images-idx3-ubyte": struct.pack(">4i1568x", 0x803, 2, 28, 28),
    "t10k-labels-idx1-ubyte": struct.pack(">2i2x", 0x801, 2),
}


def _write_contents(folder: Path) -> None:
    for name, content in _CONTENTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    np.save(folder / "e.npy", _ROW)
    write_bin(folder / "a.bin", [image()] * 4, [True, False])
    safetensors.numpy.save_file({"a": _ROW}, folder / "m.safetensors")
    with (folder / "m-0000.params").open("wb") as file:
        parameter_file.write_parameters(file, {"arg:a": _ROW})


class Case(NamedTuple):
    """A file that ``use`` reads or writes, in a folder that ``make`` fills."""

    name: str
    use: Callable[[Path], object]
    make: Callable[[Path], object] = _write_contents


@contextmanager
def replaced(case: Case, kind: str, folder: Path) -> Iterator[Path]:
    """Put something else in place of a case's file; yield its path, and remove all at the end."""
    victim, place = folder / "user" / "file", folder / "place"
    victim.parent.mkdir(parents=True)
    victim.write_bytes(VICTIM)
    place.mkdir()
    try:
        case.make(place)
        path = place / case.name
        path.unlink(missing_ok=True)
        KINDS[kind](path, victim)
        yield path
    except OSError as error:
        # Of writers, whose programs say the rest of the line.
        raise DataError(str(error)) from None
    finally:
        content = victim.read_bytes()
        for made in (place, victim.parent):
            shutil.rmtree(made)
        assert content == VICTIM, f"the user's file was changed: {content[:80]!r}"


def _write_shards(folder: Path) -> None:
    with RecordWriter(folder, image_size=(8, 8), shards=[1, 1]) as writer:
        for label in range(2):
            writer.write(image(), label)


def _write_network(folder: Path) -> None:
    graph = "g (float[b,3,4,4] x) => (float[b,3,4,4] y) { y = Relu(x) }"
    model = import_onnx().parser.parse_model(f'<ir_version: 7, opset_import: ["": 13]> {graph}')
    (folder / "m.onnx").write_bytes(model.SerializeToString())


def _write_cifar(folder: Path) -> None:
    with (folder / "test_batch.bin").open("wb") as file:
        file.truncate(10_000 * (1 + 3 * 32 * 32))


def _write_checkpoint(folder: Path) -> None:
    files.write_rank(folder / "hidden", 0, {"a": Stored(OWN, _ROW)})
    final = folder / files.name_of(7)
    header = Part(7, 1, "", (), {}, {}, {})
    files.publish(folder / "hidden", final, header, [0], 1, threading.Event())
    for path in final.iterdir():
        path.rename(folder / path.name)


def _write_store(folder: Path) -> None:
    # It imports Numba, which takes as long as everything else here.
    from partial_fc.store.header import Header
    from partial_fc.store.records import Index
    from partial_fc.store.undo import UndoLog

    Header(5, 2, 3, {}, 0, 0, 2).write(folder)
    for name, size in (("lock", 0), ("records.bin", 0), ("index.bin", 16)):
        (folder / name).write_bytes(bytes(size))
    UndoLog(folder, 0, 0, Index(np.zeros(4, np.uint32)), (0, 2)).close()


def _embed(path: Path) -> None:
    for source in (path, path.parents[1]):
        images = NamedImages(open_sources([str(source)]), (8, 8))
        list(map(images.read, range(len(images))))


def _classify(path: Path) -> None:
    images = ClassFolders(path.parents[1])
    list(map(images.decoded, range(len(images))))


def _read_servers(path: Path) -> None:
    hosts = cluster_files.read_hosts(path.with_name("hosts"), 1)
    cluster_files.read_servers(path, 1, hosts.addresses)


def _read_checkpoint(path: Path) -> None:
    checkpoint = Checkpoint(path.parent)
    checkpoint.verify(0)
    checkpoint.own("a", 0, 1)


def _read_store(path: Path) -> None:
    from partial_fc.store.header import Origin
    from partial_fc.store.saved_rows import SavedRows

    with SavedRows(path.parent, Origin(5, 0), 0) as rows:
        rows.verify()


def _read_ijb(path: Path) -> None:
    lists = lists_of_faces.find_lists(path.parents[1])
    lists_of_faces.read_faces(lists)
    lists_of_faces.read_pairs(lists.pairs, template_ids(SIZES))


def _write_rank(path: Path) -> None:
    files.write_rank(path.parent, 0, {"a": Stored(OWN, _ROW)})


def _lock_run(path: Path) -> None:
    with locked(path.parent):
        pass


def _log(path: Path) -> None:
    handler = FileHandler(path.parents[1], 0)
    handler.emit(logging.makeLogRecord({"msg": "x"}))
    handler.close()


def _write_metrics(path: Path) -> None:
    metrics = RunFiles(path.parent)
    metrics.write(1, {"loss": 0.5})
    metrics.close()


def _of_folder(use: Callable[[Path], object], depth: int = 0) -> Callable[[Path], object]:
    return lambda path: use(path.parents[depth])


_read_set = _of_folder(lambda folder: RecordSet(folder).labels())
_read_run, _go_on = _of_folder(run_files.read), _of_folder(use_features)
_FACE = np.arange(10.0).reshape(5, 2)

READ = {
    "rec": Case("train.rec", _read_set, write_records),
    "idx": Case("train.idx", _read_set, write_records),
    "property": Case("property", _read_set, write_records),
    "shard": Case("train-00001.rec", _of_folder(lambda folder: open_sets([folder])), _write_shards),
    "packed image": Case(_IMAGE, lambda path: next(ImageReader().read_all([str(path)], ""))),
    "embedded image": Case(_IMAGE, _embed),
    "listed face": Case(_IMAGE, lambda path: read_face(path, _FACE)),
    "bin": Case("a.bin", read_bin),
    "pairs": Case("pairs.txt", lambda path: read_pairs(path, path.with_name("people"))),
    "points": Case("points.txt", lambda path: PointsFile(path, path.parent)),
    "groups": Case("groups.txt", lambda path: read_groups(path, 2, "rfw")),
    "hosts": Case("hosts", host_lists.read_file),
    "servers": Case("servers", _read_servers),
    "data_sharding": Case("data_sharding", lambda at: cluster_files.read_lines(at, "two numbers")),
    "npy": Case("e.npy", read_embeddings),
    "tsv": Case("e.tsv", lambda path: read_embeddings(path.with_name("e.npy"))),
    "onnx": Case("m.onnx", lambda path: read_model(path, (4, 4)), _write_network),
    "params": Case("m-0000.params", parameter_file.read_parameters),
    "manifest": Case("manifest.json", _read_checkpoint, _write_checkpoint),
    "rank": Case("rank-0000.bin", _read_checkpoint, _write_checkpoint),
    "index of a store": Case("index.bin", _read_store, _write_store),
    "config": Case(
        "config.json", lambda path: faces.parse(["--config", str(path), "--dataset", "synthetic"])
    ),
    "state dict": Case("m.safetensors", read_state_dict),
    "mnist": Case("t10k-images-idx3-ubyte", _of_folder(lambda at: mnist.read(at, "validation"))),
    "cifar": Case(
        "test_batch.bin",
        _of_folder(lambda folder: cifar.read(cifar.CIFAR10, folder, "validation")),
        _write_cifar,
    ),
    "ijb": Case("IJBC/meta/ijbc_face_tid_mid.txt", _read_ijb, write_ijb),
    "description of features": Case("features.json", _go_on, use_features),
    "metrics": Case("metrics.jsonl", _read_run, write_faces),
}
"""Files without which a reader has to refuse."""

OPTIONAL = {
    "cache of an index": Case("train.idx.cache", _read_set, write_records),
    "cache of labels": Case("train.labels.cache", _read_set, write_records),
    "image of a class": Case(_IMAGE, _classify),
    "compared image": Case(_IMAGE, lambda path: fingerprint([path.parents[1], path])),
    "part of features": Case("part-00000.npy", _go_on, use_features),
    "store.json": Case("store.json", _read_store, _write_store),
    "scores": Case("report/scores-unseen.npy", _of_folder(run_files.read, 1), write_faces),
    "samples": Case("report/samples.jpg", _of_folder(run_files.read, 1), write_faces),
    "config of a run": Case("config.json", _read_run, write_faces),
}
"""Files without which, or in place of which, a reader may go on."""

WRITTEN = {
    "file": Case("file", lambda path: write_atomically(path, b"content")),
    "lock of a run": Case("run.lock", _lock_run),
    "log": Case("logs/rank-0000.log", _log),
    "metrics.jsonl": Case("metrics.jsonl", _write_metrics),
    "trace": Case("worker-0", lambda path: Trace(str(path.parent), path.name).write("word")),
    "file of a rank": Case("rank-0000.bin", _write_rank),
    "marker of a rank": Case(".rank-0000.json", _write_rank),
}
"""Files that are written."""

CASES = {**READ, **OPTIONAL, **WRITTEN}
