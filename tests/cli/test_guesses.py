"""What users guess wrongly, and the one helpful line that each guess is answered by."""

import json
import shlex
import sys

import numpy as np
import pytest

from longlens.cli.main import main

# What is given -> the exit code (2: the words are wrong, 1: what they mean) and the answer.
GUESSES = {
    # misspelt words
    "trian": (2, "unknown command 'trian'; did you mean 'train'?"),
    "train --mixr las": (2, "there is no option --mixr; did you mean --mixer?"),
    "train --learning_rate 0.1": (2, "there is no option --learning_rate; did you mean --lr?"),
    "train --batch 8": (2, "there is no option --batch; did you mean --batch_size?"),
    "train --num-layers 4": (2, "there is no option --num-layers; did you mean --depth?"),
    "train --hidden_size=64": (2, "there is no option --hidden_size; did you mean --dim?"),
    "train --heads 4": (2, "no option --heads; give --set mixer_options.num_heads=VALUE"),
    "train --set learning_rate=1": (2, "is no option of train; did you mean --set lr=…?"),
    "run table2 --set learning_rate=1 --list": (2, "is no option of train; did you mean 'lr'?"),
    "audit far-order --learning_rate 0.1": (2, "there is no option --learning_rate; give --set lr"),
    "train --mixer lass": (1, "unknown mixer 'lass'; did you mean 'las'"),
    "train --task lisops": (1, "unknown task 'lisops'; did you mean 'listops'?"),
    "train --schedule cosin": (2, "must be one of cosine, linear, constant, plateau, got 'cosin'; "
                                  "did you mean 'cosine'?"),
    "train --config typo.yaml": (1, "typo.yaml: 'mixr' is no option of longlens train; did you "
                                    "mean 'mixer'?"),
    "run table.yaml": (1, "table.yaml: cell 0: 'tsk' is no option of longlens train; did you mean "
                          "'task'?"),
    "run tabel2": (1, "did you mean table2?"),
    "run table2 --set dimm=3 --list": (2, "'dimm' is no option of train; did you mean 'dim'?"),
    "runs . --columns nam": (1, "there is no column 'nam'; did you mean 'name'?"),
    "runs . --sort tset": (1, "there is no column 'tset'; did you mean 'test'?"),
    "data lst": (2, "did you mean 'list'?"),
    "data show far-order --set distnce=3": (1, "no option 'distnce'; did you mean 'distance'?"),
    "bench op": (2, "did you mean 'ops'?"),
    "layers s44": (1, "did you mean 's4'"),
    "report --formt csv": (2, "did you mean --format?"),
    # options of something else, or in another spelling
    "train --mixer softmax --set mixer_options.window=5": (
        1, "unknown option of 'softmax' 'window'; known: "),
    "train --set mixer_options.windw=5": (1, "did you mean 'window'?"),
    "train --set window=5": (2, "did you mean --set mixer_options.window=…?"),
    "train --task far-order --set distance=5": (2, "did you mean --set task_options.distance=…?"),
    "audit far-order --set distance=5": (2, "did you mean --set task_options.distance=…?"),
    "train --mixer_options.window 5": (2, "give --set mixer_options.window=VALUE"),
    "data show far-order --distance 5": (2, "give --set distance=VALUE"),
    "audit far-order --dim 8": (2, "give --set dim=VALUE"),
    "train listops": (2, "'listops' is one word too many; options are given as --task listops"),
    "train --set lr": (2, "--set takes KEY=VALUE, got 'lr'"),
    # values
    "train --dim wide": (1, "dim must be a whole number, got 'wide'"),
    "train --quiet --set mixer_options.bound=wide": (1, "las cannot be built with bound='wide'"),
    "train --set mixer_options.bias=no": (1, "las's bias must be true or false, got 'no'"),
    "train --protocol augment --set augment_options.redraw=1": (
        1, "redraw must be true or false, got 1"),
    "train --protocol augment --set augment_options.foo=1": (1, "its options: redraw"),
    "train --set augment_options.redraw=True": (1, "are of the protocol augment, got 'scratch'"),
    "lens las:bound=abc": (1, "las cannot be built with bound='abc'"),
    "tune --search runs=a,b": (1, "runs says where a run is kept, not what it computes"),
    "train --dim": (2, "--dim: expected one argument"),
    "train --steps 5 --epochs 1": (1, "give one of steps, epochs and budget"),
    # wrong folders and files
    "runs nowhere": (1, "nowhere is no folder of runs"),
    "report nowhere": (1, "nowhere does not exist"),
    "show nowhere": (1, "there is no folder nowhere (`longlens runs` lists what there is)"),
    "evaluate nowhere": (1, "there is no folder nowhere"),
    "predict nowhere x.npy": (1, "there is no folder nowhere"),
    "evaluate .": (1, ". is no run: it has no record.json"),
    "show notes.txt": (1, "notes.txt is no run: it has no record.json"),
    "report notes.txt": (1, "notes.txt is no file of results: they end in .json or .csv"),
    "audit --judge notes.txt": (1, "notes.txt is no record of an audit"),
    "collect .": (1, "give the folder that `longlens run NAME` made"),
    "train --config nowhere.yaml": (1, "nowhere.yaml cannot be read: No such file"),
    "data import mine --from nowhere.csv": (1, "nowhere.csv: there is no such file"),
    "report": (1, "there is neither results/ nor runs/ here; `longlens train` and"),
    # data that are something else
    "data import mine --tokens x.npy --targets floats.npy --kind classification": (
        1, "classes must be (N,) integers, got float64 (20,); floats are --kind regression"),
    "data import mine --from floats.csv --kind classification": (1, "pass --kind regression"),
    "data import listops --tokens x.npy": (1, "'listops' belongs to a task of longlens"),
    "train --quiet --task image": (1, "run `longlens data prepare image`"),
    # what is not installed
    "tune --search lr=1e-4:1e-2:log --steps 1": (1, "pip install 'longlens[search]'"),
    "train --quiet --log wandb --task cumsum --steps 1": (1, "pip install wandb"),
    "run table.yaml --on ray": (1, "pip install 'longlens[ray]'"),
    "train --device cuda": (1, "torch sees no CUDA device here"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as somebody has it who has just begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for missing in ("optuna", "wandb", "ray"):
        monkeypatch.setitem(sys.modules, missing, None)
    (tmp_path / "typo.yaml").write_text("mixr: las\n")
    (tmp_path / "table.yaml").write_text("base: {tsk: listops}\ngrid: {seed: [0]}\n")
    (tmp_path / "notes.txt").write_text("hello\n")
    rows = "".join(f"{n / 7:.3f},{n},{n + 1}\n" for n in range(20))
    (tmp_path / "floats.csv").write_text(f"label,a,b\n{rows}")
    np.save(tmp_path / "x.npy", np.ones((20, 5), np.int64))
    np.save(tmp_path / "floats.npy", np.arange(20) / 2)
    return tmp_path


@pytest.mark.parametrize("guess", GUESSES)
def test_a_wrong_guess_is_answered_by_one_line(folder, capsys, guess):
    code, answer = GUESSES[guess]
    if "cumsum" in guess or "--on ray" in guess:  # which comes as far as that
        sizes = {"length": 16, "train": 8, "validation": 4, "test": 4}
        base = {"task": "cumsum", "task_options": sizes, "dim": 8, "depth": 1, "batch_size": 4}
        (folder / "table.yaml").write_text(json.dumps({"base": base, "grid": {"seed": [0]}}))
    assert main(shlex.split(guess)) == code
    out, err = capsys.readouterr()
    last = err.strip().splitlines()[-1]
    assert answer in last and last.startswith("longlens")
    made = [line for line in err.splitlines() if line.startswith("cumsum: ")]  # the data
    assert len(err.splitlines()) == 1 + len(made) and "Traceback" not in err + out
    assert not list(folder.glob("runs/*/record.json"))
