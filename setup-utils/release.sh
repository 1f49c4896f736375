#!/usr/bin/env bash
# Makes a release: a tag whose message is the first section of CHANGELOG.md (`make release` calls this). The version is
# that of CITATION.cff. Nothing is sent anywhere: pushing the tag is up to its owner.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/refuse.sh"

# of_citation NAME: prints the value of a line of CITATION.cff.
of_citation() {
    sed -n "s/^$1: //p" CITATION.cff
}

section=$(awk '/^## / && found++ { exit } found' CHANGELOG.md)
title=${section%%$'\n'*}
[[ $title =~ ^'## '([^ ]+)' ('([^\)]*)')'$ ]] || refuse "CHANGELOG.md has no section '## VERSION (DATE)'; write one"
version=${BASH_REMATCH[1]} day=${BASH_REMATCH[2]}
[[ $(of_citation version) == "$version" ]] ||
    refuse "CITATION.cff has version $(of_citation version), the first section of CHANGELOG.md $version; make them the same"
[[ $day =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2}$ && $(of_citation date-released) == "$day" ]] ||
    refuse "$version is dated ($day) in CHANGELOG.md and $(of_citation date-released) as date-released in CITATION.cff;" \
        "write the day of the release, such as 2026-11-24, into both"
changed=$(git status --porcelain)
[[ -z $changed ]] || refuse "$(awk 'NR == 1 { print $2 }' <<<"$changed") differs from the last commit; commit first"
[[ -z $(git tag --list "v$version") ]] ||
    refuse "there is a tag v$version already; give the release another version"
notes=${section#*$'\n'}
git tag --annotate "v$version" --cleanup=verbatim --message "$version ($day)"$'\n\n'"${notes#$'\n'}"$'\n'
echo "tagged v$version; to publish it: git push origin v$version"
