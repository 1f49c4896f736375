"""The words that a user types for Open MPI's mpirun, and where options stand in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Optional

from runtime.errors import ConfigError

RANKS, LIST, FILE, DEFAULT = "-np", "-H", "--hostfile", "--default-hostfile"
# The parameter that the last of them sets.
DEFAULT_PARAMETER = "orte_default_hostfile"
_KINDS = {
    **dict.fromkeys(("np", "n", "c"), RANKS),
    **dict.fromkeys(("H", "host"), LIST),
    **dict.fromkeys(("hostfile", "machinefile"), FILE),
    "default-hostfile": DEFAULT,
}
# Options without a value. All others have one, mca and gmca two.
_FLAGS = frozenset(
    "allow-run-as-root bynode byslot continuous debug-daemons disable-recovery display-allocation "
    "display-devel-allocation display-devel-map display-diffable-map display-map display-topo "
    "do-not-launch do-not-resolve enable-instant-on-support enable-recovery index-argv-by-rank "
    "leave-session-attached merge-stderr-to-stdout nolocal nooversubscribe noprefix novm "
    "oversubscribe pernode preload-binary s quiet q report-bindings report-child-jobs-separately "
    "report-state-on-timeout get-stack-traces set-cwd-to-session-dir show-progress staged "
    "tag-output timestamp-output tv use-hwthread-cpus use-regexp verbose v version V "
    "wait-for-server xml".split()
)
_PAIRS = frozenset(("mca", "gmca"))
# Those with a value that Horovod and run.sh use. Others may change which program is meant.
_WITH_VALUE = frozenset(("x", "bind-to", "map-by", "rank-by", "output-filename"))


class Words:
    """The words for Open MPI, and where options stand in them."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.values: list[tuple[str, int]] = []
        """Kind of an option for ranks or hosts, and the place of its value."""
        self.parameters: dict[str, int] = {}
        """Place of each MCA parameter's value."""
        self.programs: list[str] = []
        self.output: Optional[str] = None
        """The value of ``--output-filename``, the folder for the outputs of ranks."""
        self.is_understood = True
        """True if all options are known, so that ``programs`` are the ones of Open MPI."""
        place = 0
        while place < len(self.words):
            word = self.words[place]
            if word.startswith("-"):
                place += self._take(word.lstrip("-"), place)
                continue
            # Its words are its own, up to a colon, after which options of another program follow.
            self.programs.append(word)
            rest = self.words[place:]
            place += rest.index(":") + 1 if ":" in rest else len(rest)

    def _take(self, name: str, place: int) -> int:
        """Note an option; returns the number of its words."""
        option, equals, value = name.partition("=")
        if equals:
            typed, place_of_name = self.words[place], len(self.words[place]) - len(name)
            raise ConfigError(
                f"{typed[:80]}: mpirun takes a value as a word of its own; write "
                f"{typed[:place_of_name]}{option} {value[:80]}"
            )
        if name in _FLAGS:
            return 1
        count = 3 if name in _PAIRS else 2
        values, last = self.words[place + 1 : place + count], place + count - 1
        if len(values) == count - 1:
            kind = _KINDS.get(name)
            if name in _PAIRS:
                self.parameters[values[0]] = last
                kind = DEFAULT if values[0] == DEFAULT_PARAMETER else None
            elif kind == DEFAULT:
                self.parameters[DEFAULT_PARAMETER] = last
            elif name == "output-filename":
                self.output = values[0]
            # Open MPI's word for no file.
            if kind and not (kind == DEFAULT and values[-1] == "none"):
                self.values.append((kind, last))
        self.is_understood &= name in _PAIRS or name in _KINDS or name in _WITH_VALUE
        return count

    def places(self, kind: str) -> list[int]:
        """The places of the values of a kind of option."""
        return [place for found, place in self.values if found == kind]

    def parameter(self, name: str, default: str = "") -> str:
        """Value of an MCA parameter, as it is typed or in a variable."""
        if name in self.parameters:
            return self.words[self.parameters[name]]
        return os.environ.get(f"OMPI_MCA_{name}", default)
