"""Models in folders and on the Hub: config.json and model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from longlens.config import ModelConfig
from longlens.untrusted import parse_json
from longlens.weights import load_tensors, save_tensors

CONFIG, WEIGHTS = "config.json", "model.safetensors"

try:
    import huggingface_hub
except ImportError:
    huggingface_hub = None  # type: ignore[assignment]


def config_json(config: Any) -> str:
    """A model's config as the text of ``config.json``."""
    values = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
    return json.dumps(values, indent=2, sort_keys=True, default=dict) + "\n"


def read_config(folder: Path) -> ModelConfig:
    """Read a model's config from the ``config.json`` of a folder.

    Raises:
        ValueError: it is damaged, or of another version.
    """
    path = folder / CONFIG
    try:
        return ModelConfig.from_json(parse_json(path.read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path} is no config of a model ({error})") from None


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a safetensors file; tensors that the model shares may be in it once.

    Raises:
        ValueError: names are missing from the file, or foreign to the model, or a tensor has
            another shape or kind of number.
    """
    tensors = load_tensors(path)
    check_fit(model, tensors, path)
    model.load_state_dict(tensors, strict=False)


def check_fit(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise unless ``tensors``, read from ``path``, are the model's (which may be on meta)."""
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)  # shared ones are one object
    there = {id(value) for name, value in state.items() if name in tensors}
    missing = [n for n, value in state.items() if n not in tensors and id(value) not in there]
    foreign = [name for name in tensors if name not in state]
    if missing or foreign:
        raise ValueError(f"{path} does not fit the model: missing {missing}, foreign {foreign}")
    for name, tensor in tensors.items():
        like = state[name]
        kind = tensor.is_floating_point() and like.is_floating_point()
        if tensor.shape != like.shape or not (kind or tensor.dtype == like.dtype):
            raise ValueError(
                f"{path} does not fit the model: {name} is {tensor.dtype} {list(tensor.shape)}, "
                f"the model's is {like.dtype} {list(like.shape)}"
            )


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
        model = cls(read_config(folder))
        load_weights(model, folder / WEIGHTS)
        return model


if TYPE_CHECKING or huggingface_hub is None:
    Pretrained = _Local
else:

    class Pretrained(
        nn.Module,
        huggingface_hub.PyTorchModelHubMixin,
        library_name="longlens",
        tags=["longlens", "long-range"],
    ):
        """Saving and loading, with the Hub; weights are written and checked as everywhere here."""

        def _save_pretrained(self, save_directory: Path) -> None:
            save_tensors(save_directory / WEIGHTS, self.state_dict(), {"format": "pt"})

        @classmethod
        def _load_as_safetensor(cls, model, model_file, map_location, strict):
            load_weights(model, Path(model_file))
            return model.to(map_location).eval()
