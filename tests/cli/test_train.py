"""`longlens train` as a user meets it."""

import json

import pytest

from longlens.cli.main import main
from longlens.cli.train import parse
from longlens.runs.record import read_record
from tests.alone import run_alone
from tests.training.runs import tiny


def words(options, *names):
    """A run's options as words of a command line."""
    values = options.to_json()
    changed = names or [
        "task", "task_options", "length", "multiple", "mixer", "mixer_options", "dim", "depth",
        "steps", "batch_size", "log_every", "evaluate_every", "device", "runs", "root",
    ]  # fmt: skip
    found = []
    for name in changed:
        value = values[name]
        nested = value if isinstance(value, dict) else {}
        for key, inner in nested.items():
            found += ["--set", f"{name}.{key}={json.dumps(inner)}"]
        if not isinstance(value, dict):
            found += [f"--{name}", str(value)]
    return found


def test_train_prints_the_result_and_the_folder(run_options, capsys):
    options = run_options(steps=6)
    assert main(["train", *words(options)]) == 0
    captured = capsys.readouterr()
    assert "test        accuracy 0." in captured.out and "selected step" in captured.out
    assert "step 6/6  validation  loss" in captured.err  # plain lines where there is no terminal
    folder = captured.out.strip().splitlines()[-1]
    assert read_record(folder).status == "finished"


def test_a_result_that_is_not_finite_is_shown_as_missing(run_options, capsys):
    options = run_options(task="cumsum", length=None, mixer_options={}, lr=1e20, clip=0.0,
                          task_options={"length": 16, "train": 64, "validation": 16, "test": 16},
                          nonfinite="skip", steps=10)  # fmt: skip
    given = words(options, "task", "task_options", "dim", "depth", "steps", "batch_size", "device",
                  "lr", "clip", "nonfinite", "runs", "root")  # fmt: skip
    assert main(["train", *given]) == 0
    assert "test        r2 —   loss —" in capsys.readouterr().out


def test_config_files_and_overrides(run_options, tmp_path, capsys):
    options = run_options(steps=2, progress=False)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(options.to_json()))
    assert main(["train", "--config", str(path), "--seed", "3", "--name", "x"]) == 0
    record = read_record(tmp_path / "runs" / "x")
    assert record.seed == 3 and record.options["dim"] == options.dim


def test_help_explains_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "Rows a rank computes at once; auto: the most that fit in memory" in out
    assert "torchrun --nproc_per_node 4" in out
    assert parse(["--batch-size", "3", "--micro-batch=auto"]).micro_batch == "auto"


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        (["--mixr", "las"], 2, "there is no option --mixr; did you mean --mixer?"),
        (["--schedule", "magic"], 2, "schedule must be one of cosine, linear, constant, plateau"),
        (["--dim", "wide"], 1, "dim must be a whole number, got 'wide'"),
        (["--task", "nothing"], 1, "unknown task 'nothing'"),
        (["--mixer", "nothing"], 1, "nothing"),
        (["--budget", "soon"], 1, "budget must be a duration"),
    ],
)
def test_wrong_words_are_named(run_options, capsys, wrong, code, message):
    base = words(run_options(), "task", "task_options", "runs", "root", "length")
    assert main(["train", *base, *wrong]) == code
    assert message in capsys.readouterr().err


ALONE = """
import json, pathlib
assert {"huggingface_hub", "yaml"} <= blocked
from longlens.cli.main import main
from longlens.cli.train import parse
assert main(json.loads(sys.argv[1])) == 0
from longlens.models.build import Model
(folder,) = pathlib.Path(sys.argv[2]).iterdir()
Model.from_pretrained(folder)
"""


def test_training_needs_torch_numpy_safetensors_and_filelock_alone(tmp_path):
    arguments = json.dumps(["train", *words(tiny(tmp_path, steps=3))])
    needed = ["torch", "numpy", "safetensors", "filelock"]
    run_alone(ALONE, needed, arguments, str(tmp_path / "runs"))
