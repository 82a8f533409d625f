"""Programs of others that know nothing of LaS attention: lm-evaluation-harness and TRL."""

import json
import math
import runpy
import subprocess
import sys

import pytest
import torch
import transformers
import yaml

import longlens.hf
from tests.hf.tiny import layers_of, make

TEXT = "the cat sat on a mat and saw how it was then it ran off"
WORDS = TEXT.split()


def saved(folder):
    """A tiny model and a tokenizer that knows a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<end>", *dict.fromkeys(WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>", unk_token="<end>"
    ).save_pretrained(folder)
    model = make("llama", dtype=torch.float32, bound=0.3, window=3)
    model.save_pretrained(folder)
    return model


def test_another_program_runs_with_las_attention(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["longlens.hf"])
    with pytest.raises(SystemExit, match=r"usage: python -m longlens\.hf MODULE"):
        runpy.run_module("longlens.hf", run_name="__main__")
    monkeypatch.setattr(sys, "argv", ["longlens.hf", "calendar", "2026", "11"])
    runpy.run_module("longlens.hf", run_name="__main__")
    assert "November 2026" in capsys.readouterr().out


@pytest.mark.slow
@torch.no_grad()
def test_the_perplexity_of_lm_eval_is_that_of_the_model(tmp_path):
    pytest.importorskip("lm_eval")
    model = saved(tmp_path / "model")
    texts = [TEXT, " ".join(WORDS[::-1])]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(dict(text=t)) + "\n" for t in texts))
    task = dict(
        task="tiny", dataset_path="json", output_type="loglikelihood_rolling", test_split="test",
        dataset_kwargs=dict(data_files=dict(test=str(tmp_path / "texts.jsonl"))),
        doc_to_text="", doc_to_target="{{text}}", metric_list=[dict(metric="word_perplexity")],
    )  # fmt: skip
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(task))
    command = [
        sys.executable, "-m", "longlens.hf", "lm_eval", "run", "--model", "hf",
        "--model_args", f"pretrained={tmp_path / 'model'}", "--tasks", "tiny", "--device", "cpu",
        "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    (results,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(results.read_text())["results"]["tiny"]["word_perplexity,none"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    total = 0.0
    for text in texts:
        ids = torch.tensor([tokenizer.eos_token_id, *tokenizer(text)["input_ids"]])
        scores = model(ids[None, :-1]).logits[0].log_softmax(-1)
        total += scores.gather(1, ids[1:, None]).sum().item()
    words = sum(len(text.split()) for text in texts)
    assert found == pytest.approx(math.exp(-total / words), rel=1e-4)


@pytest.mark.slow
def test_trl_fine_tunes_a_packed_model(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    saved(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    longlens.hf.configure(model, learned_alpha=True, bound=0.02)
    before = [state.alpha.detach().clone() for state in layers_of(model)]
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=2, report_to=[],
        padding_free=True, max_length=None, use_cpu=True, bf16=False, learning_rate=1e-3,
    )  # fmt: skip
    data = datasets.Dataset.from_list([dict(text=" ".join(WORDS[i:])) for i in range(6)])
    trainer = trl.SFTTrainer(
        model=model, args=arguments,
        train_dataset=data,
        processing_class=transformers.AutoTokenizer.from_pretrained(tmp_path / "model"),
    )  # fmt: skip
    trainer.train()
    for state, alpha in zip(layers_of(trainer.model), before, strict=True):
        assert not torch.equal(state.alpha.detach().cpu(), alpha)
