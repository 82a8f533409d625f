"""Heads that are switched off after training, and training on validation as well."""

import pytest
import torch

from longlens import LaSAttention, decay_rates
from longlens.layers.family import DecayAttention
from longlens.models.build import load_model
from longlens.runs import train_run
from longlens.runs.ablate import by_decay, heads_off
from longlens.runs.build import build_on_meta
from longlens.runs.run import run_folder
from longlens.tasks import load
from longlens.tasks.batches import Batches
from longlens.training.options import TrainOptions


def test_a_head_that_is_off_adds_nothing():
    layer = LaSAttention(12, num_heads=3).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    whole, weight = layer(x), layer.out.weight.detach().clone()
    parts = []
    for head in range(3):  # the share of one head: the layer with the two others off
        with heads_off([(layer, other) for other in range(3) if other != head]):
            parts.append(layer(x) - layer.out.bias)
    torch.testing.assert_close(sum(parts) + layer.out.bias, whole)
    with heads_off([(layer, 1)]):
        torch.testing.assert_close(layer(x), whole - parts[1])
    assert torch.equal(layer.out.weight, weight)
    with pytest.raises(KeyError), heads_off([(layer, 2)]):
        raise KeyError
    assert torch.equal(layer.out.weight, weight)  # also after an error


def test_rates_of_the_family_are_known():
    for learned in (False, True):
        layer = DecayAttention(12, num_heads=3, bound=0.04, learned_decay=learned)
        torch.testing.assert_close(layer.rates()[0], decay_rates(3, 0.04))
    assert DecayAttention(12, num_heads=3, decay="alibi").rates() == (None, None)


def test_heads_are_numbered_by_their_decay():
    layer = LaSAttention(12, num_heads=3, learned_alpha=True)
    with torch.no_grad():
        layer.alpha.copy_(torch.tensor([0.03, 0.0, 0.01]))
    assert by_decay(layer) == [1, 2, 0]


def test_a_run_tests_itself_without_each_head(run_options):
    own = dict(depth=2, mixer_options={"num_heads": 2, "bound": 0.3}, dropout=0.0, lr=0.03)
    plain, options = (
        run_options(name="plain", **own),
        run_options(name="ablated", ablate="heads", **own),
    )
    record, without = train_run(options), train_run(plain)
    assert without.ablations is None and record.metrics == without.metrics
    weights = [(run_folder(o) / "model.safetensors").read_bytes() for o in (plain, options)]
    assert weights[0] == weights[1]  # nothing is left of what was switched off
    found = record.ablations
    assert set(found["heads"]) == {"1", "2"} and len(found["blocks"]) == 2
    assert found["rates"] == [[0.0, pytest.approx(0.3)]] * 2
    model = load_model(run_folder(options)).eval()
    test = load("listops", options.root, **options.task_options)["test"]

    def accuracy(head, blocks):
        right = 0
        layers = [model.backbone.mixers()[block] for block in blocks]
        with torch.no_grad(), heads_off([(layer, head) for layer in layers]):
            for batch in Batches(test, 4, length=96, shuffle=False).epoch(0):
                right += int((model(batch.inputs, batch.mask).argmax(-1) == batch.targets).sum())
        return right / len(test)

    for head in (0, 1):
        assert found["heads"][str(head + 1)] == pytest.approx(accuracy(head, (0, 1)))
        for block in (0, 1):
            assert found["blocks"][block][str(head + 1)] == pytest.approx(accuracy(head, (block,)))


def test_heads_are_switched_off_in_as_many_views_as_the_test_has(run_options):
    """With nothing in the heads to begin with, it makes no difference that they are off."""
    transfer = {"same": {}}
    options = run_options(ablate="heads", protocol="augment", views=3, length=None, lr=0.0,
                          ema=0.0, transfer_options=transfer)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longlens.layers.attention.SoftmaxAttention.forward", lambda s, x, m=None: x)
        record = train_run(options)
    assert set(record.ablations["heads"].values()) == {record.metrics["test"]["accuracy"]}
    same = record.transfer["same"]
    assert same["accuracy_by_views"] == record.metrics["test"]["accuracy_by_views"]


def test_what_has_no_heads_is_refused_before_training(run_options):
    options = run_options(mixer="s4d", mixer_options={}, ablate="heads")
    with pytest.raises(ValueError, match=r"ablate=heads needs softmax or LaS attention.*'s4d'"):
        train_run(options)
    with pytest.raises(ValueError, match="ablate=heads needs"):
        build_on_meta(TrainOptions(task="image", mixer="s4", ablate="heads"))
    with pytest.raises(ValueError, match="ablate must be one of none, heads, got 'layers'"):
        run_options(ablate="layers")


def test_training_on_validation_as_well_fits_it_and_says_so(run_options):
    """Twelve examples of validation are the only ones that are both trained on and judged by."""
    own = dict(dropout=0.0, ema=0.0, lr=0.01, steps=60, batch_size=12, evaluate_every=60, dim=32)
    both = train_run(run_options(name="both", train_on="train+validation", **own))
    assert both.data["selected_on"] == "train"
    assert both.data["examples"] == {"train": 72, "validation": 12, "test": 12}
    alone = train_run(run_options(name="alone", **own))
    assert alone.data["selected_on"] == "validation"
    assert both.data["identity"] == alone.data["identity"]  # the data are the same
    assert both.metrics["validation"]["loss"] < alone.metrics["validation"]["loss"] - 0.3
    with pytest.raises(ValueError, match="splits of retrieval cannot be joined"):
        build_on_meta(TrainOptions(task="retrieval", train_on="train+validation"))
