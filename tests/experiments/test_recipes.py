"""Published recipes, value by value against the tables in their docstrings."""

import pytest

from longlens.experiments.catalog.recipes import LOCALITY_HEADS, locality, mega, s4
from longlens.experiments.catalog.tasks import LRA
from longlens.layers.base import optim_hints
from longlens.runs.build import build_on_meta
from longlens.training.options import TrainOptions

# What a column of a table is called in the options of a run.
NAMES = {
    "layers": "depth", "width": "dim", "prenorm": "prenorm", "norm": "norm", "dropout": "dropout",
    "wd": "weight_decay", "lr": "lr", "batch": "batch_size", "epochs": "epochs", "updates": "steps",
    "warm-up": "warmup", "schedule": "schedule", "beta2": "beta2", "clip": "clip",
    "read-out": "pooling", "length": "length", "adds": "protocol",
}  # fmt: skip
WORDS = {"yes": True, "no": False}


def read_tables(doc):
    """The tables of a docstring: row -> column -> text ("": an empty cell)."""
    tables, lines = [], None
    for line in [*doc.splitlines(), ""]:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.strip().startswith("|"):
            if lines:
                (_, *columns), _, *body = lines
                tables.append({row: dict(zip(columns, texts, strict=True)) for row, *texts in body})
            lines = None
        else:
            lines = [*(lines or []), cells]
    return tables


def published(recipe):
    """All tables of a recipe's docstring as one."""
    tables = read_tables(recipe.__doc__)
    assert tables and "github.com/" in recipe.__doc__  # it says where the values stand
    return {
        task: {name: text for table in tables for name, text in table[task].items()}
        for task in tables[0]
    }


def value(text):
    if text in WORDS:
        return WORDS[text]
    try:
        return float(text)
    except ValueError:
        return text or None


def check(recipe, cell_of, measured):
    """Compare every cell of the tables with the run's options, or with its built model."""
    compared = 0
    for task, line in published(recipe).items():
        cell = cell_of(task)
        options = TrainOptions(**cell)
        model = build_on_meta(options)
        own = measured(options, model)
        for column, text in line.items():
            found = own[column] if column in own else getattr(options, NAMES[column])
            assert found == value(text), f"{task}, {column}: {found} here, {text!r} published"
            compared += 1
    return compared


def measured_s4(options, model):
    kernel = model.backbone.mixers()[0].kernel
    hints = {name.split(".")[-1]: wish for name, wish in optim_hints(model).items()}
    assert all(wish["weight_decay"] == 0.0 for wish in hints.values())
    rates = {hints[name]["lr"] for name in ("log_decay", "frequency", "p", "b")}
    assert len(rates) == 1 and "truncated_c" not in hints
    assert model.backbone.mixers()[0].causal is False and model.backbone.blocks[0].feed is None
    assert options.decay_vectors and options.beta1 == 0.9 and options.final_lr == 0.0
    assert options.tied_dropout == (options.dropout > 0)
    return {
        "state": 2 * kernel.log_decay.shape[1],
        "SSMs": kernel.log_decay.shape[0],
        "dt min": options.mixer_options.get("dt_min", 1e-3),
        "lr dt": hints["log_dt"].get("lr"),
        "lr A": rates.pop(),
    }


def test_s4_is_the_published_recipe():
    assert check(s4, s4, measured_s4) == 6 * (11 + 9)


@pytest.mark.parametrize("mixer", ["mega", "mega-chunk"])
def test_mega_is_the_published_recipe(mixer):
    def measured(options, model):
        layer = model.backbone.mixers()[0]
        assert layer.simple and layer.causal is False and layer.ema.alpha.shape[-1] == 16
        assert not optim_hints(model)
        assert options.decay_vectors and options.beta1 == 0.9 and options.final_lr == 0.0
        assert options.feedforward == "silu" and options.positions == "none"
        long = options.task == "pathx"
        assert layer.chunk == ((4096 if long else 128) if mixer == "mega-chunk" else None)
        feed = model.backbone.blocks[0].feed.inner
        return {
            "v": layer.split[1], "z": layer.split[0], "attention": layer.attention,
            "feed-forward": feed.inner.out_features,
        }  # fmt: skip

    assert check(mega, lambda task: mega(task, mixer), measured) == 6 * (10 + 9)


def test_the_locality_study_is_the_published_recipe():
    def cell(task):
        heads = {"num_heads": LOCALITY_HEADS[task]}
        return locality(task, "softmax", technique=True, positions="rotary", mixer_options=heads)

    def measured(options, model):
        layer = model.backbone.mixers()[0]
        assert options.expansion == 2.0 and (options.beta1, options.beta2) == (0.9, 0.98)
        assert options.schedule == "cosine" and layer.causal is False
        assert options.mix_easier == (options.task == "pathfinder")
        return {"heads": layer.num_heads}

    assert check(locality, cell, measured) == 5 * 11


def test_every_column_has_a_recipe():
    for column in LRA:
        assert s4(column)["mixer"] == "s4" and mega(column)["mixer"] == "mega"
        for cell in (s4(column), s4(column, "sgconv", bidirectional=True), mega(column)):
            build_on_meta(TrainOptions(**cell))


def test_a_value_that_differs_is_named():
    """The comparison itself: a recipe with one changed value does not pass."""

    def changed(task):
        return s4(task, weight_decay=0.01 if task == "Image" else 0.05)

    with pytest.raises(AssertionError, match=r"Image, wd: 0\.01 here, '0\.05' published"):
        check(s4, changed, measured_s4)
