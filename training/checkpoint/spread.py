"""Reads a checkpoint whose files are in folders of several hosts.

What a rank needs of a file that its own folder lacks is sent to it through the collectives of the
ranks, in chunks, each with its checksum. All ranks call the same methods in the same order, as the
parts of training do; so they agree on what is to be sent without asking each other, except for the
rows that each of them takes of a sharded array.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from runtime.errors import DataError
from runtime.mxnet import mx
from training.checkpoint.layout import CHUNK, Entry, Manifest, file_name
from training.checkpoint.reader import Checkpoint
from training.checkpoint.storage import Storage, gather

_CHECKSUM_BYTES = 4
Spans = Mapping[int, tuple[int, int]]
"""The bytes [first, last) of an array that each rank needs."""


class SpreadCheckpoint(Checkpoint):
    """An intact checkpoint of which some folders lack some files."""

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        storage: Storage,
        files_of: Mapping[int, frozenset[int]],
    ) -> None:
        """Assemble it.

        Args:
            path: in this rank's folder.
            manifest: of the whole.
            storage: which ranks have which folder.
            files_of: by the first rank of each folder, the ranks whose files are there; each file
                is in at least one.
        """
        super().__init__(path, manifest)
        self._storage, self._world = storage, storage.world
        self._files_of = files_of

    @override
    def replicated(self, name: str) -> NDArray[Any]:
        return self._whole(0, self.entry(name), range(self._world.size))

    @override
    def own(self, name: str, rank: int, world_size: int) -> NDArray[Any]:
        like = self.entry(name)
        if world_size != self.manifest.world_size:
            everyone = range(self._world.size)
            every = [
                self._whole(other, file[name], everyone)
                for other, file in enumerate(self.manifest.files)
            ]
            mean: NDArray[Any] = np.mean(every, axis=0, dtype=np.float64).astype(like.dtype)
            return mean
        found = np.empty(like.shape, like.dtype)
        for other, file in enumerate(self.manifest.files):
            sent = self._whole(other, file[name], [other])
            found = sent if other == rank else found
        return found

    @override
    def pieces(self, name: str, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        self.entry(name)
        rows = gather(self._world, [start, stop], "checkpoint.rows")
        for other, entry in self.manifest.slices(name):
            row = entry.num_bytes // max(entry.shape[0], 1)
            overlaps = {
                rank: (max(first, entry.start), min(last, entry.stop))
                for rank, (first, last) in enumerate(rows)
            }
            spans = {
                rank: ((first - entry.start) * row, (last - entry.start) * row)
                for rank, (first, last) in overlaps.items()
                if first < last
            }
            found = self._fetch(other, entry, spans)
            if found is not None:
                first = overlaps[self._world.rank][0]
                yield first - start, found.view(entry.dtype).reshape(-1, *entry.shape[1:])

    def _whole(self, file: int, entry: Entry, ranks: Any) -> NDArray[Any]:
        """An array on some of the ranks; what the others get has no meaning."""
        found = self._fetch(file, entry, dict.fromkeys(ranks, (0, entry.num_bytes)))
        if found is None:
            return np.empty(0, entry.dtype)
        return found.view(entry.dtype).reshape(entry.shape)

    def _fetch(self, file: int, entry: Entry, spans: Spans) -> Optional[NDArray[np.uint8]]:
        """This rank's span of an array in the file of a rank; None if it needs none."""
        firsts, own = self._storage.firsts, spans.get(self._world.rank)
        absent = {
            rank: span for rank, span in spans.items() if file not in self._files_of[firsts[rank]]
        }
        here = None
        if own is not None and self._world.rank not in absent:
            here = self._bytes(file, entry)[own[0] : own[1]]
        elif own is not None:
            here = np.empty(own[1] - own[0], np.uint8)
        begin = min((first for first, _ in absent.values()), default=0)
        end = max((last for _, last in absent.values()), default=0)
        for first in range(begin, end, CHUNK):
            chunk = self._send(file, entry, first, min(first + CHUNK, end))
            if own is not None and here is not None and self._world.rank in absent:
                low, high = max(first, own[0]), min(first + len(chunk), own[1])
                if low < high:
                    here[low - own[0] : high - own[0]] = chunk[low - first : high - first]
        return here

    def _send(self, file: int, entry: Entry, first: int, last: int) -> NDArray[np.uint8]:
        """Bytes of an array, from the first rank that has the file to all."""
        world = self._world
        sender = min(one for one, files in self._files_of.items() if file in files)
        own = np.zeros(1, np.uint8)
        if world.rank == sender:
            content = self._bytes(file, entry)[first:last]
            checksum = zlib.crc32(content.data).to_bytes(_CHECKSUM_BYTES, "big")
            own = np.concatenate([content, np.frombuffer(checksum, np.uint8)])
        sent = mx.nd.array(own, dtype="uint8")
        # One byte of every other rank.
        gathered = world.allgather_uneven(sent, "checkpoint.chunk").asnumpy()
        received: NDArray[np.uint8] = gathered[sender : sender + last - first + _CHECKSUM_BYTES]
        content, checksum = received[:-_CHECKSUM_BYTES], received[-_CHECKSUM_BYTES:].tobytes()
        if zlib.crc32(content.data) != int.from_bytes(checksum, "big"):
            raise DataError(
                f"{file_name(file)} of {self.path.name} has changed on its way from "
                f"{self._storage.hosts[sender]} to {self._storage.hosts[world.rank]}; check the "
                "network between them and start again"
            )
        return content

    def _bytes(self, file: int, entry: Entry) -> NDArray[np.uint8]:
        return np.asarray(self._map(file, entry)).reshape(-1).view(np.uint8)
