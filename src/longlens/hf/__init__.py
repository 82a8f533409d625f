"""LaS attention in Hugging Face models: `import longlens.hf`, then `attn_implementation="las"`.

`configure` sets its options; `docs/huggingface.md` tells the rest.
"""

import longlens.hf._requirements  # noqa: F401
from longlens.hf.finetune import parameter_groups, shard_rates
from longlens.hf.models import configure, extend_transformers

__all__ = ["configure", "parameter_groups", "shard_rates"]

extend_transformers()
