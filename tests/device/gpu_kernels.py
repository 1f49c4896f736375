"""The operators of MXNet that have a kernel for GPUs, found in its sources.

An operator without one works on every CPU and fails at its first call on a GPU, where no test here
runs. So the names are read from the sources and kept in ``gpu_kernels.txt``, made by

    git clone --depth 1 --branch 1.9.1 https://github.com/apache/incubator-mxnet mxnet
    python -m tests.device.gpu_kernels mxnet 1.9.1 > tests/device/gpu_kernels.txt

An operator registers its function for GPUs as an attribute, in a ``.cu`` file or, where one
function serves all devices, in a ``.cc`` file, by itself or through a macro; operators of the older
interface have a ``CreateOp<gpu>`` in the ``.cu`` file beside the ``.cc`` file that registers them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

LIST = Path(__file__).with_name("gpu_kernels.txt")
# Those that wait for the GPU inside, found by ``cudaStreamSynchronize`` in the functions for arrays
# that are not sparse: they look at a number before they go on. ``take`` does so with mode="raise".
WAITING = {
    *("gather_nd", "_contrib_boolean_mask", "_npx_nonzero", "_npi_unique", "_npi_bincount"),
    *("_npi_percentile", "_npx_constraint_check", "_npi_boolean_mask_assign_scalar"),
    *("_npi_boolean_mask_assign_tensor", "_npi_multinomial", "_adamw_update", "_mp_adamw_update"),
    *("_multi_adamw_update", "_multi_mp_adamw_update"),
}
_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_MACRO = re.compile(r"#define\s+(\w+)\(([^)]*)\)((?:[^\n]*\\\n)*[^\n]*)")
# A name, and what is said of it up to the next.
_REGISTRATION = re.compile(
    r"NNVM_REGISTER_OP\(\s*(\w+)\s*\)((?:(?!NNVM_REGISTER_OP).)*)", re.DOTALL
)
_FOR_GPU = re.compile(r'"F(?:Stateful)?Compute(?:Ex)?<gpu>"')
_OLDER = re.compile(r"MXNET_REGISTER_OP_PROPERTY\(\s*(\w+)\s*,")


def operators_of(source: Path) -> set[str]:
    """Return the names of the operators in a source tree of MXNet that have a GPU kernel."""
    # The operators of TVM are not built.
    paths = [path for path in (source / "src").rglob("*.c[cu]") if "tvmop" not in path.parts]
    found: set[str] = set()
    for path in paths:
        text = _text_of(path)
        found.update(_registered(text))
        if path.suffix == ".cu" and "CreateOp<gpu>" in text:
            for name in _OLDER.findall(_text_of(path.with_suffix(".cc"))):
                found.update((name, f"_backward_{name}"))
    return found


@lru_cache(None)
def listed() -> frozenset[str]:
    """Return the names in ``gpu_kernels.txt``."""
    return frozenset(LIST.read_text().splitlines()[1:])


def _text_of(path: Path) -> str:
    return _COMMENTS.sub("", path.read_text(encoding="utf-8", errors="replace"))


def _registered(text: str) -> Iterator[str]:
    """The operators that a file registers with a function for GPUs, by itself or by a macro."""
    macros = {
        name: (parameters, body.replace("\\\n", " ").replace("##", " ## "))
        for name, parameters, body in _MACRO.findall(text)
        if "NNVM_REGISTER_OP" in body
    }
    text = _MACRO.sub("", text)
    for name, (parameters, body) in macros.items():
        names = [parameter.strip() for parameter in parameters.split(",")]
        for given in re.findall(rf"\b{name}\(([^)]*)\)", text):
            text += "\n" + _expanded(body, dict(zip(names, given.split(","))))
    for name, attributes in _REGISTRATION.findall(text):
        if _FOR_GPU.search(attributes):
            yield name


def _expanded(body: str, values: dict[str, str]) -> str:
    for parameter, value in values.items():
        body = re.sub(rf"(?<![\w$]){re.escape(parameter)}(?![\w$])", value.strip(), body)
    return body.replace(" ## ", "")


def main() -> None:
    """Print the tag and the sorted names."""
    source, tag = sys.argv[1:]
    print(f"Operators with a GPU kernel in Apache MXNet, tag {tag}")
    print("\n".join(sorted(operators_of(Path(source)))))


if __name__ == "__main__":
    main()
