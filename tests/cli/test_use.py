"""`longlens evaluate` and `predict`: what is done with a finished run."""

import csv
import io
import json

import numpy as np
import pytest
import torch

from longlens.cli.main import main
from longlens.models.build import load_model
from longlens.runs import train_run
from longlens.runs.run import run_folder
from longlens.runs.trained import evaluate_run, predict_run
from longlens.tasks import import_arrays, load
from longlens.training.options import TrainOptions
from tests.training.runs import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on ListOps, with padding, dropout and averaged weights."""
    options = tiny(tmp_path_factory.mktemp("use"))
    return options, train_run(options), run_folder(options)


def printed(capsys, *words):
    assert main([*map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluate_gives_what_the_record_says(run, capsys, split):
    _, record, folder = run
    values = printed(capsys, "evaluate", folder, "--split", split, "--json")
    assert values["examples"] == 12 and values["task"] == "listops"
    for name, value in record.metrics[split].items():
        assert values[name] == (pytest.approx(value) if isinstance(value, float) else value)
    assert main(["evaluate", str(folder), "--split", split]) == 0
    assert "accuracy_by_operator" in capsys.readouterr().out


def test_evaluate_by_the_values_of_an_extra(run, capsys):
    """The parts of an extra add up to the whole; sums alone can be seen by depth."""
    _, record, folder = run
    parts = {
        value: printed(capsys, "evaluate", folder, "--where", f"operator={value}", "--json")
        for value in record.metrics["test"]["accuracy_by_operator"]
    }
    assert sum(part["examples"] for part in parts.values()) == 12 and len(parts) > 1
    for value, entry in record.metrics["test"]["accuracy_by_operator"].items():
        assert parts[value]["accuracy"] == pytest.approx(entry["accuracy"])
        assert list(parts[value]["accuracy_by_operator"]) == [value]
    for words, problem in (
        ("operator=7", "listops has no example in test with {'operator': 7}"),
        ("size=1", "extra must be one of ['operator', 'depth', 'decided'], got 'size'"),
    ):
        assert main(["evaluate", str(folder), "--where", words]) == 1
        assert problem in capsys.readouterr().err


def test_evaluate_on_other_examples_and_other_tasks(run, tmp_path, capsys):
    options, _, folder = run
    words = ["evaluate", folder, "--set", "task_options.test=20", "--json"]
    assert printed(capsys, *words)["examples"] == 20
    rng = np.random.default_rng(0)
    x, y = rng.integers(1, 16, (40, 30)), rng.integers(0, 10, 40)
    import_arrays("mine", x, y, vocab_size=16, num_classes=10, root=options.root, replace=True)
    assert printed(capsys, "evaluate", folder, "--task", "mine", "--json")["task"] == "mine"
    for task, problem in (
        ("far-order", "far-order needs a model with num_outputs 2, this one has 10"),
        ("cumsum", "cumsum needs a model with head regression"),
        ("listop", "did you mean 'listops'?"),
    ):
        assert main(["evaluate", str(folder), "--task", task]) == 1
        err = capsys.readouterr().err
        assert problem in err and err.count("\n") == 1
    for words, problem in (
        (["--length", "0"], "length must be 1 or more, got 0"),
        (["--batch_size", "0"], "batch_size must be 1 or more, got 0"),  # it was the run's
        (["--views", "0"], "views must be 1 or more, got 0"),
        (["--task", "mine", "--where", "operator=1"],
         "where: mine keeps no values with examples, got 'operator'"),
    ):  # fmt: skip
        assert main(["evaluate", str(folder), *words]) == 1
        assert capsys.readouterr().err == f"longlens evaluate: {problem}\n"
    assert main(["evaluate", str(folder), "--set", "dim=3"]) == 2
    assert "only task_options.KEY" in capsys.readouterr().err


def test_a_test_needs_nothing_of_the_training(tmp_path, capsys):
    """Neither an augmentation of the other task, nor values of subtrees, nor a large split."""
    for protocol in ("augment", "values"):
        views = 2 if protocol == "augment" else 1
        options = tiny(tmp_path, protocol=protocol, views=views, name=protocol, length=None)
        train_run(options)
        folder = run_folder(options)
        rng = np.random.default_rng(0)
        size = 16 if protocol == "augment" else 25  # values stand in brackets
        x, y = rng.integers(1, 16, (40, 30)), rng.integers(0, 10, 40)
        import_arrays(
            f"mine{size}", x, y, vocab_size=size, num_classes=10, root=options.root, replace=True
        )
        words = ("evaluate", folder, "--task", f"mine{size}", "--batch_size", "500", "--json")
        assert printed(capsys, *words)["examples"] == 10
    folder = tmp_path / "runs/augment"
    for words, seen in (((), ["1", "2"]), (("--views", "3"), ["1", "2", "3"])):
        values = printed(capsys, "evaluate", folder, *words, "--json")
        assert list(values["accuracy_by_views"]) == seen
    assert main(["evaluate", str(folder), "--task", "mine16", "--views", "2"]) == 1
    assert "nothing is known for 'mine16'" in capsys.readouterr().err


def test_predictions_agree_with_the_evaluation(run, tmp_path, capsys):
    options, record, folder = run
    split = load("listops", options.root, **options.task_options)["test"]
    examples = [split[n] for n in range(len(split))]
    lines = [" ".join(map(str, e.inputs[0][: options.length])) for e in examples]
    (tmp_path / "x.txt").write_text("\n".join(lines))
    answers = printed(capsys, "predict", folder, tmp_path / "x.txt", "--json")
    right = [a["prediction"] == int(e.target) for a, e in zip(answers, examples, strict=True)]
    assert np.mean(right) == pytest.approx(record.value("test"))
    assert all(0.1 <= a["probability"] <= 1 for a in answers)

    np.save(tmp_path / "x.npy", examples[0].inputs[0][None, : options.length])
    assert printed(capsys, "predict", folder, tmp_path / "x.npy", "--json")[0] == answers[0]
    output = tmp_path / "out.csv"
    assert main(["predict", str(folder), str(tmp_path / "x.txt"), "-o", str(output)]) == 0
    rows = list(csv.DictReader(io.StringIO(output.read_text())))
    assert [int(row["prediction"]) for row in rows] == [a["prediction"] for a in answers]
    output = tmp_path / "out.tsv"  # it would hold JSON
    assert main(["predict", str(folder), str(tmp_path / "x.txt"), "-o", str(output)]) == 2
    assert "--output: must end in .json or .csv, got" in capsys.readouterr().err
    assert not output.exists()


def test_texts_floats_and_names(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path / "data"))
    (tmp_path / "words.csv").write_text(
        "text,label\n" + "".join(f"{w} {w},{w}\n" for w in ("yes", "no") * 10)
    )
    assert main(["data", "import", "words", "--from", str(tmp_path / "words.csv")]) == 0
    base = dict(dim=8, depth=1, batch_size=4, steps=2, device="cpu", progress=False, mixer="conv",
                runs=str(tmp_path / "runs"))  # fmt: skip
    train_run(TrainOptions(task="words", name="words", **base))
    train_run(TrainOptions(task="cumsum", name="cumsum", **base,
                           task_options=dict(length=16, train=8, validation=4, test=4))
              )  # fmt: skip
    capsys.readouterr()
    texts = "\ufeffyes\u2028no\r\nno\x0c\x85 yes\n"  # two lines with odd spaces in them
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(texts.encode())))
    answers = printed(capsys, "predict", tmp_path / "runs/words", "-", "--json")
    assert len(answers) == 2 and {a["name"] for a in answers} <= {"yes", "no"}
    (tmp_path / "x.txt").write_text(texts)
    assert printed(capsys, "predict", tmp_path / "runs/words", tmp_path / "x.txt", "--json") == (
        answers
    )
    plain = predict_run(tmp_path / "runs/words", ["yes\u2028no", "no\x0c\x85 yes"])
    assert plain == [{k: v for k, v in a.items() if k != "example"} for a in answers]
    (tmp_path / "x.txt").write_bytes("müde".encode("latin-1"))
    assert main(["predict", str(tmp_path / "runs/words"), str(tmp_path / "x.txt")]) == 1
    assert "neither text in UTF-8 nor a .npy file" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", np.ones((3, 16), np.float32))
    answers = printed(capsys, "predict", tmp_path / "runs/cumsum", tmp_path / "x.npy", "--json")
    assert np.shape([a["prediction"] for a in answers]) == (3, 16, 1)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("1 2 99", "example 0: tokens must be in 0 … 15, got 99"),
        ("1 2\n1 2.5", "example 1 must be tokens, whole numbers (L,)"),
        ("a b", "example 0 must be numbers, got 'a b'"),
        ("1 2\n1_1 2", "example 1 must be numbers, got '1_1 2'"),
        ("1,2,3\n1,,2", "example 1: value 2 is missing inside the example, got '1,,2'"),
        (",1,2", "example 0: value 1 is missing inside the example"),
        ("1\t\t2", "example 0: value 2 is missing inside the example"),
        ("1 2\n\n1 2 3", "x.txt: line 2 is empty; give an example in every line"),
        ("\r\n1 2\r\n", "x.txt: line 1 is empty"),
        ("", "holds no examples"),
    ],
)
def test_wrong_inputs_are_named(run, tmp_path, capsys, content, problem):
    (tmp_path / "x.txt").write_text(content)
    assert main(["predict", str(run[2]), str(tmp_path / "x.txt")]) == 1
    err = capsys.readouterr().err
    assert problem in err and err.count("\n") == 1


def test_values_that_are_missing_at_the_end_make_an_example_shorter(run, tmp_path, capsys):
    (tmp_path / "x.txt").write_text("1 2 3\n1, 2, 3\n1,2,3,,\n1\t2\t3\t\n")
    answers = printed(capsys, "predict", run[2], tmp_path / "x.txt", "--json")
    assert [answer["example"] for answer in answers] == [0, 1, 2, 3]
    assert len({answer["probability"] for answer in answers}) == 1


def test_a_run_that_is_not_finished_has_no_model(run_options, capsys):
    options = run_options(steps=4)
    train_run(options)
    path = run_folder(options) / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "stopped"}))
    assert main(["evaluate", str(run_folder(options))]) == 1
    assert "has no trained model (status stopped)" in capsys.readouterr().err


def test_examples_are_not_chosen_by_values_that_are_many(tmp_path, monkeypatch):
    """Colours: (N, L, 3), whose flat places were taken for examples."""
    task = load("listops", tmp_path, train=8, validation=4, test=4, min_length=8, max_length=40)
    options = TrainOptions(task="listops", task_options=dict(
        train=8, validation=4, test=4, min_length=8, max_length=40), dim=8, depth=1, steps=1,
        batch_size=4, device="cpu", progress=False, root=str(tmp_path), runs=str(tmp_path),
    )  # fmt: skip
    train_run(options)
    monkeypatch.setattr(
        type(task["test"]), "extra", lambda self, name: np.zeros((len(self), 9, 3), np.uint8)
    )
    with pytest.raises(ValueError, match="operator of listops is no single value of an example"):
        evaluate_run(run_folder(options), where={"operator": 0})


def imported_run(tmp_path, name, tokens, targets, **changes):
    """A tiny run on tokens (N, L), and its folder."""
    import_arrays(name, tokens, targets, root=tmp_path / "data")
    options = tiny(tmp_path, task=name, task_options={}, mixer="las", steps=2, protocol="scratch",
                   **{"length": None, "mixer_options": {"num_heads": 2}} | changes)  # fmt: skip
    train_run(options)
    return run_folder(options)


def test_predictions_are_of_examples_that_are_cut_as_in_training(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 9, (60, 20))
    folder = imported_run(tmp_path, "cut", tokens, tokens[:, 0] % 2, length=8)
    changed = tokens[:5].copy()
    changed[:, 8:] = 0
    assert predict_run(folder, list(changed)) == predict_run(folder, list(tokens[:5]))


def test_an_example_longer_than_all_of_training_is_refused(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 9, (60, 20))
    folder = imported_run(tmp_path, "whole", tokens, tokens[:, 0] % 2)
    with pytest.raises(ValueError, match=r"0 must have at most 20 positions, .* got 21"):
        predict_run(folder, [np.append(tokens[0], 1)])


def test_classes_of_another_name_are_not_compared(tmp_path):
    from longlens.tasks import import_file

    lines = [f"{n % 7},{n % 5},{n % 3}" for n in range(60)]
    for name, words in (("ours", ("neg", "pos")), ("theirs", ("good", "pos"))):
        rows = [f"{words[n % 2]},{line}" for n, line in enumerate(lines)]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows))
        import_file(tmp_path / f"{name}.csv", root=tmp_path / "data")
    options = tiny(tmp_path, task="ours", task_options={}, mixer="las", steps=2, length=None,
                   protocol="scratch", mixer_options={"num_heads": 2})  # fmt: skip
    train_run(options)
    with pytest.raises(ValueError, match="class 0 of theirs is 'good', of ours 'neg'"):
        evaluate_run(run_folder(options), task="theirs")


def test_numbers_are_predicted_where_the_targets_are(tmp_path):
    """A model of numbers has one at every position; the last T are those that were learned."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 6)).astype(np.float32), rng.normal(size=(20, 2))
    import_arrays("mine", x, y, root=tmp_path / "data")
    options = TrainOptions(task="mine", mixer="conv", dim=8, depth=1, steps=1, batch_size=4,
                           device="cpu", progress=False, root=str(tmp_path / "data"),
                           runs=str(tmp_path))  # fmt: skip
    train_run(options)
    folder = run_folder(options)
    with torch.no_grad():
        outputs = load_model(folder).eval()(torch.from_numpy(x[:3, :, None])).numpy()
    large = np.full((2, 6), 3e38, np.float32)
    for wrong, problem in ((x[:2, :0], "example 0 must have one position or more"),
                           (large, "example 0: the model answers NaN or infinite")):  # fmt: skip
        with pytest.raises(ValueError, match=problem):
            predict_run(folder, wrong)
    np.save(tmp_path / "none.npy", x[:0])
    assert main(["predict", str(folder), str(tmp_path / "none.npy")]) == 1
    wanted = [pytest.approx(output) for output in outputs[:, -2:]]
    assert [np.array(one["prediction"]) for one in predict_run(folder, x[:3])] == wanted
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert [np.array(one["prediction"]) for one in predict_run(folder, x[:3])] == wanted

    record = json.loads((folder / "record.json").read_text())
    del record["data"]["target_length"]  # as earlier versions wrote it
    (folder / "record.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="how many these are neither its record says nor its data"):
        predict_run(folder, x[:3])
    (tmp_path / "elsewhere").rename(tmp_path / "data")
    assert [np.array(one["prediction"]) for one in predict_run(folder, x[:3])] == wanted


def test_the_longest_name_of_a_metric_stands_apart(tmp_path, capsys):
    import_arrays("mine", np.arange(200) % 5, root=tmp_path)
    options = TrainOptions(task="mine", length=8, mixer="gru", dim=8, depth=1, steps=1,
                           batch_size=4, device="cpu", progress=False, root=str(tmp_path),
                           runs=str(tmp_path))  # fmt: skip
    train_run(options)
    capsys.readouterr()
    assert main(["evaluate", str(run_folder(options))]) == 0
    assert "\nbits_per_token  " in capsys.readouterr().out
