"""Models in folders and on the Hub: config.json and model.safetensors."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from longlens.weights import load_tensors, save_tensors

CONFIG, WEIGHTS = "config.json", "model.safetensors"

try:
    import huggingface_hub
    import safetensors
except ImportError:
    huggingface_hub = None  # type: ignore[assignment]
    safetensors = None  # type: ignore[assignment]


def config_json(config: Any) -> str:
    """A model's config as the text of ``config.json``."""
    values = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
    return json.dumps(values, indent=2, sort_keys=True, default=dict) + "\n"


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a safetensors file; tensors that the model shares may be in it once.

    Raises:
        ValueError: names are missing from the file, or foreign to the model.
    """
    tensors = load_tensors(path)
    own = model.state_dict()
    there = {own[name].data_ptr() for name in tensors if name in own}
    missing = [name for name, tensor in own.items()
               if name not in tensors and tensor.data_ptr() not in there]  # fmt: skip
    foreign = [name for name in tensors if name not in own]
    if missing or foreign:
        raise ValueError(f"{path} does not fit the model: missing {missing}, foreign {foreign}")
    model.load_state_dict(tensors, strict=False)


class _Local(nn.Module):
    """Saving to and loading from folders, where the Hub's package is not installed."""

    config: Any

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write config.json and model.safetensors into a folder."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(config_json(self.config))
        save_tensors(folder / WEIGHTS, self.state_dict(), {"format": "pt"})

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path) -> Any:
        """Read a model from a folder."""
        folder = Path(pretrained_model_name_or_path)
        if not (folder / CONFIG).exists():
            raise ValueError(
                f"{folder} has no {CONFIG}; models of the Hub need: pip install huggingface_hub"
            )
        model = cls(json.loads((folder / CONFIG).read_text()))
        load_weights(model, folder / WEIGHTS)
        return model


if TYPE_CHECKING or huggingface_hub is None or safetensors is None:
    Pretrained = _Local
else:

    class Pretrained(
        nn.Module,
        huggingface_hub.PyTorchModelHubMixin,
        library_name="longlens",
        tags=["longlens", "long-range"],
    ):
        """Saving and loading, with the Hub."""
