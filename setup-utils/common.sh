# shellcheck shell=bash
# Sourced by the installers: where the environment is, and how a step reports that it failed.
set -euo pipefail

# With it, Python would not search the project's folder for the modules of its programs.
unset PYTHONSAFEPATH

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly ROOT=$PWD
readonly VENV=$ROOT/.venv
MXNET_PACKAGE=${MXNET_PACKAGE:-mxnet}

say() {
    echo "setup: $*"
}

# Ends with the status of an error that the user can correct.
fail() {
    echo "error: $*" >&2
    exit 2
}

# Fails unless the environment exists.
need_environment() {
    [[ -x $VENV/bin/python ]] || fail "there is no environment in $VENV: run 'make env' first"
}

# install_with_pip ENVIRONMENT LOCK OPTION...: installs the packages of a lock file; pip refuses files with other hashes.
# Wheels only: to build a package from its source, pip would download build tools, whose hashes it does not check.
# pip would also compile all modules, of which the programs import a seventh.
install_with_pip() {
    local environment=$1 lock=$2
    shift 2
    "$environment/bin/python" -m pip install --no-compile --require-hashes --only-binary :all: --requirement "$lock" "$@"
}

# locked_package LOCK NAME: prints the lines of a package in a lock file.
locked_package() {
    awk -v start="$2==" '/^[^ #]/ { own = index($0, start) == 1 } own' "$1"
}

# The line of a log that explains the failure: the first error of CMake or a compiler (CMake's text is on the line after
# its heading), a file that pip refused because of its hash (the package is on the line after the error), otherwise the last
# error of pip, otherwise the last line.
reason_in() {
    awk '
        heading && NF { print; found = 1; exit }
        /CMake Error/ { heading = 1; next }
        /: (fatal )?error: / { print; found = 1; exit }
        refused && NF {
            print refused ": " $1 ". The package index has another file of this version than the one of the lock file:" \
                " choose another index (PIP_INDEX_URL), or, if you trust this file, lock it: make lock"
            found = 1
            exit
        }
        match($0, /THESE PACKAGES DO NOT MATCH THE HASHES/) { refused = substr($0, RSTART, RLENGTH); next }
        /^ *(ERROR|error)/ { error = $0 }
        NF { last = $0 }
        END { if (!found) print (error ? error : last) }
    ' "$1" | sed 's/^ *//'
}

# logged NAME DESCRIPTION COMMAND...: runs the command with its output in .venv/log/NAME.log.
logged() {
    local log=$VENV/log/$1.log description=$2
    shift 2
    mkdir -p "$VENV/log"
    "$@" >"$log" 2>&1 || fail "$description failed: $(reason_in "$log") (whole log: $log)"
}
