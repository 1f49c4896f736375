#!/usr/bin/env bash
# Creates .venv-docs, the environment that builds the site: `make docs` calls this. It is separate, because the site's
# generator brings some forty packages that no program here uses.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly DOCS_VENV=$ROOT/.venv-docs

need_environment
version=$("$VENV/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
fingerprint=$(echo "$ROOT, $version" | cat - requirements-docs.lock | sha256sum)
if [[ $(cat "$DOCS_VENV/installed" 2>/dev/null) != "$fingerprint" ]]; then
    say "installing MkDocs into .venv-docs"
    "$VENV/bin/python" -m venv --clear "$DOCS_VENV" || fail "'python -m venv $DOCS_VENV' failed: make room for it"
    logged docs "installing requirements-docs.lock" install_with_pip "$DOCS_VENV" requirements-docs.lock
    echo "$fingerprint" >"$DOCS_VENV/installed"
fi
