"""What a checkpoint holds of the model: the backbone, and a rank's shard of the head."""

from __future__ import annotations

from backbones.network import Network
from partial_fc.head import PartialFC
from training.checkpoint_manifest import OWN, REPLICATED, SHARDED, Stored
from training.state import Section, State


class BackboneState:
    """The backbone's parameters, and each rank's own BatchNorm statistics."""

    def __init__(self, backbone: Network) -> None:
        """Args: the backbone."""
        self._backbone = backbone

    def export_state(self, update: int) -> State:
        """See ``Stateful.export_state``."""
        statistics = set(self._backbone.statistic_names)
        return State(
            {
                name: Stored(OWN if name in statistics else REPLICATED, parameter.data().asnumpy())
                for name, parameter in self._backbone.parameters.items()
            }
        )

    def load_state(self, saved: Section) -> None:
        """See ``Stateful.load_state``."""
        statistics = set(self._backbone.statistic_names)
        for name, parameter in self._backbone.parameters.items():
            read = saved.own if name in statistics else saved.replicated
            parameter.data()[:] = read(name, parameter.shape)


class HeadState:
    """A rank's shard of the class centers with their optimizer, and the margin's memory."""

    _MARGIN = "margin."

    def __init__(self, head: PartialFC) -> None:
        """Args: the head."""
        self._head = head

    def export_state(self, update: int) -> State:
        """See ``Stateful.export_state``."""
        shard = self._head.shard
        arrays = {
            name: Stored(SHARDED, rows, shard.start, shard.num_classes)
            for name, rows in self._head.rows.snapshot().items()
        }
        for name, array in self._head.margin.export().items():
            arrays[self._MARGIN + name] = Stored(REPLICATED, array)
        return State(arrays)

    def load_state(self, saved: Section) -> None:
        """See ``Stateful.load_state``."""
        shard, rows = self._head.shard, self._head.rows
        for name, row_shape in rows.row_shapes.items():
            pieces = saved.pieces(name, shard.start, shard.stop, shard.num_classes, row_shape)
            for first, values in pieces:
                rows.load(name, first, values)
        memory = {
            name[len(self._MARGIN) :]: saved.replicated(name, (1,))
            for name in saved.names()
            if name.startswith(self._MARGIN)
        }
        self._head.margin.load(memory)
