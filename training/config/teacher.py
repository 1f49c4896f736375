"""The options of a teacher: a trained network whose embeddings another one learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from typing_extensions import override

from backbones.options import check_checkpoint, split_checkpoint
from runtime.errors import ConfigError
from runtime.options import COUNT, Options, number


@dataclass(frozen=True)
class TeacherOptions(Options):
    """Distillation: a trained network as a teacher."""

    teacher: Optional[str] = None
    """Checkpoint PREFIX,EPOCH of a trained network, of which the embeddings of the same images are
    learned beside the classes; it is not trained itself."""

    teacher_weight: float = number(
        1.0, COUNT.saying("must not be negative; 0 measures the distance and learns nothing")
    )
    """Weight of the teacher in the loss: times the mean of 1 - cosine between its embeddings and
    those that are trained; 0 measures it only."""

    @property
    def checkpoint(self) -> Optional[tuple[str, int]]:
        """Prefix and epoch of ``--teacher``."""
        return None if self.teacher is None else split_checkpoint("teacher", self.teacher)

    @override
    def check(self) -> None:
        if self.teacher is not None:
            check_checkpoint("teacher", self.teacher)


def check_given(given: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if the command line, by field, gives a weight to no teacher."""
    has_teacher = given.get("teacher", saved.get("teacher")) is not None
    if "teacher_weight" in given and not has_teacher:
        raise ConfigError(
            f"--teacher-weight {given['teacher_weight']:g} goes with --teacher PREFIX,EPOCH; give "
            "both or none"
        )
