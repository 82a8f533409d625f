"""The programs and notebooks of examples/ run; those that learn something are shown to."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def main_of(name):
    """The ``main`` of a program, which takes its command line as a list."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def run_notebook(name, changes=()):
    """Run the cells of a notebook one after the other, after replacing some of their text."""
    cells = json.loads((EXAMPLES / name).read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    scope = {}
    for old, new in changes:
        assert any(old in cell for cell in code)
        code = [cell.replace(old, new) for cell in code]
    for cell in code:
        exec(cell, scope)
    return scope


def test_every_example_is_in_the_readme():
    kept = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text())) == kept


@pytest.mark.parametrize("name", ["split_sequence", "context_parallel"])
def test_programs_for_several_processes_say_how_to_start_them(name, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("sys.argv", [name])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)  # else it asks for GPUs first
    with pytest.raises(SystemExit, match=f"torchrun --nproc-per-node 2 examples/{name}.py"):
        main_of(name)()


@pytest.mark.parametrize("name", ["training_loop", "time_series"])
def test_programs_start(name):
    main_of(name)(["--steps", "2"])


@pytest.mark.parametrize("mixer", ["las", "s4", "conv", "luna", "linformer"])
def test_a_forecast_sees_nothing_of_what_it_predicts(mixer):
    forecaster = main_of("time_series").__globals__["Forecaster"]
    if mixer == "linformer":
        with pytest.raises(ValueError, match="sees the values that it is to predict"):
            forecaster(mixer)
        return
    model, x = forecaster(mixer), torch.randn(2, 30, 1)
    changed = torch.cat([x[:, :20], torch.randn(2, 10, 1)], dim=1)
    torch.testing.assert_close(model(changed)[:, :20], model(x)[:, :20])


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
@pytest.mark.parametrize(
    ("name", "library"),
    [("torch_encoder", "torch"), ("timm_vit", "timm"), ("x_transformers_lm", "x_transformers")],
)
def test_models_of_other_libraries_keep_their_weights(name, library, capsys):
    pytest.importorskip(library)
    main_of(name)()
    assert "off by" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
def test_a_loop_under_accelerate_learns():
    pytest.importorskip("accelerate")
    assert main_of("accelerate_loop")([]) > 0.85


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
def test_a_model_under_lightning_learns():
    pytest.importorskip("pytorch_lightning")
    assert main_of("lightning_loop")([]) > 0.85


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
def test_a_model_under_lightning_starts():
    pytest.importorskip("pytorch_lightning")
    main_of("lightning_loop")(["--epochs", "0"])


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
def test_a_data_set_becomes_a_task_and_a_task_a_data_set():
    pytest.importorskip("datasets")
    made = main_of("hub_dataset")([])
    assert made["train"].features["label"].names == ["different", "same"]
    first = made["test"][0]
    text = bytes(token - 1 for token in first["inputs"]).decode().split()
    assert first["label"] == (text[0] == text[1])


@pytest.mark.slow
def test_a_switched_model_is_tuned_back():
    pytest.importorskip("transformers")
    losses = main_of("finetune_huggingface")([])
    assert losses["switched to LaS"] > losses["plain attention"]
    assert losses["after fine-tuning"] < losses["switched to LaS"]


@pytest.mark.slow
def test_smoothing_finds_the_neighbour_and_plain_attention_does_not():
    main = main_of("training_loop")
    assert main([]) > 0.6
    assert main(["--window", "1", "--bound", "0"]) < 0.4


@pytest.mark.slow
def test_the_forecast_is_better_than_the_value_before():
    errors = main_of("time_series")([])
    assert errors["las"] < errors["the value before"]


def test_the_tour_runs():
    assert run_notebook("tour.ipynb")["rows"].keys() == {"softmax", "L", "S", "LaS"}


def test_the_notebook_on_long_range_runs():
    points = run_notebook("long_range.ipynb", [("STEPS = 200", "STEPS = 2"), ("3000", "200")])
    assert [len(found) for found in points["points"].values()] == [3, 3]


@pytest.mark.slow
def test_the_far_task_needs_a_wide_field_and_the_near_one_does_not():
    points = {
        task: dict(found) for task, found in run_notebook("long_range.ipynb")["points"].items()
    }
    assert points["near"][5] > 0.9
    assert points["far"][5] < 0.7
    assert points["far"][127] > points["far"][5] + 0.2
