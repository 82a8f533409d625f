"""Small generated tasks of the literature on recall and memory: a sequence, a label at its end.

The papers ask at many positions of a sequence; here an example has one question, the last one, and
is a classification that is read out at its last position, as probes and audits need it.
"""

from longlens.tasks.synthetic import copying, lag, recall, text
from longlens.tasks.synthetic.base import Kind

SYNTHETIC: dict[str, Kind] = recall.KINDS | copying.KINDS | text.KINDS | lag.KINDS
"""Every synthetic task by its name."""

__all__ = ["SYNTHETIC", "Kind"]
