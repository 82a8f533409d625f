"""Images read row by row: ``image`` (gray CIFAR-10), ``smnist`` and ``pmnist``."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from longlens.tasks.arrays import Bytes
from longlens.tasks.build import Draft
from longlens.tasks.errors import DataError, check_least
from longlens.tasks.fetch import Remote
from longlens.tasks.npy import read_npy
from longlens.tasks.order import permutation
from longlens.tasks.png import luma
from longlens.tasks.spec import Spec

BLOCK = 10_000
CIFAR_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR = Remote(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MNIST = {
    "train-images-idx3-ubyte": (
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels-idx1-ubyte": (
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-images-idx3-ubyte": (
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels-idx1-ubyte": (
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}
MNIST = tuple(
    Remote(f"{_MNIST_URL}{name}.gz", f"{name}.gz", size, sha)
    for name, (size, sha) in _MNIST.items()
)


@dataclass(frozen=True)
class ImageOptions:
    """Options of the image tasks.

    Args:
        validation: the last training images, held out.
        subset: accept fewer images than were published (not comparable).
    """

    validation: int = 5_000
    subset: bool = False

    def __post_init__(self) -> None:
        check_least(self, validation=1)


@dataclass(frozen=True)
class CifarOptions(ImageOptions):
    """Options of ``image``.

    Args:
        color: keep the colours as well, in ``batch.extras["color"]`` (B, 1024, 3) bytes, for
            augmentation before the conversion to gray. The inputs are the same gray pixels.
    """

    color: bool = False


@dataclass(frozen=True)
class PermutedOptions(ImageOptions):
    """Options of ``pmnist``.

    Args:
        permutation_seed: of the pixels' order, which is stored with the data.
    """

    permutation_seed: int = 0


def _write(
    draft: Draft,
    train: tuple[Bytes, Bytes],
    test: tuple[Bytes, Bytes],
    published: tuple[int, int],
) -> dict[str, int]:
    """Hold out validation, write the splits, return their sizes.

    Images are (N, …) gray, or (N, 1024, 3) colours, of which gray ones are made.
    """
    options: ImageOptions = draft.options
    for (images, labels), expected in zip((train, test), published, strict=True):
        if len(images) != len(labels):
            raise DataError(f"{draft.name}: {len(images)} images but {len(labels)} labels")
        if len(images) != expected and not options.subset:
            raise DataError(
                f"{draft.name}: {len(images)} images where the published set has {expected}; "
                "pass subset=True (--set subset=true) to use them all the same"
            )
        if len(labels) and labels.max() > 9:
            raise DataError(f"{draft.name}: a label is {labels.max()}, allowed are 0 … 9")
    cut = len(train[0]) - options.validation
    if cut < 1 or not len(test[0]):
        raise DataError(f"{draft.name}: validation={options.validation} leaves no training image")
    parts = {
        "train": (train[0][:cut], train[1][:cut]),
        "validation": (train[0][cut:], train[1][cut:]),
        "test": test,
    }
    for split, (images, labels) in parts.items():
        for block, start in enumerate(range(0, len(images), BLOCK)):
            rows = slice(start, start + BLOCK)
            part = images[rows]
            gray = luma(part) if part.shape[-1] == 3 else part.reshape(len(part), -1)
            arrays = {"inputs": gray, "targets": labels[rows]}
            if isinstance(options, CifarOptions) and options.color:
                arrays["color"] = part
            draft.writer.write_block(split, block, arrays)
    return {split: len(labels) for split, (_, labels) in parts.items()}


def spec(options: ImageOptions) -> Spec:
    """The shape of the three tasks, which their options tell apart."""
    cifar = isinstance(options, CifarOptions)
    side = 32 if cifar else 28
    return Spec(
        kind="classification",
        inputs="tokens",
        max_length=side * side,
        vocab_size=256,
        num_classes=10,
        image=None if isinstance(options, PermutedOptions) else (side, side),
        encoding="pixels",
        class_names=CIFAR_CLASSES if cifar else tuple("0123456789"),
        extras=("color",) if isinstance(options, CifarOptions) and options.color else (),
    )


def _cifar_batch(data: bytes, name: str) -> tuple[Bytes, Bytes]:
    """Read one official batch: a label byte, then 3 × 1,024 colour bytes, for each image."""
    if not data or len(data) % 3073:
        raise DataError(f"{name} has {len(data)} bytes, not a multiple of 3,073: it is truncated")
    rows = np.frombuffer(data, np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1), rows[:, 0].copy()


def build_image(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """CIFAR-10 in gray from the official binary batches, or from ``images.npy``, ``labels.npy``."""
    options: CifarOptions = draft.options
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)]
    contents = draft.need_source().collect(*batches, "test_batch.bin", "images.npy", "labels.npy")
    if all(name in contents for name in (*batches, "test_batch.bin")):
        parts = [_cifar_batch(contents[name], name) for name in batches]
        images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
        test = _cifar_batch(contents["test_batch.bin"], "test_batch.bin")
    elif "images.npy" in contents and "labels.npy" in contents:
        array = read_npy(contents["images.npy"], "images.npy")
        if array.dtype != np.uint8 or array.shape[1:] not in ((32, 32), (32, 32, 3)):
            raise DataError(
                "images.npy must be uint8, (N, 32, 32) in gray or (N, 32, 32, 3) in colour, got "
                f"{array.dtype} {array.shape}"
            )
        if options.color and array.ndim == 3:
            raise DataError(
                f"image: color=True, but images.npy {array.shape} is gray; give the official "
                "archive, its batches, or images.npy (N, 32, 32, 3)"
            )
        pixels = array.reshape(-1, 1024, *array.shape[3:])
        numbers = read_npy(contents["labels.npy"], "labels.npy")
        if numbers.dtype.kind not in "ui" or numbers.shape != array.shape[:1]:
            raise DataError(
                f"labels.npy must be integers ({len(array)},), got {numbers.dtype} {numbers.shape}"
            )
        if numbers.size and (numbers.min() < 0 or numbers.max() > 9):  # before they become bytes
            raise DataError(f"labels.npy must be in 0 … 9, got {numbers.min()} … {numbers.max()}")
        classes = numbers.astype(np.uint8)
        cut = len(pixels) * 5 // 6  # 50,000 training images, then 10,000 test images
        images, labels, test = pixels[:cut], classes[:cut], (pixels[cut:], classes[cut:])
    else:
        raise DataError(
            f"{draft.need_source().path} holds neither data_batch_1.bin … test_batch.bin "
            "(cifar-10-binary) nor images.npy with labels.npy"
        )
    sizes = _write(draft, (images, labels), test, (50_000, 10_000))
    return spec(options), sizes


def read_idx(data: bytes, name: str) -> Bytes:
    """Read an MNIST ``idx`` file of bytes: images (N, 28, 28) or labels (N,)."""
    if len(data) < 8:
        raise DataError(f"{name} is truncated")
    zero, kind, dimensions = struct.unpack(">HBB", data[:4])
    images = "images" in name
    if zero or kind != 8 or dimensions != (3 if images else 1) or len(data) < 4 + 4 * dimensions:
        raise DataError(f"{name} is not an idx file of bytes with {3 if images else 1} dimensions")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    body = data[4 + 4 * dimensions :]
    if len(body) != math.prod(shape) or (images and shape[1:] != (28, 28)):
        raise DataError(f"{name} is not a whole idx file of bytes (header says {shape})")
    return np.frombuffer(body, np.uint8).reshape(shape)


def build_mnist(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """MNIST pixel by pixel; ``pmnist`` in a fixed random order of the pixels."""
    contents = draft.need_source().collect(*_MNIST)
    if missing := sorted(set(_MNIST) - set(contents)):
        raise DataError(f"{draft.need_source().path} holds no {missing[0]} (or .gz)")
    arrays = {name: read_idx(data, name) for name, data in contents.items()}
    train = arrays["train-images-idx3-ubyte"].reshape(-1, 784)
    test = arrays["t10k-images-idx3-ubyte"].reshape(-1, 784)
    if isinstance(draft.options, PermutedOptions):
        order = permutation(784, draft.options.permutation_seed)
        train, test = train[:, order], test[:, order]
        draft.writer.write_block("permutation", 0, {"order": order.astype(np.int32)})
    sizes = _write(
        draft,
        (train, arrays["train-labels-idx1-ubyte"]),
        (test, arrays["t10k-labels-idx1-ubyte"]),
        (60_000, 10_000),
    )
    return spec(draft.options), sizes
