"""Every file that is read or written, with something else in its place."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from runtime.errors import UserError
from tests.fuzz.links import CASES, KINDS, READ, WRITTEN, replaced


@pytest.mark.parametrize("name", READ)
def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    case = READ[name]
    for kind in ("pipe", "device", "folder"):
        with pytest.raises(UserError) as caught, replaced(case, kind, tmp_path / kind) as path:
            case.use(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in CASES if name not in READ])
def test_others_go_on_or_refuse(tmp_path: Path, name: str) -> None:
    for kind in KINDS:
        with suppress(UserError), replaced(CASES[name], kind, tmp_path / kind) as path:
            CASES[name].use(path)


@pytest.mark.parametrize("name", READ)
def test_a_file_that_is_there_is_read_also_through_a_link(tmp_path: Path, name: str) -> None:
    case = READ[name]
    case.make(tmp_path)
    path = tmp_path / case.name
    case.use(path)
    path.rename(tmp_path / "kept")
    path.symlink_to(tmp_path / "kept")
    if name == "description of features":
        # It is the lock of the folder as well.
        with pytest.raises(UserError, match="it is a link"):
            case.use(path)
    else:
        case.use(path)


@pytest.mark.parametrize("name", WRITTEN)
def test_no_other_file_is_overwritten(tmp_path: Path, name: str) -> None:
    """``replaced`` compares the content of the other file."""
    is_kept = name in ("lock of a run", "log", "metrics.jsonl")
    for kind in ("link to a file", "hard link"):
        try:
            with replaced(WRITTEN[name], kind, tmp_path / kind) as path:
                WRITTEN[name].use(path)
                assert not path.is_symlink()
        except UserError as error:
            assert is_kept and "link" in str(error)
        else:
            assert not is_kept
