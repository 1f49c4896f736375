"""Open MPI's mpirun, with lists of hosts that it can use and hosts that answer.

    python setup-utils/mpirun.py ORTERUN ARGUMENTS... -- WORDS...

Open MPI answers a wrong list with pages of text, and waits forever for a server of ssh that says
nothing. So the lists in WORDS are read here, each host is asked by ssh to run a command, and what
cannot work is one line and status 2. Then this process becomes ORTERUN, with ARGUMENTS, the names
of the variables for other hosts, and the same words but for their lists: a host stands once, and a
file is one in memory, which nobody has to remove.

For run.sh, RUN_SH_ATTEMPT has the number of its attempt. From 1 on, hosts that do not answer are
left out.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parallel.host_lists import read_file, read_list, slots_by_host
from parallel.launch import ssh, variables
from parallel.launch.allocations import refuse_unread_hosts, tasks_of_slurm
from parallel.launch.network_interface import is_own_name
from parallel.launch.output_folder import make_output_folder
from runtime.errors import ConfigError, run_program
from runtime.process.loopback import loopback_variables

AGENT = "remote-shell"
"""The program by which ``launchers/mpirun`` lets Open MPI reach other hosts."""
_NO_HOST_STATUS = 75  # EX_TEMPFAIL: not a user's error, so that run.sh tries again.
# Size of the segment in /dev/shm by which each rank sends messages to others of its host, the
# default of btl_vader_segment_size.
_SEGMENT = 4 << 20
_SHARED_MEMORY = "/dev/shm"
# After which a restart leaves a host out.
_LEAVE_OUT_SECONDS = 30
_RANKS, _LIST, _FILE, _DEFAULT = "-np", "-H", "--hostfile", "--default-hostfile"
# The parameter that the last of them sets.
_DEFAULT_PARAMETER = "orte_default_hostfile"
_KINDS = {
    **dict.fromkeys(("np", "n", "c"), _RANKS),
    **dict.fromkeys(("H", "host"), _LIST),
    **dict.fromkeys(("hostfile", "machinefile"), _FILE),
    "default-hostfile": _DEFAULT,
}
_NAMES_IN_RUN_SH = {_RANKS: "NP", _LIST: "HOSTS", _FILE: "HOSTFILE", _DEFAULT: _DEFAULT}
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
_VERSION = frozenset(("-V", "-version", "--version"))
# Variables that name hosts: without a list of hosts, Open MPI starts ranks there.
_ALLOCATIONS = (
    *("SLURM_JOB_ID", "SLURM_JOBID"),
    f"OMPI_MCA_{_DEFAULT_PARAMETER}",
)
# A name server may take its time.
_is_own = functools.lru_cache(maxsize=None)(is_own_name)


@dataclass
class Words:
    """The words for Open MPI, and where options stand in them."""

    words: list[str]
    values: list[tuple[str, int]] = field(default_factory=list)
    """Kind of an option for ranks or hosts, and the place of its value."""
    parameters: dict[str, str] = field(default_factory=dict)
    """MCA parameters."""
    places_of_parameters: dict[str, int] = field(default_factory=dict)
    """Place of each parameter's value in ``words``."""
    programs: list[str] = field(default_factory=list)
    output: Optional[str] = None
    """The value of ``--output-filename``, the folder for the outputs of ranks."""
    is_understood: bool = True
    """True if all options are known, so that ``programs`` are the ones of Open MPI."""

    def __post_init__(self) -> None:
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
        values = self.words[place + 1 : place + 3]
        if name in _PAIRS:
            if len(values) == 2:
                self.parameters[values[0]] = values[1]
                self.places_of_parameters[values[0]] = place + 2
                if values[0] == _DEFAULT_PARAMETER:
                    self._note(_DEFAULT, place + 2)
            return 3
        if name == "output-filename" and values:
            self.output = values[0]
        if name in _KINDS and values:
            self._note(_KINDS[name], place + 1)
        if name not in _KINDS and name not in _WITH_VALUE:
            self.is_understood = False
        return 2

    def _note(self, kind: str, place: int) -> None:
        value = self.words[place]
        if kind == _DEFAULT:
            self.parameters[_DEFAULT_PARAMETER] = value
            if value == "none":
                # Open MPI's word for no file.
                return
        self.values.append((kind, place))

    def places(self, kind: str) -> Iterator[int]:
        """The places of the values of a kind of option."""
        return (place for found, place in self.values if found == kind)


def _file_in_memory(slots: Mapping[str, Optional[int]]) -> str:
    """Make a file of hosts that only this process and the one it becomes can read."""
    lines = (f"{host} slots={count}" if count else host for host, count in slots.items())
    number = os.memfd_create("hosts", 0)
    os.write(number, "".join(f"{line}\n" for line in lines).encode())
    return f"/proc/self/fd/{number}"


def _list_in_a_word(slots: Mapping[str, Optional[int]]) -> str:
    return ",".join(f"{host}:{count}" if count else host for host, count in slots.items())


class Launch:
    """One start of ranks."""

    def __init__(self, words: Sequence[str], attempt: Optional[int]) -> None:
        """Read the lists.

        Args:
            words: for Open MPI.
            attempt: of run.sh; None if the user has typed the words.

        Raises:
            ConfigError: an option is wrong.
            DataError: a file of hosts is wrong.
        """
        self._words, self._attempt = Words(list(words)), attempt
        default = os.environ.get(f"OMPI_MCA_{_DEFAULT_PARAMETER}")
        # run.sh names the hosts itself.
        if attempt is None and default and _DEFAULT_PARAMETER not in self._words.parameters:
            self._words = Words(["-mca", _DEFAULT_PARAMETER, default, *words])
        self._lists: dict[int, dict[str, Optional[int]]] = {}
        for kind, place in self._words.values:
            value = self._words.words[place]
            if kind == _LIST and not value.startswith("+"):
                entries = read_list(value, name=self._name(kind))
            elif kind in (_FILE, _DEFAULT):
                entries = read_file(Path(value))
            else:
                continue
            slots = slots_by_host(entries, _is_own)
            if kind == _FILE and attempt is not None:
                # To Open MPI a host of a file has as many slots as cores: without numbers, all
                # ranks would be on the first one.
                slots = {host: count or 1 for host, count in slots.items()}
            self._lists[place] = slots
        for place in self._words.places(_RANKS):
            value = self._words.words[place]
            if not re.fullmatch("[1-9][0-9]{0,4}", value):
                raise ConfigError(
                    f"{self._name(_RANKS)} {value[:80]!r} is not a number of ranks; give one from "
                    "1 on"
                )

    def _name(self, kind: str) -> str:
        """The name by which the user has given something."""
        return kind if self._attempt is None else _NAMES_IN_RUN_SH[kind]

    def check_ranks(self) -> None:
        """Refuse more ranks than slots, where the lists say how many there are."""
        ranks = [int(self._words.words[place]) for place in self._words.places(_RANKS)]
        self._check_allocation(ranks)
        lists = [one for one in self._words.values if one[0] != _RANKS]
        counts = [count for slots in self._lists.values() for count in slots.values()]
        # An entry of -H without a number is one slot, unless it chooses a host of an allocation.
        are_entries = bool(lists) and all(kind == _LIST for kind, _ in lists)
        if None in counts and (not are_entries or os.environ.keys() & set(_ALLOCATIONS)):
            return
        # The lists of -H add up, if there is one program; a file and -H do not.
        is_sum = are_entries and len(self._words.programs) == 1 and len(lists) == len(self._lists)
        if len(ranks) != 1 or not (is_sum or len(lists) == len(self._lists) == 1):
            return
        slots = sum(count or 1 for count in counts)
        if ranks[0] > slots and not self._may_be_too_many():
            names = " ".join(f"{self._name(kind)} {self._words.words[at]}" for kind, at in lists)
            raise ConfigError(
                f"{self._name(_RANKS)} {ranks[0]} is more ranks than the {slots} slots of "
                f"{names[:90]}; add slots, or start fewer"
            )

    def _check_allocation(self, numbers: Sequence[int]) -> None:
        """Refuse more ranks than an allocation of Slurm has tasks, to Open MPI its slots."""
        # On this host alone, or where the user wishes so, Open MPI does not look at it.
        is_off = "ras" in self._words.parameters or "OMPI_MCA_ras" in os.environ
        tasks = 0 if is_off or self._is_on_this_host() else tasks_of_slurm()
        of_lists = self._ranks_of_lists() if self._attempt is not None else 0
        ranks = sum(numbers) or of_lists
        if tasks and ranks > tasks and not self._may_be_too_many():
            raise ConfigError(
                f"{ranks} ranks are more than the {tasks} tasks of Slurm's allocation; ask for as "
                f"many, as in salloc --ntasks={ranks}, or start fewer"
            )

    def limit_waiting(self) -> None:
        """Have ``srun``, by which Open MPI starts a job on other hosts of Slurm, wait in limits.

        It waits for as long as another step has the processors, such as that of ``srun --pty``.
        """
        if "SLURM_JOB_ID" in os.environ:
            os.environ.setdefault("SLURM_IMMEDIATE", os.environ["HOST_TIMEOUT"])

    def check_output(self) -> None:
        """Refuse a folder for what ranks print that cannot be one; Open MPI would hang.

        Raises:
            ConfigError: with the reason.
        """
        if self._words.output is not None:
            # Words for Open MPI follow a colon.
            make_output_folder(self._words.output.partition(":")[0])

    def check_other_allocations(self) -> None:
        """Without a list of hosts, see ``refuse_unread_hosts``."""
        if self._words.programs and all(kind == _RANKS for kind, _ in self._words.values):
            refuse_unread_hosts(_is_own)

    def check_lists(self) -> None:
        """Refuse hosts of ``-H`` that a file does not have: it chooses among those of the file.

        Raises:
            ConfigError: with the first of them.
        """
        files = [place for place in self._words.places(_FILE) if place in self._lists]
        known = {host for place in files for host in self._lists[place]}
        has_own = any(map(_is_own, known))
        # With several programs, each may have lists of its own.
        is_one = bool(files) and len(self._words.programs) == 1
        for place in self._words.places(_LIST):
            for host in self._lists.get(place, ()):
                if is_one and host not in known and not (has_own and _is_own(host)):
                    raise ConfigError(
                        f"{_LIST} {host[:80]} is not among the hosts of {_FILE} "
                        f"{self._words.words[files[0]][:80]}; add it there, or give one of the two"
                    )

    def check_programs(self) -> None:
        """Refuse a command without a program, or with one that this host, the only one, lacks.

        Raises:
            ConfigError: with what to type.
        """
        programs, hosts = self._words.programs, {h for slots in self._lists.values() for h in slots}
        if not self._words.is_understood:
            return
        if not programs and not _VERSION.intersection(self._words.words):
            raise ConfigError(
                "there is no program to start; write it after the options, as in mpirun -np 2 bash "
                "config.sh"
            )
        if hosts and all(map(_is_own, hosts)):
            for program in programs:
                if shutil.which(program) is None:
                    raise ConfigError(
                        f"{program[:80]!r} is not a program of this host; correct its name, or "
                        "give its path"
                    )

    def _may_be_too_many(self) -> bool:
        options = " ".join([*self._words.words, *filter(_is_of_open_mpi, os.environ)])
        return re.search(r"(?<!no)(?<!no_)oversubscribe", options, re.IGNORECASE) is not None

    def reach_hosts(self) -> None:
        """Refuse, or leave out, hosts that ssh does not reach.

        Raises:
            ConfigError: with the first of them.
        """
        hosts = [host for place in self._chosen() for host in self._lists[place]]
        remote = [host for host in dict.fromkeys(hosts) if not _is_own(host)]
        if not remote or not self._is_reached_by_ssh():
            return
        more = self._words.parameters.get("plm_rsh_args", os.environ.get("OMPI_MCA_plm_rsh_args"))
        seconds = int(os.environ["HOST_TIMEOUT"])
        if self._attempt:
            seconds = min(seconds, _LEAVE_OUT_SECONDS)
        client = ssh.client(seconds, "-x", *shlex.split(more or ""))
        dead = {}
        with ssh.exits_on_signals():
            for host, error in ssh.failures(remote, seconds, client):
                if not self._attempt:
                    raise error
                dead[host] = error
        if dead:
            self._leave_out(dead)

    def _chosen(self) -> Sequence[int]:
        """The places of the lists that decide: after a file, ``-H`` chooses among its hosts."""
        chosen = [place for place in self._words.places(_LIST) if place in self._lists]
        return chosen or list(self._lists)

    def _is_reached_by_ssh(self) -> bool:
        """True if neither the allocation of a cluster nor another program than ssh starts ranks."""
        agent = os.environ.get("OMPI_MCA_plm_rsh_agent")
        agent = self._words.parameters.get("plm_rsh_agent", agent)
        return agent == AGENT and "SLURM_JOB_ID" not in os.environ

    def _leave_out(self, dead: Mapping[str, ConfigError]) -> None:
        """Take hosts from the lists, and as many ranks as have no slots then."""
        for slots in self._lists.values():
            for host in dead:
                slots.pop(host, None)
        alive = [
            f"{host}:{count or 1}"
            for slots in self._lists.values()
            for host, count in slots.items()
        ]
        if not alive:
            print(f"run.sh: {next(iter(dead.values()))}", file=sys.stderr, flush=True)
            raise SystemExit(_NO_HOST_STATUS)
        print(
            f"run.sh: {' '.join(dead)} cannot be reached by ssh; the run goes on without, on "
            f"{' '.join(alive)}",
            file=sys.stderr,
            flush=True,
        )
        for place in self._words.places(_RANKS):
            ranks = min(int(self._words.words[place]), self._ranks_of_lists())
            self._words.words[place] = str(ranks)

    def _ranks_of_lists(self) -> int:
        return sum(count or 1 for slots in self._lists.values() for count in slots.values())

    def check_shared_memory(self) -> None:
        """Refuse more ranks on this host than /dev/shm can have segments for.

        Raises:
            ConfigError: with what is free.
        """
        # The user may have chosen another transport, folder or size.
        words = " ".join([*self._words.words, *os.environ.keys(), self._transports()])
        if "vader" in words or not self._transports().startswith("^"):
            return
        lists = [self._lists[place] for place in self._chosen()]
        own = [count or 1 for slots in lists for host, count in slots.items() if _is_own(host)]
        numbers = [int(self._words.words[place]) for place in self._words.places(_RANKS)]
        ranks = min(sum(own), sum(numbers) or sum(own))
        try:
            free = shutil.disk_usage(_SHARED_MEMORY).free
        except OSError:
            return
        if ranks > 1 and free < ranks * _SEGMENT:
            raise ConfigError(
                f"{free >> 20} MiB are free in {_SHARED_MEMORY}, and {ranks} ranks on this host "
                f"need {ranks * _SEGMENT >> 20}; remove old files there, start fewer ranks, or "
                "docker run --shm-size=1g"
            )

    def close_ports(self) -> None:
        """Have no other host or user reach the job, if all its ranks are on this host.

        Ranks exchange data by shared memory alone. The port of ``mpirun`` for daemons, which cannot
        be switched off, hears nobody; PMIx's, by which ranks find it, hears this user.
        """
        if not self._is_on_this_host():
            return
        os.environ.update(loopback_variables())
        # Else Open MPI starts ranks on the hosts of a Slurm job, and no more than Slurm's tasks.
        for framework in ("ras", "plm"):
            os.environ.setdefault(f"OMPI_MCA_{framework}", "^slurm")
        ways = self._transports()
        if ways.startswith("^") and "tcp" not in ways[1:].split(","):
            ways = "^" + ",".join(filter(None, (ways[1:], "tcp")))
            os.environ["OMPI_MCA_btl"] = ways
            if "btl" in self._words.parameters:
                self._words.words[self._words.places_of_parameters["btl"]] = ways

    def _transports(self) -> str:
        """Value of Open MPI's parameter ``btl``."""
        return self._words.parameters.get("btl", os.environ.get("OMPI_MCA_btl", "^"))

    def _is_on_this_host(self) -> bool:
        hosts = {host for slots in self._lists.values() for host in slots}
        if len(self._lists) < len(self._words.values) - len([*self._words.places(_RANKS)]):
            # A list that names hosts by their numbers in an allocation.
            return False
        if hosts:
            return all(map(_is_own, hosts))
        return self._words.is_understood and not os.environ.keys() & set(_ALLOCATIONS)

    def words(self) -> list[str]:
        """The words for Open MPI with the lists as they are now."""
        words = list(self._words.words)
        for kind, place in self._words.values:
            if place in self._lists:
                write = _list_in_a_word if kind == _LIST else _file_in_memory
                words[place] = write(self._lists[place])
        if self._attempt is not None and not any(self._words.places(_RANKS)):
            first = min(self._lists) - 1
            words[first:first] = ["-np", str(self._ranks_of_lists())]
        return words


def _is_of_open_mpi(variable: str) -> bool:
    return variable.startswith("OMPI_MCA_")


def main() -> None:
    """Become Open MPI's program."""
    program, *words = sys.argv[1:]
    place = words.index("--")
    arguments, words = words[:place], words[place + 1 :]
    for name in variables.names(os.environ):
        # Open MPI sends its own.
        arguments += [] if _is_of_open_mpi(name) else ["-x", name]
    attempt = os.environ.pop("RUN_SH_ATTEMPT", None)
    launch = Launch(words, None if attempt is None else int(attempt))
    launch.check_ranks()
    launch.limit_waiting()
    launch.check_output()
    launch.check_other_allocations()
    launch.check_lists()
    launch.check_programs()
    launch.check_shared_memory()
    launch.reach_hosts()
    launch.close_ports()
    sys.stdout.flush()
    # Called by its path, it would set other hosts' PATH by itself, to the system's folder if it is
    # the system's.
    os.execv(program, ["mpirun", *arguments, *launch.words()])


if __name__ == "__main__":
    run_program(main)
