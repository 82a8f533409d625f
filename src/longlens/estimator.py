"""A classifier of sequences in scikit-learn's style: fit, predict, score.

Needs scikit-learn: pip install "longlens[sklearn]".
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longlens.config import ModelConfig
from longlens.layers import options_of
from longlens.models.build import build_model

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "longlens.estimator needs scikit-learn: pip install 'longlens[sklearn]'"
    ) from error


class SequenceClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Any mixer of `longlens layers` as a scikit-learn classifier.

    Args:
        mixer: a key of `longlens layers`.
        mixer_options: keyword arguments of the mixer; None: its defaults.
        dim: width of the model.
        depth: number of blocks.
        epochs: passes over the data.
        batch_size: sequences in a step.
        learning_rate: the largest; it falls to 0 along half a cosine.
        weight_decay: of AdamW.
        device: where to train and predict; None: a GPU if there is one.
        random_state: an int for the same result every time, a numpy generator, or None.

    Sequences have one length: X is (cases, length), or (cases, channels, length) as in aeon.

    >>> X = np.sin(np.arange(20) * np.array([0.1, 0.2, 1.0, 1.1])[:, None])
    >>> model = SequenceClassifier(dim=8, depth=1, epochs=30, random_state=0)
    >>> model.fit(X, ["slow", "slow", "fast", "fast"]).score(X, ["slow", "slow", "fast", "fast"])
    1.0

    """

    def __init__(
        self,
        mixer: str = "las",
        *,
        mixer_options: Mapping[str, Any] | None = None,
        dim: int = 32,
        depth: int = 2,
        epochs: int = 30,
        batch_size: int = 32,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.01,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.mixer = mixer
        self.mixer_options = mixer_options
        self.dim = dim
        self.depth = depth
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> SequenceClassifier:
        """Train on sequences X with the labels y (cases,)."""
        for name in ("dim", "depth", "epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name} must be an integer of 1 or more, got {value!r}")
        X, y = validate_data(self, X, y, allow_nd=True, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least 2 classes, got 1 class: {self.classes_[0]!r}")
        seed = int(check_random_state(self.random_state).randint(2**31))
        device = self._device()
        x = _sequences(X)  # (cases, length, channels)
        self.mean_ = x.mean((0, 1))
        self.scale_ = x.std((0, 1)).nan_to_num(1.0).clamp(min=1e-6)
        config = ModelConfig(
            mixer=self.mixer, mixer_options=self.mixer_options or {},
            bidirectional=True if "bidirectional" in options_of(self.mixer) else None,
            dim=self.dim, depth=self.depth, positions="learned", input_dim=x.shape[2],
            max_length=x.shape[1], num_outputs=len(self.classes_),
        )  # fmt: skip
        with torch.random.fork_rng():  # the caller's random numbers stay as they are
            torch.manual_seed(seed)
            self.model_ = build_model(config).to(device).train()
            self._train(
                ((x - self.mean_) / self.scale_).to(device), torch.tensor(labels).to(device)
            )
        self.model_.eval()
        return self

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """The probability of each class of `classes_`: (cases, classes)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, allow_nd=True, dtype=np.float32)
        x, length = _sequences(X), self.model_.config.max_length
        if x.shape[1] != length:
            raise ValueError(f"sequences must be as long as in fit, {length}, got {x.shape[1]}")
        x = ((x - self.mean_) / self.scale_).to(next(self.model_.parameters()).device)
        with torch.no_grad():
            parts = [self.model_(part).double().softmax(-1) for part in x.split(self.batch_size)]
        return torch.cat(parts).cpu().numpy()

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The most probable class of each sequence: (cases,)."""
        probabilities = self.predict_proba(X)
        result: np.ndarray[Any, Any] = self.classes_[probabilities.argmax(1)]
        return result

    def _train(self, x: Tensor, labels: Tensor) -> None:
        steps = self.epochs * -(-len(x) // self.batch_size)
        optimizer = torch.optim.AdamW(
            self.model_.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
        for _ in range(self.epochs):
            for rows in torch.randperm(len(x)).to(x.device).split(self.batch_size):
                optimizer.zero_grad()
                nn.functional.cross_entropy(self.model_(x[rows]), labels[rows]).backward()
                optimizer.step()
                schedule.step()

    def _device(self) -> torch.device:
        free = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(free if self.device is None else self.device)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect."""
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _sequences(X: np.ndarray[Any, Any]) -> Tensor:
    """(cases, length) or (cases, channels, length) to (cases, length, channels)."""
    if X.ndim > 3:
        raise ValueError(f"X must be (cases, length) or (cases, channels, length), got {X.shape}")
    x = torch.from_numpy(np.ascontiguousarray(X))
    return x[:, :, None] if x.ndim == 2 else x.transpose(1, 2)
