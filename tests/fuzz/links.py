"""Something else in place of a file: a pipe, a device, a folder, a socket, or a link.

A reader has to refuse it in one line, and a file that a link leads to must stay as it was, whatever
is written.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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
from data.records.writer import shard_writer
from data.verification.bin_file import read_bin, write_bin
from data.verification.pairs import read_pairs
from evaluation.embed.index import read_embeddings
from evaluation.export.arcface_torch import read_state_dict
from evaluation.ijb import lists as lists_of_faces
from evaluation.report import run_files
from evaluation.verification.groups import read_groups
from parallel import host_lists
from parallel.launch import cluster_files
from parallel.parameter_server.trace import Trace
from runtime.errors import DataError
from runtime.files import write_atomically
from runtime.state import OWN, Stored
from tests.fuzz.reader import Reader
from tests.fuzz.valid_files import SIZES, image, use_features, write_ijb, write_records
from tests.support import made_up_runs
from tests.support.ijb_set import template_ids
from training.checkpoint import files
from training.checkpoint.layout import Part
from training.checkpoint.reader import Checkpoint
from training.config import faces
from training.log.handlers import FileHandler
from training.log.metric_files import MetricFiles
from training.run_folder import locked

VICTIM = b"a file of the user"
KINDS: dict[str, Callable[[Path, Path], object]] = {
    "pipe": lambda path, _: os.mkfifo(path),
    "device": lambda path, _: path.symlink_to("/dev/zero"),
    "terminal": lambda path, _: path.symlink_to("/dev/tty"),
    "folder": lambda path, _: path.mkdir(),
    "socket": lambda path, _: os.mknod(path, stat.S_IFSOCK | 0o600),
    "link to itself": lambda path, _: path.symlink_to(path.name),
    "link to nothing": lambda path, _: path.symlink_to("gone"),
    "link to a pipe": lambda path, victim: path.symlink_to(victim.with_name("pipe")),
    "link to a file": lambda path, victim: path.symlink_to(victim),
    "hard link": lambda path, victim: os.link(victim, path),
}
"""What puts something at a path; the second path is that of the user's file."""


class Case(NamedTuple):
    """A file that is read or written."""

    make: Callable[[Path], object]
    """Makes all that belongs to it in a folder; nothing if the file is only written."""
    name: str
    """Name of the file in the folder."""
    use: Callable[[Path], object]
    """Reads or writes it; gets the folder."""


@contextmanager
def replaced(case: Case, kind: str, folder: Path) -> Iterator[Path]:
    """Make the files of a case, put something else in place of one, and remove all at the end."""
    victim, place = folder / "user" / "file", folder / "place"
    victim.parent.mkdir(parents=True)
    victim.write_bytes(VICTIM)
    os.mkfifo(victim.with_name("pipe"))
    place.mkdir()
    try:
        case.make(place)
        path = place / case.name
        path.unlink(missing_ok=True)
        KINDS[kind](path, victim)
        yield place
    except OSError as error:
        # Of writers, whose programs say the rest of the line.
        raise DataError(str(error)) from None
    finally:
        content = victim.read_bytes()
        for made in (place, victim.parent):
            shutil.rmtree(made)
        assert content == VICTIM, f"the user's file was changed: {content[:80]!r}"


_PEOPLE, _IMAGE, _PARAMS = "people", "people/a/a_0001.jpg", "m-0000.params"
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
    with (folder / _PARAMS).open("wb") as file:
        parameter_file.write_parameters(file, {"arg:a": _ROW})


def _write_shards(folder: Path) -> None:
    with shard_writer(folder, [1, 1], image_size=(8, 8)) as writer:
        for label in range(2):
            writer.write(image(), label)


def _write_cifar(folder: Path) -> None:
    with (folder / "test_batch.bin").open("wb") as file:
        file.truncate(10_000 * (1 + 3 * 32 * 32))


def _write_checkpoint(folder: Path) -> None:
    files.write_rank(folder / "hidden", 0, {"a": Stored(OWN, _ROW)})
    final = folder / files.name_of(7)
    files.publish(folder / "hidden", final, Part(7, 1, "", (), {}, {}, {}), [0], keep=1)
    for path in final.iterdir():
        path.rename(folder / path.name)


def _write_store(folder: Path) -> None:
    # It imports Numba, which takes as long as everything else here.
    from partial_fc.store.header import Header

    Header(5, 2, 3, {}, 0, 0, 2).write(folder)
    (folder / "index.bin").write_bytes(bytes(16))


def _write_run(folder: Path) -> None:
    made_up_runs.write_faces(folder, updates=100)


def _use_features(folder: Path) -> None:
    use_features(folder / "features")


def _nothing(_: Path) -> None:
    pass


def _read_set(folder: Path) -> None:
    RecordSet(folder).labels()


def _embed(folder: Path) -> None:
    for inputs in ([str(folder / _IMAGE)], [str(folder / _PEOPLE)]):
        images = NamedImages(open_sources(inputs), Size(8, 8))
        for number in range(len(images)):
            images.read(number)


def _read_face(folder: Path) -> None:
    ListedFaces(folder, [_IMAGE], np.arange(10.0).reshape(1, 5, 2)).read(0)


def _classify(folder: Path) -> None:
    images = ClassFolders(folder / _PEOPLE)
    for number in range(len(images)):
        images.image(number)


def _read_servers(folder: Path) -> None:
    hosts = cluster_files.read_hosts(folder / "hosts", 1)
    cluster_files.read_servers(folder / "servers", 1, hosts.addresses)


def _read_checkpoint(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    checkpoint.verify(0)
    checkpoint.own("a", 0, 1)


def _read_store(folder: Path) -> None:
    from partial_fc.store.header import Header

    header = Header.read(folder)
    if header is not None:
        header.check_files(folder)
        header.private_index(folder)


def _read_ijb(folder: Path) -> None:
    lists = lists_of_faces.find_lists(folder / "IJBC")
    lists_of_faces.read_faces(lists)
    lists_of_faces.read_pairs(lists.pairs, template_ids(SIZES))


def _write_rank(folder: Path) -> None:
    files.write_rank(folder, 0, {"a": Stored(OWN, _ROW)})
    files.report_failure(folder, 0, "full")


def _lock_run(folder: Path) -> None:
    with locked(folder):
        pass


def _log(folder: Path) -> None:
    handler = FileHandler(folder, 0)
    handler.emit(logging.makeLogRecord({"msg": "x"}))
    handler.close()


def _write_metrics(folder: Path) -> None:
    metrics = MetricFiles(folder)
    metrics.write(1, {"loss": 0.5})
    metrics.close()


def _read(name: str, use: Callable[[Path], Any]) -> Case:
    """A file that a reader opens by its path."""
    return Case(_write_contents, name, lambda at: use(at / name))


READ = {
    "rec": Case(write_records, "train.rec", _read_set),
    "idx": Case(write_records, "train.idx", _read_set),
    "property": Case(write_records, "property", _read_set),
    "shard": Case(_write_shards, "train-00001.rec", lambda at: open_sets([at])),
    "packed image": _read(_IMAGE, lambda path: ImageReader().read(str(path))),
    "embedded image": Case(_write_contents, _IMAGE, _embed),
    "listed face": Case(_write_contents, _IMAGE, _read_face),
    "bin": _read("a.bin", read_bin),
    "pairs": _read("pairs.txt", lambda path: read_pairs(path, path.with_name(_PEOPLE))),
    "points": _read("points.txt", lambda path: PointsFile(path, path.parent)),
    "groups": _read("groups.txt", lambda path: read_groups(path, 2, "rfw")),
    "hosts": _read("hosts", host_lists.read_file),
    "servers": Case(_write_contents, "servers", _read_servers),
    "data_sharding": _read("data_sharding", lambda at: cluster_files.read_lines(at, "two numbers")),
    "npy": _read("e.npy", read_embeddings),
    "tsv": _read("e.tsv", lambda path: read_embeddings(path.with_name("e.npy"))),
    "params": _read(_PARAMS, parameter_file.read_parameters),
    "manifest": Case(_write_checkpoint, "manifest.json", _read_checkpoint),
    "rank": Case(_write_checkpoint, "rank-0000.bin", _read_checkpoint),
    "index of a store": Case(_write_store, "index.bin", _read_store),
    "config": _read(
        "config.json", lambda path: faces.parse(["--config", str(path), "--dataset", "synthetic"])
    ),
    "state dict": _read("m.safetensors", read_state_dict),
    "mnist": _read("t10k-images-idx3-ubyte", lambda path: mnist.read(path.parent, "validation")),
    "cifar": Case(
        _write_cifar, "test_batch.bin", lambda at: cifar.read(cifar.CIFAR10, at, "validation")
    ),
    "ijb": Case(write_ijb, "IJBC/meta/ijbc_face_tid_mid.txt", _read_ijb),
    "description of features": Case(_use_features, "features/features.json", _use_features),
    "metrics": Case(_write_run, "metrics.jsonl", run_files.read),
}
"""Files without which a reader has to refuse."""

OPTIONAL = {
    "cache of an index": Case(write_records, "train.idx.cache", _read_set),
    "cache of labels": Case(write_records, "train.labels.cache", _read_set),
    "image of a class": Case(_write_contents, _IMAGE, _classify),
    "compared image": _read(_IMAGE, lambda path: fingerprint([path.parents[1], path])),
    "part of features": Case(_use_features, "features/part-00000.npy", _use_features),
    "store.json": Case(_write_store, "store.json", _read_store),
    "scores": Case(_write_run, "report/scores-unseen.npy", run_files.read),
    "samples": Case(_write_run, "report/samples.jpg", run_files.read),
    "config of a run": Case(_write_run, "config.json", run_files.read),
}
"""Files without which, or in place of which, a reader may go on."""

WRITTEN = {
    "file": Case(_nothing, "file", lambda at: write_atomically(at / "file", b"content")),
    "lock of a run": Case(_nothing, "run.lock", _lock_run),
    "log": Case(lambda at: (at / "logs").mkdir(), "logs/rank-0000.log", _log),
    "metrics.jsonl": Case(_nothing, "metrics.jsonl", _write_metrics),
    "trace": Case(_nothing, "worker-0", lambda at: Trace(str(at), "worker-0").write("word")),
    "file of a rank": Case(_nothing, "rank-0000.bin", _write_rank),
    "marker of a rank": Case(_nothing, ".rank-0000.json", _write_rank),
    "failure of a rank": Case(_nothing, "rank-0000.failed", _write_rank),
}
"""Files that are written."""

CASES = {**READ, **OPTIONAL, **WRITTEN}


def _seeds(_: Path) -> list[bytes]:
    return [bytes((number % 256, number // 7 % 256)) for number in range(300)]


def _replace_and_use(folder: Path, content: bytes) -> None:
    first, second, *_ = content + bytes(2)
    case = list(CASES.values())[first % len(CASES)]
    with replaced(case, list(KINDS)[second % len(KINDS)], folder) as place:
        case.use(place)


LINK_READERS = {"links": Reader(_seeds, _replace_and_use, 6, is_watched=False)}
