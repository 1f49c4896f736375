"""Open MPI's mpirun, with lists of hosts that it can use and hosts that answer.

    python setup-utils/mpirun.py ORTERUN ARGUMENTS... -- WORDS...

Open MPI answers a wrong list with pages of text, and waits forever for a server of ssh that says
nothing. So the list in WORDS is read here, each host is asked by ssh to run a command, and what
cannot work is one line and status 2. Then this process becomes ORTERUN, with ARGUMENTS, the names
of the variables for other hosts, and the same words but for their list: each host stands once, in
``-H``. Words that this program does not know are left to Open MPI.

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

from parallel import host_lists
from parallel.launch import ssh
from runtime.errors import ConfigError, run_program
from runtime.loopback import loopback_variables

AGENT = "remote-shell"
"""The program by which ``launchers/mpirun`` lets Open MPI reach other hosts."""
_NO_HOST_STATUS = 75  # EX_TEMPFAIL: not a user's error, so that run.sh tries again.
# Default of btl_vader_segment_size: by a segment each rank sends messages to others of its host.
_SEGMENT = 4 << 20
_SHARED_MEMORY = "/dev/shm"
_LEAVE_OUT_SECONDS = 30  # After which a restart leaves a host out.
_RANKS, _LIST, _FILE, _DEFAULT = "-np", "-H", "--hostfile", "orte_default_hostfile"
_NAMES_IN_RUN_SH = {_RANKS: "NP", _LIST: "HOSTS", _FILE: "HOSTFILE"}
# Options with one value, those with two, and those without.
_VALUES = {
    **dict.fromkeys(("np", "n", "c"), _RANKS),
    **dict.fromkeys(("H", "host"), _LIST),
    **dict.fromkeys(("hostfile", "machinefile"), _FILE),
    "default-hostfile": _DEFAULT,
    **{name: name for name in ("x", "bind-to", "map-by", "rank-by", "output-filename")},
}
_PAIRS = ("mca", "gmca")
_VERSION = ("V", "version")
_FLAGS = (
    *("allow-run-as-root", "oversubscribe", "nooversubscribe", "tag-output", "timestamp-output"),
    *("report-bindings", "display-map", "display-allocation", "q", "quiet", "v", "verbose"),
    *_VERSION,
)
# Variables of jobs of Slurm: without a list of hosts, Open MPI starts ranks there.
_ALLOCATIONS = ("SLURM_JOB_ID", "SLURM_JOBID")
# A name server may take its time.
_is_own = functools.lru_cache(maxsize=None)(host_lists.is_own_name)


class Words:
    """The words for Open MPI, and where options stand in them."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.program: Optional[str] = None
        self.is_understood = True
        """True if all options are known, so that ``program`` is the one of Open MPI."""
        self.is_simple = True
        """True if there is one program, and one list of hosts at most."""
        self._places: dict[str, int] = {}
        place = 0
        while place < len(self.words) and self.words[place].startswith("-"):
            place += self._take(self.words[place].lstrip("-"), place)
        if place < len(self.words):
            self.program = self.words[place]
            # Options of another program follow a colon.
            self.is_simple &= ":" not in self.words[place:]

    def _take(self, name: str, place: int) -> int:
        """Note an option; returns the number of its words."""
        following = self.words[place + 1 : place + 3]
        if name in _PAIRS and len(following) == 2:
            self._places[following[0]] = place + 2
            return 3
        if name in _VALUES and following:
            key = _VALUES[name]
            self.is_simple &= not (key in (_LIST, _FILE) and key in self._places)
            self._places[key] = place + 1
            return 2
        self.is_understood &= name in _FLAGS
        return 1 if name in _FLAGS or not following or following[0].startswith("-") else 2

    def value(self, key: str) -> Optional[str]:
        """Return the value of an option or MCA parameter that is typed."""
        return self.words[self._places[key]] if key in self._places else None

    def parameter(self, name: str, default: str = "") -> str:
        """Return the value of an MCA parameter, as it is typed or in a variable."""
        typed = self.value(name)
        return os.environ.get(f"OMPI_MCA_{name}", default) if typed is None else typed

    def replace(self, key: str, value: str, name: str = "") -> None:
        """Put a value in place of one that is typed, or before all words; and an option's name."""
        if key not in self._places:
            self.words[:0] = [key, value]
            self._places = {key: 1, **{one: place + 2 for one, place in self._places.items()}}
        self.words[self._places[key]] = value
        if name:
            self.words[self._places[key] - 1] = name


class Launch:
    """One start of ranks."""

    def __init__(self, words: Sequence[str], attempt: Optional[int]) -> None:
        """Read the list of hosts.

        Args:
            words: for Open MPI.
            attempt: of run.sh; None if the user has typed the words.

        Raises:
            ConfigError: an option is wrong.
            DataError: a file of hosts is wrong.
        """
        self.words, self._attempt = Words(words), attempt
        self._kind = _LIST if self.words.value(_LIST) is not None else _FILE
        value = self.words.value(self._kind)
        self._slots: dict[str, Optional[int]] = {}
        # An entry that begins with + numbers the hosts of an allocation.
        if value is not None and self.words.is_simple and not value.startswith("+"):
            if self._kind == _LIST:
                entries = host_lists.read_list(value, name=self._name(_LIST))
            else:
                entries = host_lists.read_file(Path(value))
            self._slots = host_lists.slots_by_host(entries, _is_own)
        ranks = self.words.value(_RANKS)
        if ranks is not None and not re.fullmatch("[1-9][0-9]{0,4}", ranks):
            raise ConfigError(
                f"{self._name(_RANKS)} {ranks[:80]!r} is not a number of ranks; give one from 1 on"
            )
        self._ranks = int(ranks or 0)
        if ranks is None and attempt is not None:
            self._ranks = self._all_slots()

    def _name(self, kind: str) -> str:
        """The name by which the user has given something."""
        return kind if self._attempt is None else _NAMES_IN_RUN_SH[kind]

    def _all_slots(self) -> int:
        return sum(count or 1 for count in self._slots.values())

    def _is_on_this_host(self) -> bool:
        if self._slots:
            return all(map(_is_own, self._slots))
        return (
            self.words.is_understood
            and self.words.is_simple
            and self.words.value(self._kind) is None
            and self.words.parameter(_DEFAULT, "none") == "none"
            and not os.environ.keys() & set(_ALLOCATIONS)
        )

    def check(self) -> None:
        """Refuse what Open MPI answers with pages of text, or waits for.

        Raises:
            ConfigError: with what to type.
        """
        options = [*self.words.words, *(name for name in os.environ if _is_of_open_mpi(name))]
        may_be_too_many = re.search(r"(?<!no)(?<!no_)oversubscribe", " ".join(options), re.I)
        if self.words.is_simple and not may_be_too_many:
            self._check_ranks()
        is_listed = self.words.value(self._kind) is not None or self.words.parameter(_DEFAULT)
        if self.words.program is not None and not is_listed:
            host_lists.refuse_unread_hosts(_is_own)
        self._check_program()
        self._check_shared_memory()

    def _check_ranks(self) -> None:
        """Refuse more ranks than slots, which in an allocation of Slurm are its tasks."""
        # On this host alone, or where the user wishes so, Open MPI does not look at it.
        is_off = self.words.parameter("ras") != "" or self._is_on_this_host()
        tasks = 0 if is_off else host_lists.tasks_of_slurm()
        if tasks and self._ranks > tasks:
            raise ConfigError(
                f"{self._ranks} ranks are more than the {tasks} tasks of Slurm's allocation; ask "
                f"for as many, as in salloc --ntasks={self._ranks}, or start fewer"
            )
        # An entry without a number is one slot, unless it chooses a host of an allocation.
        is_known = None not in self._slots.values() or not os.environ.keys() & set(_ALLOCATIONS)
        if self._slots and is_known and self._ranks > self._all_slots():
            name = f"{self._name(self._kind)} {self.words.value(self._kind)}"
            raise ConfigError(
                f"{self._name(_RANKS)} {self._ranks} is more ranks than the {self._all_slots()} "
                f"slots of {name[:90]}; add slots, or start fewer"
            )

    def _check_program(self) -> None:
        """Refuse a command without a program, or with one that this host, the only one, lacks."""
        program = self.words.program
        if not self.words.is_understood:
            return
        if program is None:
            if not any(word.lstrip("-") in _VERSION for word in self.words.words):
                raise ConfigError(
                    "there is no program to start; write it after the options, as in mpirun -np 2 "
                    "bash config.sh"
                )
        elif self._slots and self._is_on_this_host() and shutil.which(program) is None:
            raise ConfigError(
                f"{program!r} is not a program of this host; correct its name, or give its path"
            )

    def _check_shared_memory(self) -> None:
        """Refuse more ranks on this host than /dev/shm can have segments for."""
        transports = self.words.parameter("btl", "^")
        # The user may have chosen another transport, folder or size.
        words = " ".join([*self.words.words, *os.environ.keys(), transports])
        if "vader" in words or not transports.startswith("^"):
            return
        own = sum(count or 1 for host, count in self._slots.items() if _is_own(host))
        ranks = min(own, self._ranks or own)
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

    def reach_hosts(self) -> None:
        """Refuse, or leave out, hosts that ssh does not reach.

        Raises:
            ConfigError: with the first of them.
        """
        remote = [host for host in self._slots if not _is_own(host)]
        # Neither the allocation of a cluster nor another program than ssh starts ranks.
        is_by_ssh = self.words.parameter("plm_rsh_agent") == AGENT
        if not remote or not is_by_ssh or "SLURM_JOB_ID" in os.environ:
            return
        seconds = int(os.environ["HOST_TIMEOUT"])
        if self._attempt:
            seconds = min(seconds, _LEAVE_OUT_SECONDS)
        more = shlex.split(self.words.parameter("plm_rsh_args"))
        client = ssh.client(seconds, "-x", *more)
        if not self._attempt:
            ssh.check(remote, seconds, client)
        elif dead := ssh.failures(remote, seconds, client):
            self._leave_out(dead)

    def _leave_out(self, dead: Mapping[str, ConfigError]) -> None:
        """Take hosts from the list, and as many ranks as have no slots then."""
        for host in dead:
            del self._slots[host]
        if not self._slots:
            print(f"run.sh: {next(iter(dead.values()))}", file=sys.stderr, flush=True)
            raise SystemExit(_NO_HOST_STATUS)
        alive = " ".join(f"{host}:{count or 1}" for host, count in self._slots.items())
        line = f"{' '.join(dead)} cannot be reached by ssh; the run goes on without, on {alive}"
        print(f"run.sh: {line}", file=sys.stderr, flush=True)
        self._ranks = min(self._ranks, self._all_slots())

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
        ways = self.words.parameter("btl", "^")
        if ways.startswith("^") and "tcp" not in ways[1:].split(","):
            ways = "^" + ",".join(filter(None, (ways[1:], "tcp")))
            os.environ["OMPI_MCA_btl"] = ways
            if self.words.value("btl") is not None:
                self.words.replace("btl", ways)

    def write_words(self) -> list[str]:
        """Return the words for Open MPI with the list and the number of ranks as they are now."""
        if self._slots:
            hosts = (f"{host}:{count}" if count else host for host, count in self._slots.items())
            self.words.replace(self._kind, ",".join(hosts), name=_LIST)
        if self._ranks:
            self.words.replace(_RANKS, str(self._ranks))
        return self.words.words


def _is_of_open_mpi(variable: str) -> bool:
    return variable.startswith("OMPI_MCA_")


def main() -> None:
    """Become Open MPI's program."""
    program, *words = sys.argv[1:]
    place = words.index("--")
    arguments, words = words[:place], words[place + 1 :]
    for name in ssh.variables_to_send(os.environ):
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
    os.execv(program, ["mpirun", *arguments, *launch.write_words()])


if __name__ == "__main__":
    run_program(main)
