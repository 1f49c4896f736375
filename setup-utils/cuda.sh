# shellcheck shell=bash
# Sourced by the installers, for a GPU build of MXNet: finds the one CUDA toolkit and the NCCL that Horovod is built
# with. Horovod's build looks for each of their parts (compiler, architectures, headers, libraries) in another order, and
# would take two toolkits without a word; so what is found here is what it gets.

# The CUDA version of $MXNET_PACKAGE, as in 11.2; empty for the CPU.
cuda_version=${MXNET_PACKAGE#mxnet-cu}
if [[ $cuda_version == "$MXNET_PACKAGE" ]]; then cuda_version=''; fi
cuda_version=${cuda_version:0:2}${cuda_version:+.}${cuda_version:2}
cuda_home=''
# Where systems have what no variable names.
system=/usr

# Whether libraries that were built for this CUDA version work with the package: minor versions of CUDA 11 do.
fits_cuda() {
    [[ $1 == "$cuda_version" || ($cuda_version == 11.* && $1 == 11.*) ]]
}

# Sets $cuda_home to the toolkit of the package's version. HOROVOD_CUDA_HOME decides if it is set; otherwise it is the
# first one that fits of CUDA_HOME, the nvcc on the PATH, and NVIDIA's usual folders.
find_toolkit() {
    local candidate version top found=''
    local candidates=("${HOROVOD_CUDA_HOME:-}")
    if [[ -z ${HOROVOD_CUDA_HOME:-} ]]; then
        # What is on the PATH can be a link or a script elsewhere; the compiler knows its own folder.
        top=$(nvcc --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p' || true)
        candidates=("${CUDA_HOME:-}" "$top" "$system/local/cuda-$cuda_version" "$system/local/cuda")
    fi
    for candidate in "${candidates[@]}"; do
        if [[ -z $candidate || ! -x $candidate/bin/nvcc ]]; then continue; fi
        candidate=$(CDPATH='' cd "$candidate" && pwd)
        version=$("$candidate/bin/nvcc" --version 2>/dev/null | sed -n 's/.* release \([0-9]*\.[0-9]*\),.*/\1/p' || true)
        if [[ $version == "$cuda_version" ]]; then
            cuda_home=$candidate
            return
        fi
        found+="${found:+, }CUDA ${version:-of unknown version} in $candidate"
    done
    if [[ -n ${HOROVOD_CUDA_HOME:-} ]]; then found=${found:-no bin/nvcc in HOROVOD_CUDA_HOME=$HOROVOD_CUDA_HOME}; fi
    fail "$MXNET_PACKAGE needs the compiler of CUDA $cuda_version, and there is ${found:-none}: install the CUDA" \
        "$cuda_version toolkit and set HOROVOD_CUDA_HOME to its folder, or choose the MXNET_PACKAGE of another version"
}

# first_with FILE FOLDER...: prints the path of the first of the folders that has the file.
first_with() {
    local file=$1 folder
    shift
    for folder; do
        if [[ -n $folder && -e $folder/$file ]]; then
            CDPATH='' cd "$folder" && pwd
            return
        fi
    done
    return 1
}

# Sets $nccl_include and $nccl_lib to the folders of NCCL's header and shared library, which go together and with the
# package. MXNet loads the shared library anyway; two copies of NCCL in a process would be one too many.
find_nccl() {
    local header library home=${HOROVOD_NCCL_HOME:-} remedy
    remedy="install NCCL for CUDA ${cuda_version} with its header, or set HOROVOD_NCCL_HOME to its folder"
    local includes=("${HOROVOD_NCCL_INCLUDE:-}" ${home:+"$home/include"}) libs=("${HOROVOD_NCCL_LIB:-}")
    libs+=(${home:+"$home/lib" "$home/lib64"})
    if [[ -z $home ]]; then
        if [[ -z ${HOROVOD_NCCL_INCLUDE:-} ]]; then includes=({"$cuda_home","$system/local","$system"}/include); fi
        if [[ -z ${HOROVOD_NCCL_LIB:-} ]]; then
            libs=("$cuda_home"/{lib64,lib} "$system"/local/{lib,lib64} "$system"/lib/*-linux-gnu "$system"/{lib64,lib})
        fi
    fi
    nccl_include=$(first_with nccl.h "${includes[@]}") ||
        fail "no nccl.h for $MXNET_PACKAGE in ${includes[*]}: $remedy"
    nccl_lib=$(first_with libnccl.so "${libs[@]}") ||
        fail "no libnccl.so for $MXNET_PACKAGE in ${libs[*]}: $remedy"
    header=$(sed -n 's/^#define NCCL_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\).*/\2/p' "$nccl_include/nccl.h" | paste -sd .)
    # The library has its version as text, such as: NCCL version 2.8.4+cuda11.2
    library=$(grep -aom1 'NCCL version [0-9][0-9.]*+cuda[0-9][0-9.]*' "$nccl_lib/libnccl.so") || return 0
    library=${library##*NCCL version }
    [[ $header == "${library%+cuda*}" ]] ||
        fail "$nccl_include/nccl.h is of NCCL $header, but $nccl_lib/libnccl.so of ${library%+cuda*}: $remedy"
    fits_cuda "${library#*+cuda}" ||
        fail "$nccl_lib/libnccl.so is NCCL $library, but $MXNET_PACKAGE needs one for CUDA $cuda_version: $remedy"
}
