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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from open_mpi_words import DEFAULT, DEFAULT_PARAMETER, FILE, LIST, RANKS, Words

from parallel import host_lists
from parallel.launch import ssh, variables
from parallel.launch.network_interface import is_own_name
from runtime.errors import ConfigError, run_program
from runtime.process.loopback import loopback_variables

AGENT = "remote-shell"
"""The program by which ``launchers/mpirun`` lets Open MPI reach other hosts."""
_NO_HOST_STATUS = 75  # EX_TEMPFAIL: not a user's error, so that run.sh tries again.
# Default of btl_vader_segment_size: by a segment each rank sends messages to others of its host.
_SEGMENT = 4 << 20
_SHARED_MEMORY = "/dev/shm"
_TRANSPORTS = ("btl", "^")  # Open MPI's parameter, and a value that leaves none out.
_LEAVE_OUT_SECONDS = 30  # After which a restart leaves a host out.
_NAMES_IN_RUN_SH = {RANKS: "NP", LIST: "HOSTS", FILE: "HOSTFILE", DEFAULT: DEFAULT}
_VERSION = frozenset(("-V", "-version", "--version"))
# Variables that name hosts: without a list of hosts, Open MPI starts ranks there.
_ALLOCATIONS = ("SLURM_JOB_ID", "SLURM_JOBID", f"OMPI_MCA_{DEFAULT_PARAMETER}")
# A name server may take its time.
_is_own = functools.lru_cache(maxsize=None)(is_own_name)


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
        self._words, self._attempt = Words(words), attempt
        default = os.environ.get(f"OMPI_MCA_{DEFAULT_PARAMETER}")
        # run.sh names the hosts itself.
        if attempt is None and default and DEFAULT_PARAMETER not in self._words.parameters:
            self._words = Words(["-mca", DEFAULT_PARAMETER, default, *words])
        self._lists: dict[int, dict[str, Optional[int]]] = {}
        for kind, place in self._words.values:
            value = self._words.words[place]
            if kind == LIST and not value.startswith("+"):
                entries = host_lists.read_list(value, name=self._name(kind))
            elif kind in (FILE, DEFAULT):
                entries = host_lists.read_file(Path(value))
            else:
                continue
            slots = host_lists.slots_by_host(entries, _is_own)
            if kind == FILE and attempt is not None:
                # To Open MPI a host of a file has as many slots as cores: without numbers, all
                # ranks would be on the first one.
                slots = {host: count or 1 for host, count in slots.items()}
            self._lists[place] = slots
        for place in self._words.places(RANKS):
            value = self._words.words[place]
            if not re.fullmatch("[1-9][0-9]{0,4}", value):
                raise ConfigError(
                    f"{self._name(RANKS)} {value[:80]!r} is not a number of ranks; give one from "
                    "1 on"
                )

    def _name(self, kind: str) -> str:
        """The name by which the user has given something."""
        return kind if self._attempt is None else _NAMES_IN_RUN_SH[kind]

    def _ranks(self) -> list[int]:
        """The numbers of ranks that are typed, one for each program."""
        return [int(self._words.words[place]) for place in self._words.places(RANKS)]

    def _hosts(self) -> set[str]:
        return {host for slots in self._lists.values() for host in slots}

    def _ranks_of_lists(self) -> int:
        return sum(count or 1 for slots in self._lists.values() for count in slots.values())

    def _is_on_this_host(self) -> bool:
        if len(self._lists) < sum(kind != RANKS for kind, _ in self._words.values):
            # A list that names hosts by their numbers in an allocation.
            return False
        if self._lists:
            return all(map(_is_own, self._hosts()))
        return self._words.is_understood and not os.environ.keys() & set(_ALLOCATIONS)

    def _may_be_too_many(self) -> bool:
        options = " ".join([*self._words.words, *filter(_is_of_open_mpi, os.environ)])
        return re.search(r"(?<!no)(?<!no_)oversubscribe", options, re.IGNORECASE) is not None

    def check(self) -> None:
        """Refuse what Open MPI answers with pages of text, or waits for.

        Raises:
            ConfigError: with what to type.
        """
        self._check_allocation()
        self._check_ranks()
        if self._words.output is not None:
            # Open MPI would hang. Words for it follow a colon.
            folder = self._words.output.partition(":")[0]
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"--output-filename {folder} is no folder, and cannot be made "
                    f"({error.strerror}); name another place"
                ) from None
        if self._words.programs and all(kind == RANKS for kind, _ in self._words.values):
            host_lists.refuse_unread_hosts(_is_own)
        self._check_programs()
        self._check_shared_memory()

    def _check_allocation(self) -> None:
        """Refuse more ranks than an allocation of Slurm has tasks, to Open MPI its slots."""
        # On this host alone, or where the user wishes so, Open MPI does not look at it.
        is_off = self._words.parameter("ras") != "" or self._is_on_this_host()
        tasks = 0 if is_off else host_lists.tasks_of_slurm()
        ranks = sum(self._ranks())
        if not ranks and self._attempt is not None:
            ranks = self._ranks_of_lists()
        if tasks and ranks > tasks and not self._may_be_too_many():
            raise ConfigError(
                f"{ranks} ranks are more than the {tasks} tasks of Slurm's allocation; ask for as "
                f"many, as in salloc --ntasks={ranks}, or start fewer"
            )

    def _check_ranks(self) -> None:
        """Refuse more ranks than slots, where a single list says how many there are."""
        ranks = self._ranks()
        lists = [one for one in self._words.values if one[0] != RANKS]
        if not len(ranks) == len(lists) == len(self._lists) == 1 or self._may_be_too_many():
            return
        ((kind, place),) = lists
        is_known = None not in self._lists[place].values()
        # An entry of -H without a number is one slot, unless it chooses a host of an allocation.
        if not is_known and (kind != LIST or os.environ.keys() & set(_ALLOCATIONS)):
            return
        slots = self._ranks_of_lists()
        if ranks[0] > slots:
            name = f"{self._name(kind)} {self._words.words[place]}"
            raise ConfigError(
                f"{self._name(RANKS)} {ranks[0]} is more ranks than the {slots} slots of "
                f"{name[:90]}; add slots, or start fewer"
            )

    def _check_programs(self) -> None:
        """Refuse a command without a program, or with one that this host, the only one, lacks."""
        programs, hosts = self._words.programs, self._hosts()
        if not self._words.is_understood:
            return
        if not programs and not _VERSION.intersection(self._words.words):
            raise ConfigError(
                "there is no program to start; write it after the options, as in mpirun -np 2 bash "
                "config.sh"
            )
        for program in programs if hosts and all(map(_is_own, hosts)) else ():
            if shutil.which(program) is None:
                raise ConfigError(
                    f"{program!r} is not a program of this host; correct its name, or give its path"
                )

    def _check_shared_memory(self) -> None:
        """Refuse more ranks on this host than /dev/shm can have segments for."""
        transports = self._words.parameter(*_TRANSPORTS)
        # The user may have chosen another transport, folder or size.
        words = " ".join([*self._words.words, *os.environ.keys(), transports])
        if "vader" in words or not transports.startswith("^"):
            return
        lists = [self._lists[place] for place in self._chosen()]
        own = sum(count or 1 for slots in lists for host, count in slots.items() if _is_own(host))
        ranks = min(own, sum(self._ranks()) or own)
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

    def _chosen(self) -> Sequence[int]:
        """The places of the lists that decide: after a file, ``-H`` chooses among its hosts."""
        chosen = [place for place in self._words.places(LIST) if place in self._lists]
        return chosen or list(self._lists)

    def reach_hosts(self) -> None:
        """Refuse, or leave out, hosts that ssh does not reach.

        Raises:
            ConfigError: with the first of them.
        """
        hosts = [host for place in self._chosen() for host in self._lists[place]]
        remote = [host for host in dict.fromkeys(hosts) if not _is_own(host)]
        # Neither the allocation of a cluster nor another program than ssh starts ranks.
        is_by_ssh = self._words.parameter("plm_rsh_agent") == AGENT
        if not remote or not is_by_ssh or "SLURM_JOB_ID" in os.environ:
            return
        seconds = int(os.environ["HOST_TIMEOUT"])
        if self._attempt:
            seconds = min(seconds, _LEAVE_OUT_SECONDS)
        more = shlex.split(self._words.parameter("plm_rsh_args"))
        client = ssh.client(seconds, "-x", *more)
        if not self._attempt:
            ssh.check(remote, seconds, client)
        elif dead := ssh.failures(remote, seconds, client):
            self._leave_out(dead)

    def _leave_out(self, dead: Mapping[str, ConfigError]) -> None:
        """Take hosts from the lists, and as many ranks as have no slots then."""
        for slots in self._lists.values():
            for host in dead:
                slots.pop(host, None)
        counts = (pair for slots in self._lists.values() for pair in slots.items())
        alive = " ".join(f"{host}:{count or 1}" for host, count in counts)
        if not alive:
            print(f"run.sh: {next(iter(dead.values()))}", file=sys.stderr, flush=True)
            raise SystemExit(_NO_HOST_STATUS)
        line = f"{' '.join(dead)} cannot be reached by ssh; the run goes on without, on {alive}"
        print(f"run.sh: {line}", file=sys.stderr, flush=True)
        for place, ranks in zip(self._words.places(RANKS), self._ranks()):
            self._words.words[place] = str(min(ranks, self._ranks_of_lists()))

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
        ways = self._words.parameter(*_TRANSPORTS)
        if ways.startswith("^") and "tcp" not in ways[1:].split(","):
            ways = "^" + ",".join(filter(None, (ways[1:], "tcp")))
            os.environ["OMPI_MCA_btl"] = ways
            if "btl" in self._words.parameters:
                self._words.words[self._words.parameters["btl"]] = ways

    def words(self) -> list[str]:
        """The words for Open MPI with the lists as they are now."""
        words = list(self._words.words)
        for kind, place in self._words.values:
            if place in self._lists:
                write = _list_in_a_word if kind == LIST else _file_in_memory
                words[place] = write(self._lists[place])
        if self._attempt is not None and not self._words.places(RANKS):
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
    launch.check()
    if "SLURM_JOB_ID" in os.environ:
        # Open MPI's srun would wait for as long as another step has the processors.
        os.environ.setdefault("SLURM_IMMEDIATE", os.environ["HOST_TIMEOUT"])
    launch.reach_hosts()
    launch.close_ports()
    sys.stdout.flush()
    # Called by its path, it would set other hosts' PATH by itself, to the system's folder if it is
    # the system's.
    os.execv(program, ["mpirun", *arguments, *launch.words()])


if __name__ == "__main__":
    run_program(main)
