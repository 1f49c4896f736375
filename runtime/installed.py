"""What is installed: the package of MXNet, Horovod's parts, NVIDIA's driver, libraries and GPUs.

And which of them go together; ``parallel.check`` judges by this. MXNet and Horovod are not
imported. The driver is asked through its C interface, not through ``nvidia-smi``, which counts the
GPUs in another order than MXNet, ignores ``CUDA_VISIBLE_DEVICES``, and is missing in many
containers.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple, Optional

from runtime.errors import ConfigError

# CUdevice_attribute and CUresult of cuda.h.
_MAJOR, _MINOR = 75, 76
_NO_DEVICE = 100
_DRIVER = "libcuda.so.1"
UUID_BYTES = 16
_Uuid = ctypes.c_char * UUID_BYTES
# The packages of MXNet 1.9.1 have machine code for these compute capabilities, and no PTX. A GPU
# runs the code of its own major version and an equal or lower minor one.
_KEPLER_TO_TURING = ((3, 0), (5, 0), (6, 0), (7, 0), (7, 5))
_MAXWELL_TO_AMPERE = ((5, 0), (6, 0), (7, 0), (8, 0))
_CODE = {
    "mxnet-cu101": _KEPLER_TO_TURING,
    "mxnet-cu102": _KEPLER_TO_TURING,
    "mxnet-cu110": _MAXWELL_TO_AMPERE,
    **{f"mxnet-cu11{minor}": (*_MAXWELL_TO_AMPERE, (8, 6)) for minor in range(1, 8)},
}


def mxnet_package() -> str:
    """Return the name of the installed package, such as mxnet-cu112; "unknown" without any."""
    found = importlib.util.find_spec("mxnet")
    if found is None or found.origin is None:
        return "unknown"
    # A wheel leaves its name next to the package: mxnet_cu112-1.9.1.dist-info.
    folders = Path(found.origin).parents[1].glob("mxnet*-*.dist-info")
    names = (folder.name.partition("-")[0].replace("_", "-") for folder in folders)
    return next((name for name in names if re.fullmatch(r"mxnet(-\w+)?", name)), "unknown")


def cuda_of(package: str) -> Optional[tuple[int, int]]:
    """Return the CUDA version that a package of MXNet was built for; None if for processors."""
    built = re.search(r"cu(\d+)(\d)$", package)
    return (int(built[1]), int(built[2])) if built else None


def dotted(number: int) -> str:
    """11.2 for 11020."""
    return f"{number // 1000}.{number % 1000 // 10}"


class Gpu(NamedTuple):
    """A GPU, as the driver describes it."""

    name: str
    capability: tuple[int, int]

    def runs(self, package: str) -> Optional[bool]:
        """Whether the package has machine code for this GPU; None if that is not known."""
        if package not in _CODE:
            return None
        major, minor = self.capability
        return any(has == major and least <= minor for has, least in _CODE[package])


class CudaDriver:
    """The driver, started; GPUs are numbered as MXNet numbers them.

    All methods raise ``ConfigError`` if the driver reports an error.
    """

    def __init__(self, library: str = _DRIVER) -> None:
        """Load and start it; ``OSError`` if there is none."""
        self._library = ctypes.CDLL(library)
        self._status = self._library.cuInit(0)

    def count(self) -> int:
        """How many GPUs this process sees."""
        if self._status == _NO_DEVICE:
            return 0
        return self._number("cuDeviceGetCount")

    def version(self) -> int:
        """Return the newest CUDA version that it serves, such as 11040."""
        number = ctypes.c_int()
        self._library.cuDriverGetVersion(ctypes.byref(number))
        return number.value

    def describe(self, index: int) -> Gpu:
        """Name and compute capability of a GPU."""
        device, name = self._number("cuDeviceGet", index), ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, len(name), device)
        keys = _MAJOR, _MINOR
        major, minor = (self._number("cuDeviceGetAttribute", key, device) for key in keys)
        return Gpu(name.value.decode(errors="replace"), (major, minor))

    def identity(self, index: int) -> bytes:
        """Return the UUID of a GPU, which no other has, on no host."""
        device, identity = self._number("cuDeviceGet", index), _Uuid()
        # The former call gives all slices (MIG) of a GPU one UUID; CUDA 11.4 has brought the other.
        newer = "cuDeviceGetUuid_v2"
        self._call(newer if hasattr(self._library, newer) else newer[:-3], identity, device)
        return identity.raw

    def _number(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        self._call(name, ctypes.byref(value), *arguments)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        status, failed = self._status, "cuInit"
        if status == 0:
            status, failed = getattr(self._library, name)(*arguments), name
        if status != 0:
            raise ConfigError(
                f"NVIDIA's driver does not work: {failed} fails with CUDA error {status}; "
                "nvidia-smi says more, and restarting the machine after an update of the driver "
                "often helps"
            )


def gpus(library: str = _DRIVER) -> tuple[list[Gpu], int]:
    """Return the GPUs that this process sees, and the newest CUDA that the driver serves as 11040.

    None and 0 without a driver. Errors: see ``CudaDriver``.
    """
    try:
        driver = CudaDriver(library)
    except OSError:
        return [], 0
    return [driver.describe(index) for index in range(driver.count())], driver.version()
