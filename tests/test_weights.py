"""Weights from outside: what is malformed is refused, whatever it says of itself."""

import json
import struct

import pytest
import torch

from longlens.config import ModelConfig
from longlens.models.build import Model, build_model, load_model
from longlens.weights import load_tensors, save_tensors


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def as_file(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


TWICE = json.dumps({"a": entry("F32", [1], 0, 4)})[:-1] + ', "a": ' + json.dumps(
    entry("I32", [1], 0, 4)
) + "}"  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        # the first seven were read as if they were valid; the empty range even gave memory that
        # nobody had written
        pytest.param(as_file({"a": entry("F32", [4], 0, 0)}, b""), id="empty range"),
        pytest.param(as_file({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 0, 4)}, bytes(4)),
                     id="overlap"),
        pytest.param(as_file({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, bytes(3)),
                     id="hole"),
        pytest.param(as_file({"a": entry("F32", [-1], 0, 8)}, bytes(8)), id="negative size"),
        pytest.param(as_file({"a": entry("F32", [1], -4, 8)}, bytes(8)), id="negative place"),
        pytest.param(as_file(TWICE.encode(), bytes(4)), id="a name twice"),
        pytest.param(as_file({"__metadata__": {"a": 1}, "a": entry("F32", [1], 0, 4)}, bytes(4)),
                     id="metadata that is no text"),
        pytest.param(as_file({"a": entry("F32", [1], 0, 4)}, bytes(5)), id="more at the end"),
        pytest.param(as_file({"a": entry("F32", [1], 0, 4)}, bytes(3)), id="less at the end"),
        pytest.param(as_file({"a": entry("F4", [2], 0, 1)}, bytes(1)), id="type torch lacks"),
        pytest.param(as_file({"a": entry("F32", [2**40, 2**40], 0, 4)}, bytes(4)), id="overflow"),
        pytest.param(as_file(b"[" * 100_000, b""), id="nested"),
        pytest.param(struct.pack("<Q", 2**62) + b"{}", id="long header"),
        pytest.param(b"", id="nothing"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_refused(tmp_path, content):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.safetensors is not a whole safetensors file"):
        load_tensors(path)


def test_a_changed_value_is_found_by_the_checksum(tmp_path):
    path = tmp_path / "a"
    save_tensors(path, {"a": torch.zeros(3)})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        load_tensors(path)


@pytest.fixture
def folder(tmp_path):
    build_model(ModelConfig(dim=8, depth=1, vocab_size=5)).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("load", [load_model, Model.from_pretrained])
def test_weights_that_do_not_fit_are_refused(folder, load):
    tensors = load_tensors(folder / "model.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 2)
    for changed in (
        {**tensors, name: tensors[name][:-1]},  # a shape
        {**tensors, name: tensors[name].view(torch.int32)},  # a type
        {n: t for n, t in tensors.items() if n != name},
        {**tensors, "foreign": torch.zeros(1)},
    ):
        save_tensors(folder / "model.safetensors", changed)
        with pytest.raises(ValueError, match="does not fit the model"):
            load(folder)


@pytest.mark.parametrize(
    "config",
    [
        "[]",
        '{"dim": "8"}',
        '{"dim": 8, "dim": 16}',
        '{"dim": true}',
        '{"width": 8}',
        '{"dim": 1000000000}',
        '{"depth": 1000000000}',
        '{"mixer_options": {"num_heads": "x"}}',
        '{"dim": NaN}',
        "[" * 100_000,
        "\xff",
    ],
)
def test_a_damaged_config_is_one_error(folder, config):
    (folder / "config.json").write_text(config, encoding="latin-1")
    with pytest.raises(ValueError, match=r"config\.json|does not fit the model"):
        load_model(folder)


def test_shared_tensors_may_be_stored_once(tmp_path):
    config = ModelConfig(dim=8, depth=1, vocab_size=5, head="language", tie_embeddings=True)
    model = build_model(config)
    model.save_pretrained(tmp_path)
    tensors = load_tensors(tmp_path / "model.safetensors")
    save_tensors(
        tmp_path / "model.safetensors",
        {n: t for n, t in tensors.items() if n != "head.project.weight"},
    )
    assert "head.project.weight" in tensors
    again = load_model(tmp_path)
    x = torch.tensor([[1, 2, 3]])
    assert torch.equal(again.eval()(x), model.eval()(x))
