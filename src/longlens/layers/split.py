"""Layers that take a sequence split across processes: each rank calls them with its part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from longlens.ops.las.exchange import Pieces, agree, check_group

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class _Shared:
    """Holds a process group, which cannot be copied: copies of a layer share it."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def __deepcopy__(self, _memo: object) -> Self:
        return self


class SplitSequence:
    """Adds a `sequence_group` to a layer, and the positions that this rank holds."""

    sequence_exchange: str

    @property
    def sequence_group(self) -> ProcessGroup | DeviceMesh | None:
        """The ranks that share each sequence; None: the input is the whole sequence."""
        held: _Shared = self._sequence_group
        group: ProcessGroup | DeviceMesh | None = held.group
        return group

    @sequence_group.setter
    def sequence_group(self, group: ProcessGroup | DeviceMesh | None) -> None:
        self._sequence_group = _Shared(group)

    def _layout(self, x: Tensor, mask: Tensor | None) -> Pieces:
        """Who holds which positions; every rank raises where their inputs do not go together."""
        assert self.sequence_group is not None
        return agree(
            check_group(self.sequence_group),
            x.shape[1],
            x.device,
            batch_size=x.shape[0],
            dtype=x.dtype,
            mask_or_none="None" if mask is None else "a tensor",
            sequence_exchange=self.sequence_exchange,
        )
