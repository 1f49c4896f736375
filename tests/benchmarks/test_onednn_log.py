"""Lines of oneDNN 2.4.4, as its ``verbose.cpp`` writes them."""

from __future__ import annotations

import pytest

from benchmarks import onednn_log
from benchmarks.onednn_log import LogError, Primitive

CONVOLUTION = (
    "dnnl_verbose,exec,cpu,convolution,jit:avx2,forward_training,src_f32::blocked:abcd:f0 "
    "wei_f32::blocked:Acdb8a:f0 bia_undef::undef::f0 dst_f32::blocked:aBcd8b:f0,,"
    "alg:convolution_direct,mb4_ic3oc32_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1,0.126953"
)
BATCH_NORM = (
    "dnnl_verbose,exec,cpu,batch_normalization,bnorm_ref:any,backward,data_f32::blocked:aBcd8b:f0 "
    "diff_f32::blocked:aBcd16b:f0,,flags:S,mb32ic144ih32iw32,301.2"
)
MAPS = (
    "dnnl_verbose,exec,cpu,reorder,simple:any,undef,src_f32:0:blocked:abcd:f0 "
    "dst_f32::blocked:aBcd8b:f0,,,32x24x32x32,0.5"
)
SUM = (
    "dnnl_verbose,exec,cpu,sum,ref:any,undef,src_f32::blocked:aBcd16b:f0 "
    "src_bf16::blocked:acdb:f0 dst_f32::blocked:aBcd16b:f0,,,32x512x4x4,1"
)


def kernel(source: str, target: str, sizes: str) -> str:
    return (
        f"dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:{source}:f0 "
        f"dst_f32::blocked:{target}:f0,,,{sizes},0.02"
    )


def test_a_convolution() -> None:
    layouts = (("src", "abcd"), ("wei", "Acdb8a"), ("dst", "aBcd8b"))
    problem = "mb4_ic3oc32_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1"
    found = onednn_log.parse(CONVOLUTION + "\n")
    assert found == Primitive(
        "convolution", "jit:avx2", "forward_training", layouts, problem, 0.126953
    )
    assert not found.is_reference and not found.is_reorder and not found.moves_kernel
    assert found.title == "jit:avx2 forward_training"


@pytest.mark.parametrize("line", [BATCH_NORM, SUM])
def test_references(line: str) -> None:
    assert onednn_log.parse(line).is_reference
    assert not onednn_log.parse(line.replace("ref:any", "jit:avx2")).is_reference


def test_the_layouts_of_arrays_of_one_name() -> None:
    layouts = (("src", "aBcd16b"), ("src", "acdb"), ("dst", "aBcd16b"))
    assert onednn_log.parse(SUM).layouts == layouts


def test_reorders_of_maps_and_of_kernels() -> None:
    maps = onednn_log.parse(MAPS)
    assert maps.moves_maps and not maps.moves_kernel
    assert not onednn_log.parse(kernel("a", "a", "64")).moves_maps
    assert not onednn_log.parse(kernel("abcd", "aBcd8b", "8x64x1x1")).moves_maps
    assert onednn_log.parse(kernel("abcd", "aBcd8b", "8x64x1x11")).moves_maps
    assert maps.title == "simple:any abcd to aBcd8b"
    for line in (
        kernel("abcd", "ABcd8b8a", "16x32x1x1"),
        kernel("Acdb16a", "abcd", "32x3x3x3"),
        kernel("abcde", "Abcde8a", "32x1x1x3x3"),
        kernel("aBCde8c8b", "abcde", "16x8x8x3x3"),
        kernel("abcde", "abcde", "16x8x8x3x3"),
    ):
        found = onednn_log.parse(line)
        assert found.moves_kernel and not found.moves_maps, line
    # Blocks behind the pixels are those of maps of one pixel.
    assert not onednn_log.parse(kernel("acdB8b", "aBcd8b", "32x64x1x1")).moves_kernel


def test_other_lines_are_passed_over() -> None:
    lines = [
        "dnnl_verbose,info,oneDNN v2.4.4 (commit 5818c40f07bdb6307f9bc64e929836fe036da644)",
        "dnnl_verbose,info,cpu,isa:Intel AVX2",
        "[00:57:13] ../src/executor/graph_executor.cc:60: subgraph backend is not in use",
        CONVOLUTION,
        "",
        BATCH_NORM,
    ]
    kinds = [one.kind for one in onednn_log.read(lines)]
    assert kinds == ["convolution", "batch_normalization"]


@pytest.mark.parametrize(
    "line",
    [
        CONVOLUTION.replace("exec,cpu", "exec"),
        CONVOLUTION.replace("dnnl_verbose,exec", "dnnl_verbose,create:cache_miss"),
        CONVOLUTION.replace("dnnl_verbose", "dnnl_verbose,1234.5"),
        CONVOLUTION.replace("0.126953", "fast"),
        "dnnl_verbose,",
    ],
)
def test_a_line_of_another_version_is_refused(line: str) -> None:
    with pytest.raises(LogError, match="oneDNN 2.4.4"):
        list(onednn_log.read([line]))
