"""Hosts that share no folder, as threads whose folders differ."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import threading
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest

from partial_fc.shard import Shard
from runtime.errors import DataError
from runtime.state import OWN, REPLICATED, SHARDED, Saved, State, Stateful, Stored
from tests.support.thread_world import ThreadWorld, run_ranks
from tests.training.checkpoint.test_files import killed_at, names
from training.checkpoint import __main__ as command
from training.checkpoint import files, layout, resume
from training.checkpoint.layout import Part
from training.checkpoint.writer import Checkpointer
from training.run_folder import Storage

CLASSES, WIDTH = 11, 3
ABOUT: dict[str, Any] = {"identity": {"classes": CLASSES}, "configuration": {}}


class Layer(Stateful):
    def __init__(self, world: ThreadWorld) -> None:
        self.rank, self.shard = world.rank, Shard(world.rank, world.size, CLASSES)
        self.bad, self.update = False, 0

    def export_state(self, update: int) -> State:
        centers = np.arange(CLASSES * WIDTH, dtype=np.float32).reshape(CLASSES, WIDTH)
        rows = centers[self.shard.start : self.shard.stop] + 100 * update
        arrays = {
            "centers": Stored(SHARDED, rows, self.shard.start, CLASSES),
            "own": Stored(OWN, np.full(2, np.inf if self.bad else 1, np.float32)),
            "weight": Stored(REPLICATED, np.full((2, 2), update, np.float32)),
        }
        return State(arrays, {"update": update, "rank": self.rank})

    def load_state(self, saved: Saved) -> None:
        """Compare everything that was saved."""
        self.update = saved.count("update")
        assert saved.count("rank") == 0 and saved.names() == ["centers", "own", "weight"]
        expected = self.export_state(self.update).arrays
        np.testing.assert_array_equal(saved.replicated("weight", (2, 2)), expected["weight"].array)
        place = self.shard.start, self.shard.stop, CLASSES, (WIDTH,)
        rows = [piece for _, piece in sorted(saved.pieces("centers", *place), key=itemgetter(0))]
        np.testing.assert_array_equal(np.concatenate(rows), expected["centers"].array)


def storage_of(world: ThreadWorld, folders: Sequence[Path]) -> Storage:
    hosts, firsts = zip(*((folder.name, folders.index(folder)) for folder in folders))
    return Storage(folders[world.rank], world, hosts, firsts)


def save(folders: Sequence[Path], *updates: int, keep: int = 9) -> None:
    def rank_main(world: ThreadWorld) -> None:
        parts, here = {"layer": Layer(world)}, storage_of(world, folders)
        checkpointer = Checkpointer(parts, here, keep=keep, about=ABOUT)
        for update in updates:
            checkpointer.save(update)
        checkpointer.finish()

    run_ranks(len(folders), rank_main)


def load(folders: Sequence[Path], go_on: str = "auto") -> Optional[int]:
    """The update that all ranks resume; None if they begin anew."""

    def rank_main(world: ThreadWorld) -> Optional[int]:
        layer = Layer(world)
        saved = resume.find(go_on, storage_of(world, folders), ABOUT)
        if saved is None:
            return None
        saved.restore({"layer": layer})
        return layer.update

    (update,) = set(run_ranks(len(folders), rank_main))
    return update


def type_commands(said: str, folder: Path) -> None:
    """Do what the commands of an error would, with hosts that are folders in ``folder``."""
    for target, commands in re.findall(r"(host\d) lacks .*?, type there: (.*?);", said):
        for command_line in commands.split(" && "):
            program, options, from_path, to_path = shlex.split(command_line)
            assert (program, options, to_path[-1]) == ("rsync", "-as", "/")
            source, _, path = from_path.partition(":")
            relative = Path(path).relative_to(folder).parts[1:]
            there, here = (folder.joinpath(host, *relative) for host in (source, target))
            shutil.copytree(there, here, dirs_exist_ok=True)


@pytest.fixture
def hosts(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"host{number}" for number in (1, 2, 3, 4, 5)]


def test_each_host_keeps_the_files_of_its_ranks(hosts: list[Path]) -> None:
    one, two, *_ = hosts
    for host in (one, two):
        (host / "checkpoints/.update-00000001.killed.part").mkdir(parents=True)
    save([one, one, two, two], 1, 3, 5, keep=2)
    for folder, ranks, end in ((one, "01", ""), (two, "23", "-0002")):
        assert names(folder / "checkpoints") == ["update-00000003", "update-00000005"]
        assert names(folder) == ["checkpoints"]
        path = folder / "checkpoints/update-00000005"
        assert names(path) == [f"manifest{end}.json", *(f"rank-000{rank}.bin" for rank in ranks)]
        assert [len(x.entries) for x in layout.read_part(path).files.values()] == [3, 2]
    assert load([one, one, two, two]) == 5


@pytest.mark.parametrize(("before", "now", "typed"), [
    ("12", "12", []),
    ("12", "21", ["host1", "host2"]),
    ("12", "221", ["host1", "host2"]),
    ("11", "12", ["host2"]),
    ("123", "312", ["host1", "host2", "host3"]),
    ("1212", "1122", ["host1", "host2"]),
    ("123", "1", ["host1"]),
])  # fmt: skip
def test_hosts_resume_after_the_commands_that_the_error_names(before, now, typed, hosts, tmp_path):
    sources, folders = ([hosts[int(number) - 1] for number in word] for word in (before, now))
    save(sources, 3)
    if typed:
        with pytest.raises(DataError, match="of update 3 is on other hosts than this run") as error:
            load(folders)
        said = str(error.value)
        assert "\n" not in said and sorted(re.findall(r"(host\d) lacks", said)) == typed
        type_commands(said, tmp_path)
    assert load(folders) == 3


def test_an_interrupted_copy_is_asked_for_again(hosts: list[Path], tmp_path: Path) -> None:
    one, two, *_ = hosts
    save([one, two], 1, 3)
    there, here = (host / "checkpoints/update-00000003" for host in (two, one))
    shutil.copy(there / "manifest-0001.json", here)
    (here / "rank-0001.bin").write_bytes((there / "rank-0001.bin").read_bytes()[:-1])
    for _ in range(2):
        with pytest.raises(DataError, match="host1 lacks rank-0001.bin of host2, type") as error:
            load([one, one])
    type_commands(str(error.value), tmp_path)
    assert load([one, one]) == 3
    command.main(["verify", str(here)])


@pytest.mark.parametrize(("update", "killed"), [(5, 0), (3, 1)])
def test_the_last_checkpoint_survives_a_kill_at_any_moment(update, killed, tmp_path, monkeypatch):
    """One host is killed before each of its changes, also if the same update is written again."""
    values = {"layer": {"update": update + 10, "rank": 0}}
    header = Part(update, 9, "x-9", ("host1", "host2"), {}, values, ABOUT)
    name = f"{files.name_of(update)}-9" if update == 3 else files.name_of(update)

    def publish(rank: int, folder: Path) -> None:
        final = folder / "checkpoints" / name
        world = SimpleNamespace(rank=rank, size=2)
        hidden, state = files.hidden_folder(final, "x"), Layer(world).export_state(update + 10)
        files.write_rank(hidden, rank, {f"layer/{key}": one for key, one in state.arrays.items()})
        files.publish(hidden, final, header, [rank], 1, threading.Event())

    for step in itertools.count():
        folders = [tmp_path / str(step) / name for name in ("host1", "host2")]
        save(folders, 3, keep=1)
        for rank, folder in enumerate(folders):
            if rank == killed:
                was_killed = killed_at(step, monkeypatch, partial(publish, rank, folder))
            else:
                publish(rank, folder)
        for _ in ("at once", "and by the next run"):
            found = load(folders)
            assert found in ((3, update + 10) if was_killed else (update + 10,))
            assert found == 3 or not was_killed or step > 8
        save(folders, 7, keep=1)
        for folder in folders:
            visible = [x for x in names(folder / "checkpoints") if not x.endswith(".broken")]
            assert visible == ["update-00000007"]
        if not was_killed:
            break
    assert step > 8


def test_a_file_on_no_host_of_this_run_is_an_error_with_the_command(hosts: list[Path]) -> None:
    one, two, three, *_ = hosts
    save([one, two], 1, 2)
    with pytest.raises(DataError) as error:
        load([one, three])
    path = f"{one}/checkpoints/update-00000002"
    said = f"host3 lacks rank-0001.bin of host2, type there: rsync -as host2:{path} {one}/check"
    assert "\n" not in str(error.value) and said in str(error.value)


def test_a_broken_part_or_one_without_the_others_is_put_aside(hosts: list[Path], caplog) -> None:
    one, two, *_ = hosts
    save([one, two], 2, 3)
    shutil.rmtree(two / "checkpoints/update-00000003")
    assert load([one, two]) == 2
    assert "update 3 is not complete: it lacks rank-0001.bin of host2" in caplog.text
    assert names(one / "checkpoints") == ["update-00000002", "update-00000003.broken"]
    save([one, two], 4)
    file = two / "checkpoints/update-00000004/rank-0001.bin"
    file.write_bytes(b"\xff" + file.read_bytes()[1:])
    assert load([one, two]) == 2
    assert "BROKEN CHECKPOINT" in caplog.text
    for host in (one, two):
        assert {"update-00000002", "update-00000004.broken"} <= {*names(host / "checkpoints")}
    with pytest.raises(DataError, match="nowhere does not exist"):
        load([one, two], go_on="nowhere")
    (one / "here").symlink_to(two / "checkpoints/update-00000002")
    with pytest.raises(DataError, match=r"update 2 .* host1 lacks rank-0000.bin of host1"):
        load([one, two], go_on=str(one / "here"))


@pytest.mark.parametrize(("places", "bad"), [("001", 1), ("001", 2), ("000", 1)])
def test_a_rank_that_cannot_write_ends_all_ranks_with_its_name(places, bad, hosts) -> None:
    folders = [hosts[int(place)] for place in places]
    save(folders, 2)

    def rank_main(world: ThreadWorld) -> str:
        layer, here = Layer(world), storage_of(world, folders)
        checkpointer = Checkpointer({"layer": layer}, here, keep=2, about=ABOUT)
        checkpointer.save(4)
        checkpointer.finish()
        layer.bad = world.rank == bad
        for update in (2, 6):
            checkpointer.save(update)
            with pytest.raises(DataError) as error:
                checkpointer.finish()
        what, _, before = str(error.value).rpartition("; ")
        assert before == f"{here.root}/checkpoints/update-00000004 is untouched"
        return what.replace(str(here.root), "models")

    (line,) = set(run_ranks(3, rank_main))
    assert f"written by rank {bad} on {folders[bad].name}: " in line
    assert "not finite" in line and "Error" not in line
    for folder in folders:
        assert names(folder / "checkpoints") == ["update-00000002", "update-00000004"]
    assert load(folders) == 4


def test_info_verify_and_merge_of_a_part(hosts: list[Path], capsys) -> None:
    save(hosts[:2], 2)
    path = hosts[1] / "checkpoints/update-00000002"
    command.main(["verify", str(path)])
    command.main(["info", str(path)])
    said = capsys.readouterr().out
    assert "is intact: 1 files" in said and "written by 2 ranks" in said
    assert "it lacks rank-0000.bin of host1" in said and "rank 0: on host1" in said
    with pytest.raises(DataError, match=f"lacks rank-0000.bin .* rsync -as host1:{path} "):
        command.main(["merge", str(path)])
    save(hosts[1:], 3)
    other = path.with_name("update-00000003") / "manifest.json"
    path = hosts[0] / "checkpoints/update-00000002"
    shutil.copy(other, path / "manifest-0009.json")
    with pytest.raises(DataError, match="has manifests of different checkpoints"):
        command.main(["info", str(path)])


@pytest.mark.parametrize("groups", ["000", "012", "010", "011"])
def test_ranks_find_out_who_has_the_same_folder(groups: str, tmp_path: Path) -> None:
    for found in run_ranks(3, lambda world: Storage.find(tmp_path / groups[world.rank], world)):
        assert found.firsts == tuple(map(groups.index, groups))
        assert found.is_spread == (groups != "000")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/models cannot be written on "):
        run_ranks(2, lambda world: Storage.find(tmp_path / "file/models", world))
