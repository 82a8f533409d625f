"""Every model class of transformers works with LaS attention or refuses it; nothing else."""

import pytest

from tests.hf.sweep import sweep
from tests.hf.tiny_configs import registered_classes

SAMPLE = {
    "BartForCausalLM": "works",
    "BertForSequenceClassification": "works",
    "CLIPModel": "works",
    "GPT2LMHeadModel": "works",
    "Qwen3ForCausalLM": "works",
    "ViTForImageClassification": "works",
    "BloomForCausalLM": "refuses",
    "DogeForCausalLM": "refuses",  # adds to the mask
    "GptOssForCausalLM": "works",  # sinks and sliding windows
    "Gemma2ForCausalLM": "works",  # capped scores
    "T5Model": "refuses",
    "DeepseekVLHybridModel": "refuses",  # looks its attention up in a table of its own
    "MobileNetV1Model": "no attention",
}
FINE = {"works", "refuses", "no attention", "not tried"}


def test_a_sample_of_classes_is_right_or_refused():
    classes = [(kind, name) for kind, name in registered_classes() if name in SAMPLE]
    assert {name: verdict for _, name, verdict, _ in sweep(classes)} == SAMPLE


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_every_class_is_right_or_refused(part):
    rows = list(sweep(registered_classes()[part::16]))
    assert not [row for row in rows if row[2] not in FINE]
    assert sum(row[2] == "works" for row in rows) > 15
