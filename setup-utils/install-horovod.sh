#!/usr/bin/env bash
# Builds Horovod for the MXNet and the Open MPI of .venv, and checks the result. It is always built here: a wheel from
# pip's cache may have been built for another MXNet package or MPI and would crash later. Started by itself, it builds for
# the MXNet package that .venv was made for, and checks the compiler (nvcc) and NCCL against it as `make env` does.
chosen_package=${MXNET_PACKAGE:-}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_environment
IFS=, read -r MXNET_PACKAGE _ 2>/dev/null <"$VENV/made-for" || fail "$VENV is incomplete: run 'make env'"
[[ ${chosen_package:-$MXNET_PACKAGE} == "$MXNET_PACKAGE" ]] ||
    fail "MXNET_PACKAGE=$chosen_package, but $VENV has $MXNET_PACKAGE: run 'MXNET_PACKAGE=$chosen_package make env'"
source setup-utils/cuda.sh

needed=(MXNet MPI Gloo)
build_settings=(
    HOROVOD_WITH_MXNET=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1
    HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1
)
# Where libraries that were built through a link search those of MXNet and of .venv, relative to their folder ($ORIGIN).
# shellcheck disable=SC2016
library_folders='$ORIGIN/../../mxnet;$ORIGIN/../../../..'

# Horovod's build and `horovodrun --check` import MXNet without runtime/mxnet.py. If NumPy has no longer the alias that
# MXNet needs, a .pth file of the environment restores it for them.
restore_numpy_alias() {
    local packages
    "$VENV/bin/python" -W ignore -c 'import numpy; numpy.bool' 2>/dev/null && return
    packages=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo 'import numpy; vars(numpy).setdefault("bool", bool)' >"$packages/numpy-bool-for-mxnet.pth"
}

check_mxnet() {
    local reason remedy="remove $VENV and run 'make env'"
    if [[ -n $cuda_version ]]; then
        remedy="install the driver, and put the folders of CUDA $cuda_version ($cuda_home/lib64), cuDNN and NCCL on"
        remedy+=" LD_LIBRARY_PATH; MXNET_PACKAGE=mxnet needs none of them"
    fi
    reason=$("$VENV/bin/python" -W ignore setup-utils/check_libraries.py mxnet "$cuda_version" 2>&1) ||
        fail "$MXNET_PACKAGE does not load as it should: $(tail -n 1 <<<"$reason"); $remedy"
}

# Horovod's CMake takes the compiler from HOROVOD_CUDA_HOME, but the architectures from the nvcc on the PATH, headers
# and libraries from CUDAToolkit_ROOT and CMAKE_PREFIX_PATH, and NCCL from NCCL_ROOT, before those that are named for it.
prepare_gpu() {
    find_toolkit
    find_nccl
    needed+=(NCCL)
    build_settings+=(
        HOROVOD_GPU=CUDA HOROVOD_GPU_OPERATIONS=NCCL "HOROVOD_CUDA_HOME=$cuda_home" "CUDAToolkit_ROOT=$cuda_home"
        "CUDA_PATH=$cuda_home" "HOROVOD_NCCL_INCLUDE=$nccl_include" "HOROVOD_NCCL_LIB=$nccl_lib"
        HOROVOD_NCCL_LINK=SHARED HOROVOD_NCCL_HOME= NCCL_ROOT= CMAKE_PREFIX_PATH=
    )
    library_folders+=";$cuda_home/lib64;$nccl_lib"
}

# Prints the first part that the installed Horovod lacks; prints nothing if it is complete.
missing_part() {
    local report part
    report=$("$VENV/bin/python" -W ignore setup-utils/check_libraries.py horovod 2>/dev/null) ||
        { echo 'a library that horovod.mxnet loads'; return; }
    for part in "${needed[@]}"; do
        grep -qF "[X] $part" <<<"$report" || { echo "$part"; return; }
    done
}

# Whether no build treats a character of this path in a special way.
is_plain() {
    local LC_ALL=C
    [[ $1 =~ ^[A-Za-z0-9/._+-]+$ ]]
}

# CMake's search for MPI and Horovod's for MXNet split paths at spaces. If the project's path has one, the build uses a
# link to the project in a temporary folder.
build_through_link() {
    export PROJECT_LINK=$1/project LIBRARY_FOLDERS=$library_folders
    ln -s "$ROOT" "$PROJECT_LINK"
    if [[ ! -x $VENV/bin/mpicxx ]]; then
        LIBRARY_FOLDERS+=";$(mpicxx -showme:libdirs | tr ' ' ';')"
    fi
    seen=$PROJECT_LINK
}

# build FOLDER: builds a wheel of Horovod in an empty folder with a plain path.
build() {
    local folder=$1 seen=$ROOT processors
    # Horovod would start eight compilers on any machine, and each takes up to 1.2 GB.
    processors=$("$VENV/bin/python" -m runtime.processors)
    is_plain "$VENV" || build_through_link "$folder"
    build_settings+=(
        "MAKEFLAGS=-j$processors" "FILES_TOGETHER=$((processors > 3 ? 8 : 24))" "TMPDIR=$folder"
        "HOROVOD_CMAKE=$seen/setup-utils/horovod-build/cmake"
    )
    locked_package requirements-single.lock horovod >"$folder/horovod.lock"
    logged horovod "building Horovod" env "${build_settings[@]}" \
        "PATH=$seen/.venv/bin:${cuda_home:+$cuda_home/bin:}$PATH" "$seen/.venv/bin/python" -m pip wheel \
        --no-cache-dir --no-deps --no-binary horovod --no-build-isolation --require-hashes --wheel-dir "$folder" \
        --requirement "$folder/horovod.lock"
}

PATH=$VENV/bin:$PATH
restore_numpy_alias
if [[ -n $cuda_version ]]; then
    prepare_gpu
fi
check_mxnet
if [[ -n $(missing_part) ]]; then
    say "building Horovod for $MXNET_PACKAGE (1 to 4 minutes)"
    folder=${TMPDIR:-/tmp}
    is_plain "$folder" || folder=/tmp
    folder=$(mktemp -d "$folder/horovod-XXXXXX") || fail "no temporary folder can be made in $folder: set TMPDIR to one"
    trap 'rm -rf "$folder"' EXIT
    logged horovod "removing the old Horovod" "$VENV/bin/python" -m pip uninstall --yes horovod
    build "$folder"
    # The lock file has no hash for the wheel, which has just been built: --no-index, so that pip downloads nothing.
    logged horovod-wheel "installing Horovod" "$VENV/bin/python" -m pip install --no-index --no-deps "$folder"/horovod-*.whl
    missing=$(missing_part)
    [[ -z $missing ]] || fail "the new Horovod lacks $missing: see $VENV/log/horovod.log, and: horovodrun --check --verbose"
fi
