"""Building by key: errors that help, a user's own layer, and what an import costs."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from longlens.config import ModelConfig
from longlens.layers import MIXERS, build, options_of
from longlens.models.build import build_model

REQUIRED = [
    *("softmax", "rope", "alibi", "local", "las", "las-chunk", "l", "s", "softmax-chunk"),
    *("alibi-chunk", "s-alibi-chunk", "reformer", "linformer", "bigbird", "performer", "luna"),
    *("linear", "ss", "s4", "s4-v1", "dss", "s4d", "s5", "lru", "dlr", "gss", "h3"),
    *("sgconv", "longconv", "hyena", "ckconv", "tnn", "conv", "gmlp"),
    *("mega", "mega-chunk", "lstm", "gru"),
]


def test_every_key_is_there():
    assert type(MIXERS) is dict
    assert not [key for key in REQUIRED if key not in MIXERS]


def test_an_unknown_key_gets_its_near_matches():
    with pytest.raises(ValueError, match=r"unknown mixer 'hiena'; did you mean 'hyena'"):
        build("hiena", 8)


@pytest.mark.parametrize("key", list(MIXERS))
def test_an_unknown_option_gets_its_near_matches(key):
    known = next(iter(options_of(key)))
    wrong = known + "x"
    with pytest.raises(ValueError, match=f"unknown option of '{key}' '{wrong}'.*'{known}'"):
        build(key, 16, **{wrong: 1})


@pytest.mark.parametrize(
    ("key", "options", "message"),
    [
        ("linear", {"num_heads": 3}, "num_heads must divide dim = 16, got 3"),
        ("s4d", {"state": 7}, "state must be even, got 7"),
        ("s4d", {"init": "leg"}, "init must be one of 'legs', 'inv', 'lin', got 'leg'"),
        ("s4d", {"dt_min": 1.0}, "need 0 < dt_min <= dt_max, got dt_min=1.0"),
        ("s4", {"state": 5}, "state must be even and at least 2, got 5"),
        ("lru", {"r_max": 1.5}, "need 0 <= r_min < r_max < 1"),
        ("conv", {"kernel_size": 0}, "kernel_size must be at least 1, got 0"),
        ("sgconv", {"decay": 2.0}, r"decay must be in \(0, 1\], got 2.0"),
        ("tnn", {"decay": 0.0}, r"decay must be in \(0, 1\], got 0.0"),
        ("reformer", {"num_buckets": 3}, "num_buckets must be 1 or even, got 3"),
        ("bigbird", {"window_blocks": 2}, "window_blocks must be odd, got 2"),
        ("mega", {"attention": "relu"}, "attention must be one of 'softmax', 'laplace'"),
        ("mega", {"relative_bias": "t5"}, "relative_bias must be one of 'rotary', 'simple'"),
        ("mega", {"query_dim": 5}, "query_dim must be even and at least 2, got 5"),
        ("alibi", {"window": 4, "bidirectional": True}, "window must be odd"),
        ("dss", {"output": "glue"}, "output must be one of 'glu', 'linear', 'none', got 'glue'"),
        ("h3", {"head_dim": 3}, "head_dim must divide dim = 16, got 3"),
        ("gmlp", {"toeplitz": True, "groups": 5}, "groups must divide"),
        ("longconv", {"threshold": -1.0}, "threshold must not be negative, got -1.0"),
    ],
)
def test_bad_values_are_named(key, options, message):
    with pytest.raises(ValueError, match=message):
        build(key, 16, **options)


# DSS uses the length only to normalise its softmax variant, MEGA only for its simple relative bias:
# neither has a limit by default.
UNLIMITED = ("dss", "mega", "mega-chunk")


@pytest.mark.parametrize(
    "key", [k for k in MIXERS if "max_length" in options_of(k) and k not in UNLIMITED]
)
def test_too_long_a_sequence_is_refused(key):
    mixer = build(key, 16, max_length=8)
    with pytest.raises(ValueError, match=r"9 positions .* max_length=8"):
        mixer(torch.zeros(1, 9, 16))


def test_options_of_a_key_include_what_it_changes():
    assert options_of("s4")["bidirectional"] is True
    assert options_of("s4-v1")["bidirectional"] is False
    assert options_of("las")["bidirectional"] is False and "causal" not in options_of("las")
    assert build("las", 16, bidirectional=True).causal is False
    assert build("s4", 16, bidirectional=False).causal is True


class Shift(nn.Module):
    """A user's layer: plain PyTorch, nothing inherited from longlens."""

    causal, receptive_field, cost = True, 1, "L"

    def __init__(self, dim, gain=1.0):
        super().__init__()
        self.project = nn.Linear(dim, dim)
        self.gain = gain

    def forward(self, x, mask=None):
        if mask is not None:
            x = x * mask[..., None]
        return self.gain * self.project(torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])


def test_a_users_layer_joins_in_three_lines(monkeypatch):
    monkeypatch.setitem(MIXERS, "shift", Shift)
    model = build_model(ModelConfig(mixer="shift", mixer_options={"gain": 2.0}, vocab_size=5))
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 2)
    assert options_of("shift") == {"gain": 1.0}
    with pytest.raises(ValueError, match="unknown option of 'shift' 'gian'; did you mean 'gain'"):
        build("shift", 8, gian=1.0)

    from longlens.models.aspects import describe

    row = describe("shift")
    assert (row.direction, row.decaying, row.non_recurrent) == ("causal", True, True)


def run(code):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )


def test_the_registry_imports_without_torch():
    done = run("""
        import sys
        import longlens.layers
        assert "s4" in longlens.layers.MIXERS
        assert "torch" not in sys.modules, "importing the registry must stay quick"
    """)
    assert done.returncode == 0, done.stderr


def test_every_mixer_builds_with_torch_and_numpy_alone():
    done = run("""
        import sys

        import torch  # torch itself may look for triton

        for name in ("huggingface_hub", "safetensors", "rich", "triton"):
            sys.modules[name] = None  # as if it were not installed
        from longlens.layers import MIXERS, build
        for key in MIXERS:
            build(key, 16)(torch.randn(1, 8, 16))
    """)
    assert done.returncode == 0, done.stderr
