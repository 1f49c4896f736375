#!/usr/bin/env bash
# Writes the lock files: the packages of the requirements files and their dependencies, with the hashes of their files on
# the index. `make lock` calls this script. A version in a lock file stays as long as the requirements allow it.
#
# UPGRADE             packages that get their newest version, as in UPGRADE="idna requests"
# UV_DEFAULT_INDEX    another index than PyPI; uv does not read the configuration of pip
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# write_lock NAME OPTION...: writes NAME.lock from NAME.txt in the temporary folder.
write_lock() {
    local name=$1 package
    shift
    for package in ${UPGRADE:-}; do set -- "$@" --upgrade-package "$package"; done
    say "writing $name.lock"
    # uv keeps the versions and the hashes of the file that it replaces. Remove the hashes, so that uv asks the index.
    sed -e '/--hash=/d' -e 's/ *\\$//' "$ROOT/$name.lock" >"$name.lock"
    uv/bin/uv pip compile --no-config --quiet --cache-dir cache --universal --python-version 3.9 --generate-hashes \
        --annotation-style line --custom-compile-command 'make lock' "$@" "$name.txt" --output-file "$name.lock" ||
        fail "$name.lock was not written, see above; the lock files are unchanged"
}

need_environment
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
locked_package requirements-single.lock uv >"$folder/uv.lock"
logged lock "installing uv" install_with_pip "$VENV" "$folder/uv.lock" --target "$folder/uv"
cp requirements*.txt "$folder"
# uv writes the names of its input files into the lock files: relative names, so that no folder of this machine gets in.
cd "$folder"
write_lock requirements --only-binary :all:
write_lock requirements-dev --only-binary :all: --constraint requirements.lock
write_lock requirements-docs --only-binary :all:
# setup-utils/ installs these packages without dependencies. Horovod has no wheel, so --only-binary would refuse it.
write_lock requirements-single --no-deps
mv requirements.lock requirements-{dev,docs,single}.lock "$ROOT"
