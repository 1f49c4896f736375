"""The readers under test: each with valid files, and what is done with a damaged one."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.align.points import PointsFile
from data.align.similarity import align
from data.decoding import decode_rgb
from data.pack.image_files import ImageReader
from data.records import index_cache
from data.records.joined_set import JoinedSet
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, RecordFile, encode
from data.records.writer import RecordWriter
from data.verification.bin_file import read_bin, write_bin
from data.verification.pairs import read_pairs
from evaluation.verification.groups import read_groups
from runtime.errors import DataError
from tests.fuzz.ijb_readers import IJB_READERS
from tests.fuzz.link_readers import LINK_READERS
from tests.fuzz.model_readers import MODEL_READERS
from tests.fuzz.reader import Reader
from tests.fuzz.run_readers import RUN_READERS
from tests.support.oriented_images import file_with

ROOT = Path(__file__).resolve().parents[2]


def _image(number: int, suffix: str = ".png", side: int = 8) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    if suffix == ".pbm":
        pixels = np.where(pixels[..., 0] > 128, 255, 0).astype(np.uint8)
    if suffix == ".hdr":
        return bytes(cv2.imencode(suffix, (pixels / 255).astype(np.float32))[1])
    return bytes(cv2.imencode(suffix, pixels)[1])


def _write_set(folder: Path) -> None:
    with RecordWriter(folder, image_size=(8, 8)) as writer:
        for label in range(3):
            for image in range(3):
                writer.write(_image(3 * label + image, (".png", ".jpg")[image % 2]), label)


def _flat_set() -> bytes:
    return b"".join(encode((float(i % 2),), i, _image(i)) for i in range(5))


def _use_set(folder: Path) -> None:
    """Open a set and do with it what training does."""
    records = RecordSet(folder)
    joined = JoinedSet([records])
    list(joined.label_table().chunks())
    records.labels()
    records.identity_ranges()
    for index in [*range(min(len(records), 12)), len(records) - 1]:
        try:
            decode_rgb(records.image(index)[0])
        except BrokenRecordError:
            pass


def _rec_seeds(folder: Path) -> list[bytes]:
    _write_set(folder)
    magic = struct.pack("<I", 0xCED7230A)
    cut = encode((1.0,), 1, b"abcd" + magic + b"efgh" + magic)
    return [(folder / "train.rec").read_bytes(), _flat_set(), cut + _flat_set()]


def _read_rec(folder: Path, content: bytes) -> None:
    """Without an index, with one, and record by record at any place."""
    path = folder / "train.rec"
    if not (folder / "train.idx").exists():
        _write_set(folder)
        (folder / "train.idx").rename(folder / "kept.idx")
        (folder / "train.idx").touch()
    # Nothing of what was found out about the file before may help.
    for cache in folder.glob("*.cache"):
        cache.unlink()
    path.write_bytes(content)
    with _refusals():
        file = RecordFile(path)
        for offset in range(0, min(len(content), 256), 4):
            with _refusals():
                file.read(offset)
        file.first_labels(np.arange(0, len(content), 4))
    (folder / "train.idx").write_bytes((folder / "kept.idx").read_bytes())
    with _refusals():
        _use_set(folder)
    (folder / "train.idx").unlink()
    try:
        _use_set(folder)
    finally:
        (folder / "train.idx").touch()


def _idx_seeds(folder: Path) -> list[bytes]:
    _write_set(folder)
    index = (folder / "train.idx").read_bytes()
    return [index, index.replace(b"\t", b" "), b"".join(reversed(index.splitlines(True)))]


def _beside_a_set(name: str) -> Callable[[Path, bytes], None]:
    def read(folder: Path, content: bytes) -> None:
        if not (folder / "train.rec").exists():
            _write_set(folder)
        for cache in folder.glob("*.cache"):
            cache.unlink()
        (folder / name).write_bytes(content)
        _use_set(folder)

    return read


def _cache_seeds(folder: Path) -> list[bytes]:
    _write_set(folder)
    _use_set(folder)
    return [(folder / f"train.{kind}.cache").read_bytes() for kind in ("idx", "labels")]


def _read_cache(folder: Path, content: bytes) -> None:
    """A cache with the right key, and anything after it."""
    if not (folder / "train.rec").exists():
        _write_set(folder)
    sources = (folder / "train.rec", folder / "train.idx")
    key = index_cache.key_of(sources)
    head, _, arrays = content.partition(b"\n")
    try:
        header = json.loads(head)
        header.update(key=key)
        content = json.dumps(header).encode() + b"\n" + arrays
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    for kind in ("idx", "labels"):
        (folder / f"train.{kind}.cache").write_bytes(content)
    _use_set(folder)


def _read_list(folder: Path, content: bytes) -> None:
    for name, count in (("Ann", 2), ("Bob", 1)):
        (folder / name).mkdir(exist_ok=True)
        for number in range(count):
            (folder / name / f"{name}_{number + 1:04d}.jpg").touch()
    (folder / "pairs.lst").write_bytes(content)
    read_pairs(folder / "pairs.lst", folder)


def _read_groups(folder: Path, content: bytes) -> None:
    (folder / "groups.txt").write_bytes(content)
    read_groups(folder / "groups.txt", 2, "rfw")


def _read_points(folder: Path, content: bytes) -> None:
    path = folder / "points.txt"
    path.write_bytes(content)
    points = PointsFile(path, folder)
    blank = np.zeros((8, 8, 3), np.uint8)
    for name in points.names[:4]:
        with _refusals():
            align(blank, points.find(name))


class _Attack:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch executed",)


def _bin_seeds(folder: Path) -> list[bytes]:
    images = [_image(number) for number in range(4)]
    write_bin(folder / "a.bin", images, [True, False])
    arrays = [np.frombuffer(image, np.uint8) for image in images]
    others = (
        [list(map(bytearray, images)), np.array([1, 0])],
        {"bins": np.array(images, object), "issame_list": np.array([[True], [False]])},
        (np.array(images), np.asfortranarray(np.ones((2, 1), ">f4"))),
    )
    python_2 = b"\x80\x02](U\x05\xff\xd8oneU\x04\xfftwoe](\x88e\x86."
    return [
        (folder / "a.bin").read_bytes(),
        python_2,
        *(pickle.dumps((images, [True, False]), protocol) for protocol in range(6)),
        *(pickle.dumps((arrays, [np.bool_(True), False]), protocol) for protocol in range(6)),
        *(pickle.dumps(content, protocol) for content in others for protocol in (0, 2, 4, 5)),
        *(pickle.dumps((images[:2], [_Attack()]), protocol) for protocol in (0, 2, 4)),
        pickle.dumps(_Attack(), 0),
    ]


def _read_bin(folder: Path, content: bytes) -> None:
    (folder / "a.bin").write_bytes(content)
    target = read_bin(folder / "a.bin")
    target.decode(range(0, min(len(target), 4)), (8, 8))


def _image_seeds(_: Path) -> list[bytes]:
    usual = [_image(i, suffix, 24) for i, suffix in enumerate((".jpg", ".png", ".bmp", ".webp"))]
    others = (".tif", ".ppm", ".pbm", ".ras", ".hdr")
    turned = [file_with(suffix, 6) for suffix in (".jpg", ".png", ".webp", ".tiff")]
    return usual * 3 + [_image(i, suffix, 36) for i, suffix in enumerate(others)] + turned


def _read_image(folder: Path, content: bytes) -> None:
    """As a record, and as a file that is packed."""
    path = folder / "image"
    path.write_bytes(content)
    with _refusals():
        ImageReader(check=True).read(str(path))
    with _refusals():
        ImageReader((24, 24), crop=True).read(str(path))
    decode_rgb(content)


def _manifest_seeds(_: Path) -> list[bytes]:
    from training.checkpoint.layout import Entry, Part, RankFile

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
    from training.checkpoint import layout

    try:
        body = json.loads(content)
        body.pop("checksum")
        checksum = zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
        content = json.dumps({**body, "checksum": checksum}).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    (folder / layout.FILE_NAME).write_bytes(content)
    layout.read_part(folder)


def _read_hosts(_: Path, content: bytes) -> None:
    from parallel.host_lists import read_list, slots_by_host

    slots_by_host(read_list(content.decode("utf-8", "surrogateescape")))


def _read_hostfile(folder: Path, content: bytes) -> None:
    from parallel.host_lists import read_file, slots_by_host

    (folder / "hosts").write_bytes(content)
    slots_by_host(read_file(folder / "hosts"))


@contextmanager
def _refusals() -> Iterator[None]:
    """Refusing one way of reading does not end the others."""
    try:
        yield
    except DataError:
        pass


def _of(*seeds: bytes) -> Callable[[Path], list[bytes]]:
    return lambda _: list(seeds)


_PROPERTIES = _of(b"3,8,8\n", b"85742,112,112\nextra\n", b"3,8,8")
_LISTS = _of(
    b"1\t1\nAnn\t1\t2\nAnn\t1\tBob\t1\n",
    b"2\nAnn 1 2\nAnn 2 1\nAnn 1 Bob 1\nBob 1 Ann 2\n",
    b'1,1,,\r\n# same\r\nAnn,1,2,\r\n"Ann",1,Bob,1\r\n',
)
_POINTS = _of(
    b"1\nlefteye_x lefteye_y\na.jpg 69  109  106  113   77  142   73  152  108  154\n",
    b'NAME_ID,P1X\n"n1/0001_01",75.8,110.2,103.4,104.7,90.6,133.0,85.4,144.3,107.3,140.1\n',
    b"a b.jpg\t3\t5\t7\t5\t5\t7\t4\t9\t6\t9\t0.99\n",
)
_SLOTS = b"ip1 slots=8\nip2 slots=8 # two\n\n"
_HOST_FILES = _of(
    _SLOTS, b"# none\nip1\n", b"ip1 max_slots=4 slots=2\r\n", b"\xef\xbb\xbf" + _SLOTS
)
_HOSTS = _of(b"localhost:2", b"ip1:8,ip2:8", b"10.0.0.1,10.0.0.2:4", b"ip1:8, ip2,")

READERS = {
    "rec": Reader(_rec_seeds, _read_rec, 14),
    "idx": Reader(_idx_seeds, _beside_a_set("train.idx"), 12),
    "property": Reader(_PROPERTIES, _beside_a_set("property"), 8),
    "cache": Reader(_cache_seeds, _read_cache, 8),
    "lst": Reader(_LISTS, _read_list, 10),
    "groups": Reader(_of(b"African\nAsian\n", "a\r\n\u00e9\r\n".encode()), _read_groups, 3),
    "points": Reader(_POINTS, _read_points, 8),
    "bin": Reader(_bin_seeds, _read_bin, 18),
    "image": Reader(_image_seeds, _read_image, 12),
    **MODEL_READERS,
    **IJB_READERS,
    **RUN_READERS,
    **LINK_READERS,
    "manifest": Reader(_manifest_seeds, _read_manifest, 8),
    "hosts": Reader(_HOSTS, _read_hosts, 5),
    "hostfile": Reader(_HOST_FILES, _read_hostfile, 3),
}
