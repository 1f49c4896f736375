# shellcheck shell=bash
# Sourced by the scripts that start jobs.

# refuse WORDS: a mistake of the user, in one line; what it quotes may have any characters.
refuse() {
    local line=$*
    echo "error: ${line//[[:cntrl:]]/ }" >&2
    exit 2
}
