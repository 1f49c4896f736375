#!/usr/bin/env bash
# Installs everything into .venv, without root: Python packages, Open MPI, Horovod. A second call finds that the inputs
# are unchanged and does nothing.
#
#   bash setup-utils/install.sh           for the programs
#   bash setup-utils/install.sh --dev     for the tests and linters, too
#
# PYTHON           the Python to use (3.9 to 3.12); by default the first supported of python3, python3.11, ...
# MXNET_PACKAGE    mxnet (CPU, the default) or mxnet-cu101 ... mxnet-cu117: docs/gpu.md says which for which GPU
# HOROVOD_CUDA_HOME, HOROVOD_NCCL_HOME     the folders of a GPU build's CUDA toolkit and NCCL, if they are not found
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source setup-utils/cuda.sh

readonly SUPPORTED='3.9 to 3.12'
# Those of which there is a version 1.9.1.
readonly KNOWN_PACKAGES='mxnet mxnet-cu101 mxnet-cu102 mxnet-cu110 mxnet-cu111 mxnet-cu112 mxnet-cu113 mxnet-cu114 '\
'mxnet-cu115 mxnet-cu116 mxnet-cu117'

# Prints the version of a Python if this toolkit can use it: 3.9 to 3.12, with modules for virtual environments.
usable_version() {
    "$1" -c 'import ensurepip, sys, venv
if not (3, 9) <= sys.version_info < (3, 13): sys.exit(1)
print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
}

find_python() {
    local candidate
    # The Python of an activated .venv cannot recreate .venv.
    local PATH=${PATH//"$VENV/bin:"/}
    if [[ -n ${PYTHON:-} ]]; then
        usable_version "$PYTHON" >/dev/null ||
            fail "PYTHON=$PYTHON is not a Python $SUPPORTED with the venv module: set it to one, or unset it"
        command -v "$PYTHON"
        return
    fi
    for candidate in python3 python3.11 python3.12 python3.10 python3.9; do
        if usable_version "$candidate" >/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python $SUPPORTED with the venv module found: install one (Debian: python3 and python3-venv)," \
        "or name it, as in: PYTHON=/path/to/python3.11 make env"
}

check_package() {
    [[ " $KNOWN_PACKAGES " == *" $MXNET_PACKAGE "* ]] ||
        fail "MXNET_PACKAGE=$MXNET_PACKAGE is unknown: choose one of $KNOWN_PACKAGES"
}

check_compiler() {
    local compiler=${CXX:-c++}
    "$compiler" -x c++ -o /dev/null - <<<'#include <vector>
int main() {}' 2>/dev/null ||
        fail "the C++ compiler '$compiler' does not work: install one (Debian: build-essential) or set CXX"
    command -v make >/dev/null || fail "make is missing: install it (Debian: build-essential)"
}

# Whether .venv was made for this Python, MXNet build and folder. Otherwise it is recreated, since Horovod is compiled
# for all three.
environment_fits() {
    [[ -n $1 && -x $VENV/bin/python && $(cat "$VENV/made-for" 2>/dev/null) == "$1" ]]
}

create_environment() {
    local python=$1
    # venv --clear would empty the folder that a link leads to, which may be the environment of another checkout.
    [[ ! -L $VENV ]] || fail ".venv is a link to $(readlink "$VENV"), an environment that was not made for this folder;" \
        "it is left unchanged: remove the link to get one here"
    say "creating .venv with $python"
    "$python" -m venv --clear "$VENV" || fail "'$python -m venv $VENV' failed: set PYTHON to another Python $SUPPORTED"
    made_for "$python" >"$VENV/made-for"
}

# install_packages NAME LOCK: installs the packages of a lock file, with $MXNET_PACKAGE in place of mxnet.
install_packages() {
    local name=$1 lock=$2
    say "installing $lock"
    cp "$lock" "$VENV/$lock"
    if [[ $MXNET_PACKAGE != mxnet && -n $(locked_package "$lock" mxnet) ]]; then
        awk '/^[^ #]/ { other = !/^mxnet==/ } other' "$lock" >"$VENV/$lock"
        locked_package requirements-single.lock "$MXNET_PACKAGE" >>"$VENV/$lock"
    fi
    logged "$name" "installing $lock" install_with_pip "$VENV" "$VENV/$lock"
}

# Prints nothing for a Python that is missing or unsupported.
made_for() {
    local version
    version=$(usable_version "$1") && echo "$MXNET_PACKAGE, Python $version, $ROOT"
}

fingerprint() {
    cat "$VENV/made-for" requirements.lock requirements-single.lock setup-utils/*.sh setup-utils/[!_]*/* 2>/dev/null | sha256sum
}

fingerprint_for_developers() {
    sha256sum <requirements-dev.lock
}

install_programs() {
    local python
    check_compiler
    # Before half a gigabyte of MXNet is installed.
    if [[ -n $cuda_version ]]; then
        find_toolkit
        find_nccl
    fi
    # Unless the user sets PYTHON, an existing environment keeps its Python.
    if ! environment_fits "$(made_for "${PYTHON:-$VENV/bin/python}")"; then
        python=$(find_python)
        create_environment "$python"
    fi
    rm -f "$VENV/installed"
    install_packages packages requirements.lock
    bash setup-utils/install-mpi.sh
    bash setup-utils/install-horovod.sh
    install_launchers
    build_loopback
    compile_modules
    fingerprint >"$VENV/installed"
    say "ready; to use the commands yourself: source .venv/bin/activate"
}

# In place of Open MPI's and Horovod's own, those that also start ranks on other hosts.
install_launchers() {
    ln -sfn ../../setup-utils/launchers/mpirun "$VENV/bin/mpirun"
    ln -sfn ../../setup-utils/launchers/mpirun "$VENV/bin/mpiexec"
    ln -sfn ../../setup-utils/launchers/horovodrun "$VENV/bin/horovodrun"
}

# What keeps other hosts and users from the ports of a job on one host. Jobs that run now keep the former file.
build_loopback() {
    rm -f "$VENV/lib/loopback.so"
    logged loopback "building loopback.so" "${CXX:-c++}" -x c -O2 -shared -fPIC -o "$VENV/lib/loopback.so" \
        setup-utils/loopback.c
}

# Compiles the packages that every rank imports: otherwise all ranks of the first run do so at once, and users who cannot
# write into .venv in each run. Python compiles any other module when a command first imports it.
compile_modules() {
    local site=("$VENV"/lib/python3*/site-packages)
    logged compile "compiling modules" "$VENV/bin/python" -m compileall -q -j 0 \
        -x 'site-packages/.*/tests?/' \
        "${site[0]}"/{numpy,mxnet,horovod,numba,llvmlite,cv2}
}

install_developer_packages() {
    install_packages packages-dev requirements-dev.lock
    fingerprint_for_developers >"$VENV/installed-dev"
}

# up_to_date STAMP FINGERPRINT: whether an earlier call has finished with the same inputs.
up_to_date() {
    [[ $(cat "$VENV/$1" 2>/dev/null) == "$2" ]]
}

main() {
    check_package
    if ! environment_fits "$(made_for "${PYTHON:-$VENV/bin/python}")" || ! up_to_date installed "$(fingerprint)"; then
        install_programs
    fi
    if [[ ${1:-} == --dev ]] && ! up_to_date installed-dev "$(fingerprint_for_developers)"; then
        install_developer_packages
    fi
}

main "$@"
