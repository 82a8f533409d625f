"""Raise early, and say what to install, where transformers is missing or too old."""

from __future__ import annotations

OLDEST = (5, 4)  # from here on mask functions get the query offset

_NEEDED = f"longlens.hf needs transformers {OLDEST[0]}.{OLDEST[1]} or later"

try:
    import transformers
except ImportError as error:
    raise ImportError(f"{_NEEDED}: pip install 'longlens[hf]'") from error

if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < OLDEST:
    raise ImportError(f"{_NEEDED}, got {transformers.__version__}")
