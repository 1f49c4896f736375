"""The readers under test: each with valid files, and what is done with a damaged one."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from data.align.points import PointsFile
from data.align.similarity import align
from data.decoding import decode_rgb
from data.pack.image_files import ImageReader
from data.records.index import key_of
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, RecordFile, encode
from data.records.shards import JoinedSet
from data.verification.bin_file import read_bin, write_bin
from data.verification.pairs import read_pairs
from evaluation.export.__main__ import write_card
from evaluation.files import read_embeddings
from evaluation.ijb import lists as ijb
from evaluation.report import __main__ as pages
from evaluation.report import figures, run_files
from evaluation.verification.report import read_groups
from parallel.host_lists import read_file, read_list, slots_by_host
from tests.evaluation.support import npy
from tests.fuzz.model_readers import MODEL_READERS
from tests.fuzz.reader import (
    SIZES,
    Reader,
    file_reader,
    image,
    of,
    refusals,
    use_features,
    write_ijb,
    write_records,
    written,
)
from tests.support import made_up_runs
from tests.support.ijb_set import template_ids
from tests.support.oriented_images import file_with
from training.checkpoint import layout
from training.checkpoint.layout import Entry, Part, RankFile


def _use_set(folder: Path) -> None:
    """Open a set and do with it what training does."""
    records = RecordSet(folder)
    list(JoinedSet([records]).label_chunks())
    records.labels()
    records.identity_ranges()
    for index in [*range(min(len(records), 12)), len(records) - 1]:
        with suppress(BrokenRecordError):
            decode_rgb(records.image(index)[0])


def _use_new_set(path: Path) -> None:
    """Open a set without what was found out about the file before."""
    for cache in path.parent.glob("*.cache"):
        cache.unlink()
    _use_set(path.parent)


def _rec_seeds(folder: Path) -> list[bytes]:
    write_records(folder)
    flat = b"".join(encode((float(i % 2),), i, image(i)) for i in range(5))
    magic = struct.pack("<I", 0xCED7230A)
    cut = encode((1.0,), 1, b"abcd" + magic + b"efgh" + magic)
    return [(folder / "train.rec").read_bytes(), flat, cut + flat]


def _read_rec(folder: Path, content: bytes) -> None:
    """Read without an index, with one, and record by record at any place."""
    path, index, kept = (folder / name for name in ("train.rec", "train.idx", "kept.idx"))
    if not kept.exists():
        write_records(folder)
        index.rename(kept)
    path.write_bytes(content)
    with refusals():
        file = RecordFile(path)
        for offset in range(0, min(len(content), 256), 4):
            with refusals():
                file.read(offset)
    shutil.copy(kept, index)
    with refusals():
        _use_new_set(path)
    index.unlink()
    _use_set(folder)


def _cache_seeds(folder: Path) -> list[bytes]:
    write_records(folder)
    _use_set(folder)
    return [(folder / f"train.{kind}.cache").read_bytes() for kind in ("idx", "labels")]


def _read_cache(folder: Path, content: bytes) -> None:
    """A cache with the right key, and anything after it."""
    sources = (folder / "train.rec", folder / "train.idx")
    if not sources[0].exists():
        write_records(folder)
    head, newline, array = content.partition(b"\n")
    head = _changed(head, lambda found: [key_of(sources), found[1]])
    for kind in ("idx", "labels"):
        (folder / f"train.{kind}.cache").write_bytes(head + newline + array)
    _use_set(folder)


def _changed(text: bytes, change: Callable[[Any], Any]) -> bytes:
    """Return JSON with a change, or as it is where that is impossible."""
    try:
        return json.dumps(change(json.loads(text))).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        return text


def _make_people(folder: Path) -> None:
    for name in ("Ann/Ann_0001.jpg", "Ann/Ann_0002.jpg", "Bob/Bob_0001.jpg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def _use_points(path: Path) -> None:
    points = PointsFile(path, path.parent)
    for name in [*points.points][:4]:
        with refusals():
            align(np.zeros((8, 8, 3), np.uint8), points.find(name))


class _Attack:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch executed",)


def _bin_seeds(folder: Path) -> list[bytes]:
    images = [image(number) for number in range(4)]
    write_bin(folder / "a.bin", images, [True, False])
    arrays = [np.frombuffer(one, np.uint8) for one in images]
    python_2 = b"\x80\x02](U\x05\xff\xd8oneU\x04\xfftwoe](\x88e\x86."
    return [
        *((folder / "a.bin").read_bytes(), python_2),
        *(pickle.dumps((images, [True, False]), protocol) for protocol in range(6)),
        *(pickle.dumps((arrays, [np.bool_(True), False]), protocol) for protocol in range(6)),
        *(pickle.dumps((images[:2], [_Attack()]), protocol) for protocol in (0, 2, 4)),
    ]


def _use_bin(path: Path) -> None:
    target = read_bin(path)
    for number in range(min(len(target), 4)):
        target.pixels(number, (8, 8))


def _image_seeds(_: Path) -> list[bytes]:
    usual = [image(i, suffix, 24) for i, suffix in enumerate((".jpg", ".png", ".bmp", ".webp"))]
    others = (".tif", ".ppm", ".pbm", ".ras", ".hdr")
    turned = [file_with(suffix, 6) for suffix in (".jpg", ".png", ".webp", ".tiff")]
    return usual * 3 + [image(i, suffix, 36) for i, suffix in enumerate(others)] + turned


def _use_image(path: Path) -> None:
    """Read an image as a record, and as a file that is packed."""
    with refusals():
        next(ImageReader(check=True).read_all([str(path)], ""))
    with refusals():
        next(ImageReader((24, 24), crop=True).read_all([str(path)], ""))
    decode_rgb(path.read_bytes())


def _manifest_seeds(_: Path) -> list[bytes]:
    def of_rank(rank: int) -> RankFile:
        centers = Entry("centers", "sharded", "float32", (3, 4), 3 * rank, 6, 0, 1)
        mean = Entry("mean", "own", "float32", (2,), 0, 0, 48, 2)
        weight = Entry("weight", "replicated", "int64", (2, 2), 0, 0, 56, 3)
        return RankFile(88, (centers, mean, weight)[: 3 - rank])

    files = {0: of_rank(0), 1: of_rank(1)}
    rest: Any = {"verifier": {"best": {}}}, {"classes": 6}
    part = Part(7, 3, "word-1", ("one", "two"), {1: files[1]}, *rest)
    return [Part(7, 3, "word-2", (), files, *rest).dump().encode(), part.dump().encode()]


def _read_manifest(folder: Path, content: bytes) -> None:
    """A manifest with the right checksum, and anything in it."""

    def signed(body: Any) -> Any:
        del body["checksum"]
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return {**body, "checksum": zlib.crc32(text.encode())}

    (folder / layout.FILE_NAME).write_bytes(_changed(content, signed))
    layout.read_part(folder)


def _read_hosts(_: Path, content: bytes) -> None:
    slots_by_host(read_list(content.decode("utf-8", "surrogateescape")))


_IDS = template_ids(SIZES)
_LANDMARKS, _MEDIA = "IJBC/meta/ijbc_name_5pts_score.txt", "IJBC/meta/ijbc_face_tid_mid.txt"
_PAIRS, _PROBES = "IJBC/meta/ijbc_template_pair_label.txt", "IJBC/meta/ijbc_1N_probe_mixed.csv"
_FEATURES = ("features/features.json", "features/part-00000.npy")


def _use_faces(points: Path) -> None:
    faces = ijb.read_faces(ijb.find_lists(points.parents[1]))
    assert len(faces.names) == len(faces.points) == len(faces.media) == len(faces.templates)


def _use_pairs(path: Path) -> None:
    pairs = ijb.read_pairs(path, _IDS)
    assert len(pairs.first) == len(pairs.second) == len(pairs.same)
    assert max(pairs.first.max(), pairs.second.max()) < len(_IDS)


def _use_subjects(path: Path) -> None:
    found = ijb.read_subjects(path, _IDS)
    assert len(found.templates) == len(found.subjects) and found.templates.max() < len(_IDS)


def _npy_seeds(_: Path) -> list[bytes]:
    """Tables of several forms, one of them of scores."""
    scores = np.array([[0.5, 1], [0.25, 0], [-0.5, 0]], np.float32)
    tables = (scores, scores.astype(">f8"), np.asfortranarray(scores), np.ones((3, 2), int))
    return [*map(npy, tables)]


def _use_npy(path: Path) -> None:
    """Read the scores of a run, and embeddings that are searched."""
    with refusals():
        run_files.read(path.parents[1])
    path.with_suffix(".tsv").write_text("0\ta\t\n1\tb\t\n2\tc\t\n")
    np.asarray(read_embeddings(path).rows).sum()


def _metrics_seeds(folder: Path) -> list[bytes]:
    runs = made_up_runs.write_faces(folder / "faces"), made_up_runs.write_images(folder / "images")
    lines = [(run / "metrics.jsonl").read_bytes().splitlines(True) for run in runs]
    return [b"".join(one[:4] + one[-2:]) for one in lines]


def _use_metrics(path: Path) -> None:
    """Write the numbers of a report, and of a model card."""
    found = run_files.read(path.parent)
    pages.final_rows([found])
    figures.time_shares(found)
    write_card("net", {}, path.parent)


_PROPERTIES = of(b"3,8,8\n", b"85742,112,112\nextra\n", b"3,8,8")
_LISTS = of(
    b"1\t1\nAnn\t1\t2\nAnn\t1\tBob\t1\n",
    b"2\nAnn 1 2\nAnn 2 1\nAnn 1 Bob 1\nBob 1 Ann 2\n",
    b'1,1,,\r\n# same\r\nAnn,1,2,\r\n"Ann",1,Bob,1\r\n',
)
_POINTS = of(
    b"1\nlefteye_x lefteye_y\na.jpg 69  109  106  113   77  142   73  152  108  154\n",
    b'NAME_ID,P1X\n"n1/0001_01",75.8,110.2,103.4,104.7,90.6,133.0,85.4,144.3,107.3,140.1\n',
    b"a b.jpg\t3\t5\t7\t5\t5\t7\t4\t9\t6\t9\t0.99\n",
)
_SLOTS = b"ip1 slots=8\nip2 slots=8 # two\n\n"
_HOST_FILES = of(_SLOTS, b"# none\nip1\n", b"ip1 max_slots=4 slots=2\r\n", b"\xef\xbb\xbf" + _SLOTS)
_HOSTS = of(b"localhost:2", b"ip1:8,ip2:8", b"10.0.0.1,10.0.0.2:4", b"ip1:8, ip2,")
_GROUPS = of(b"African\nAsian\n", "a\r\n\u00e9\r\n".encode())
_read_index = file_reader(_use_new_set, "train.idx", make=write_records)
_read_property = file_reader(_use_new_set, "property", make=write_records)
_read_pairs = file_reader(lambda at: read_pairs(at, at.parent), "pairs.lst", make=_make_people)
_read_groups = file_reader(lambda path: read_groups(path, 2, "rfw"), "groups.txt")
_read_faces = file_reader(_use_faces, _LANDMARKS, _MEDIA, make=write_ijb)
_read_features = file_reader(lambda path: use_features(path.parent), *_FEATURES)
_read_npy = file_reader(_use_npy, "report/scores-unseen.npy", make=made_up_runs.write_faces)
_read_metrics = file_reader(_use_metrics, "metrics.jsonl", make=made_up_runs.write_faces)
_read_hostfile = file_reader(lambda path: slots_by_host(read_file(path)), "hosts")

READERS = {
    "rec": Reader(_rec_seeds, _read_rec, 14),
    "idx": Reader(written(write_records, "train.idx"), _read_index, 12),
    "property": Reader(_PROPERTIES, _read_property, 8),
    "cache": Reader(_cache_seeds, _read_cache, 8),
    "lst": Reader(_LISTS, _read_pairs, 10),
    "groups": Reader(_GROUPS, _read_groups, 3),
    "points": Reader(_POINTS, file_reader(_use_points, "points.txt"), 8),
    "bin": Reader(_bin_seeds, file_reader(_use_bin, "a.bin"), 18),
    "image": Reader(_image_seeds, file_reader(_use_image, "image"), 12),
    **MODEL_READERS,
    "ijb-faces": Reader(written(write_ijb, _LANDMARKS, _MEDIA), _read_faces, 6),
    "ijb-pairs": Reader(written(write_ijb, _PAIRS), file_reader(_use_pairs, "pairs"), 6),
    "ijb-subjects": Reader(written(write_ijb, _PROBES), file_reader(_use_subjects, "s.csv"), 6),
    "ijb-features": Reader(
        written(lambda folder: use_features(folder / "features"), *_FEATURES), _read_features, 6
    ),
    "npy": Reader(_npy_seeds, _read_npy, 8),
    "metrics": Reader(_metrics_seeds, _read_metrics, 6),
    "manifest": Reader(_manifest_seeds, _read_manifest, 8),
    "hosts": Reader(_HOSTS, _read_hosts, 5),
    "hostfile": Reader(_HOST_FILES, _read_hostfile, 3),
}
