from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from parallel.parameter_server import linking

ROOT = Path(__file__).resolve().parents[3]
# ZeroMQ calls connect() on a thread of its own.
REPLACED = """
import ctypes, errno, os, threading, time
from parallel.parameter_server import linking
from runtime.mxnet import mx

CONNECT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True
)
called = threading.Event()

def connect(descriptor, address, length):
    print(ctypes.string_at(address, length)[2:8].hex(), flush=True)
    called.set()
    ctypes.set_errno(errno.ECONNREFUSED)
    return -1

library = mx.base._LIB
linking.replace_imports(library, {"connect": CONNECT(connect)})
library.zmq_ctx_new.restype = library.zmq_socket.restype = ctypes.c_void_p
socket = library.zmq_socket(ctypes.c_void_p(library.zmq_ctx_new()), 5)
library.zmq_connect(ctypes.c_void_p(socket), b"tcp://127.0.0.1:9")
assert called.wait(30)
os._exit(0)
"""


def test_a_library_calls_the_function_in_place_of_the_systems_if_it_imports_that() -> None:
    said = subprocess.check_output([sys.executable, "-c", REPLACED], cwd=ROOT, text=True)
    assert set(said.split()) == {"00097f000001"}
    library = ctypes.CDLL("libm.so.6")
    with pytest.raises(OSError, match=r"libm\.so\.6 does not import accept4\(\)"):
        linking.replace_imports(library, {"accept4": ctypes.CFUNCTYPE(None)(print)})
