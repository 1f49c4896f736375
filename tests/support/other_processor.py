"""What oneDNN would choose on a processor with AVX-512, found out on any x86 processor.

oneDNN asks its record of the processor's features which kernels it may use, when MXNet describes a
layer. ``pretend`` changes that record in this process, and takes out the call that executes a
kernel, whose instructions this processor may not have. So MXNet runs the whole graph, in the
layouts that oneDNN chooses, with arrays that contain anything; DNNL_VERBOSE=1 prints implementation
and layouts of every primitive as always, and no times.

It knows the library of mxnet 1.9.1 (oneDNN 2.4.4), which is what the project installs.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import NamedTuple

from runtime import processors
from runtime.mxnet import mx

LIBRARY = "libmxnet.so"
# Bits of Xbyak::util::Cpu::type_: F, DQ, CD, BW, VL and VNNI of AVX-512.
FEATURES = sum(1 << bit for bit in (35, 36, 40, 41, 42, 54))
# In Xbyak::util::Cpu the features are so many bytes before the model.
MODEL_OFFSET = 104
# dnnl::impl::primitive_execute with verbose: status = stream->enqueue_primitive(primitive, ctx).
BEFORE_CALL = bytes.fromhex("488b034889eaf20f1104244c89e64889df")
CALL, BEHIND_CALL = bytes.fromhex("ff5010"), bytes.fromhex("4189c5")
RETURN_SUCCESS = bytes.fromhex("31c090")
READ_WRITE_EXECUTE = 7
PAGE = 4096


class Segment(NamedTuple):
    start: int
    end: int
    rights: str

    def read(self) -> bytes:
        return ctypes.string_at(self.start, self.end - self.start)


def pretend() -> None:
    """Let oneDNN and this project see AVX-512, and execute none of oneDNN's primitives.

    Raises:
        RuntimeError: this is another library than mxnet 1.9.1's.
    """
    # oneDNN fills its record when it is first used.
    mx.nd.Activation(mx.nd.ones((1, 8, 2, 2)), act_type="relu").wait_to_read()
    segments = segments_of_library()
    add_features(segments)
    take_out_the_call(segments)
    processors.has_avx512 = lambda: True


def segments_of_library() -> list[Segment]:
    """The library in memory, with the zeros that follow its data."""
    found: list[Segment] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        start, end = (int(word, 16) for word in fields[0].split("-"))
        is_behind = bool(found) and start == found[-1].end and len(fields) == 5
        if line.endswith(LIBRARY) or is_behind:
            found.append(Segment(start, end, fields[1]))
    return found


def add_features(segments: list[Segment]) -> None:
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    fields = {name.strip(): value for name, _, value in (line.partition(":") for line in lines)}
    family, model, stepping = (int(fields[n]) for n in ("cpu family", "model", "stepping"))
    first = min(family, 15)
    # model, family, stepping, extended model and family, those of /proc/cpuinfo.
    numbers = (model & 15, first, stepping, model >> 4, family - first, family, model)
    pattern = struct.pack("<7i", *numbers)
    places = [
        segment.start + segment.read().index(pattern) - MODEL_OFFSET
        for segment in segments
        if segment.rights.startswith("rw") and pattern in segment.read()
    ]
    if not places:
        raise RuntimeError(f"{LIBRARY} has no record of the processor where mxnet 1.9.1 has it")
    for place in places:
        ctypes.c_uint64.from_address(place).value |= FEATURES


def take_out_the_call(segments: list[Segment]) -> None:
    pattern = BEFORE_CALL + CALL + BEHIND_CALL
    places = [
        segment.start + segment.read().index(pattern) + len(BEFORE_CALL)
        for segment in segments
        if "x" in segment.rights and pattern in segment.read()
    ]
    if len(places) != 1:
        raise RuntimeError(f"{LIBRARY} does not execute primitives as mxnet 1.9.1 does")
    page = places[0] // PAGE * PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), 2 * PAGE, READ_WRITE_EXECUTE) != 0:
        raise RuntimeError(f"the code of {LIBRARY} cannot be changed on this system")
    ctypes.memmove(places[0], RETURN_SUCCESS, len(RETURN_SUCCESS))
