"""``longlens lens`` from end to end, on mixers and on trained runs, and its errors."""

import builtins
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from longlens.charts import raster, standalone
from longlens.cli.main import main
from longlens.lens.look import look
from longlens.lens.pictures import decay_of, draw_maps
from longlens.lens.subjects import find_subjects
from longlens.runs import train_run
from longlens.training.options import TrainOptions

ROOT = Path(__file__).parent.parent.parent
SMALL = ["--length", "32", "--dim", "8", "--batch_size", "2"]


def read(folder):
    return json.loads((folder / "lens.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs on one task whose examples differ in length."""
    base = tmp_path_factory.mktemp("runs")
    task = dict(min_length=20, max_length=60, max_depth=4, train=16, validation=8, test=8)
    for mixer in ("las", "softmax"):
        train_run(
            TrainOptions(
                task="listops",
                task_options=task,
                mixer=mixer,
                mixer_options={"num_heads": 2},
                dim=8,
                depth=2,
                steps=2,
                batch_size=4,
                progress=False,
                name=mixer,
                device="cpu",
                runs=str(base / "runs"),
                root=str(base / "data"),
            )
        )
    return base / "runs"


def test_several_mixers(tmp_path, capsys):
    words = ["s4d", "mega:query_dim=4", "las:num_heads=2,bound=0.5", "lstm"]
    output = tmp_path / "results" / "lens_small.json"
    assert (
        main(["lens", *words, "--folder", str(tmp_path / "a"), "--output", str(output), *SMALL])
        == 0
    )
    text = capsys.readouterr().out
    assert "subject" in text and "las:num_heads=2,bound=0.5" in text
    values = read(tmp_path / "a")
    assert values == json.loads(output.read_text())
    assert (values["schema"], values["kind"]) == (1, "lens")
    assert [s["name"] for s in values["subjects"]] == words
    views = {s["mixer"]: [v["view"] for v in s["layers"]] for s in values["subjects"]}
    assert views == {
        "s4d": ["kernel", "gradient"],
        "mega": ["kernel", "attention", "gradient"],
        "las": ["attention", "gradient"],
        "lstm": ["gradient"],
    }
    first = values["subjects"][0]
    assert first["run"] is None and first["stage"] == "fresh"
    head = first["layers"][0]["heads"][0]
    assert {"decay_rate", "half_distance", "total_variation", "spectral_centroid", "entropy",
            "mass_beyond"} <= head.keys()  # fmt: skip
    assert first["layers"][0]["profile"][0][0] == 0
    assert first["layers"][0]["convolution_error"] < 1e-9
    for name in ("kernels", "profiles", "reach", "decay", "maps", "aspects"):
        assert (tmp_path / "a" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "a" / f"{name}.svg").read_text()
    assert "| s4d | kernel | y |" in (tmp_path / "a" / "aspects.md").read_text()


def test_runs_before_and_after_training_on_the_same_input(runs, tmp_path):
    folders = [str(runs / "las"), str(runs / "softmax")]
    quick = ["--length", "24", "--no-pictures"]
    assert main(["lens", *folders, "--folder", str(tmp_path / "a"), *quick]) == 0
    values = read(tmp_path / "a")
    names = [(s["name"], s["stage"]) for s in values["subjects"]]
    assert names == [
        ("las, before training", "before training"),
        ("las", "trained"),
        ("softmax, before training", "before training"),
        ("softmax", "trained"),
    ]
    for subject in values["subjects"]:
        assert [v["layer"] for v in subject["layers"]] == [0, 0, 1, 1, None]
        assert subject["inputs"].startswith("listops, validation split, 4 × ")
        assert subject["origin"]["data"]["name"] == "listops"
    assert str(runs) not in json.dumps(values)  # a name, not somebody's disk


def test_maps_of_runs_have_a_row_a_subject_and_a_column_a_layer(runs):
    looked = []
    for mixer in ("las", "softmax"):
        (subject,) = find_subjects(str(runs / mixer), length=24, before=False)
        looked.append((subject, look(subject)))
    svg = "{http://www.w3.org/2000/svg}"
    picture = ElementTree.fromstring(standalone(draw_maps(looked)))
    titles = [chart.get("aria-label") for chart in picture.findall(f"{svg}svg")]
    assert titles == ["las", "las", "softmax", "softmax"]
    words = [text.text for text in picture.findall(f".//{svg}text[@class='quiet']")]
    assert [w for w in words if "heads" in w] == 2 * [
        "layer 0, mean of heads; query", "layer 1, mean of heads; query"
    ]  # fmt: skip
    rows = {chart.get("y") for chart in picture.findall(f"{svg}svg")}
    assert len(rows) == 2 and len(picture.findall(f".//{svg}image")) == 4
    (subject,) = find_subjects("lstm", length=16, dim=8)
    assert draw_maps([(subject, look(subject))]) is None


def test_before_training_is_the_initial_model_and_after_the_trained_one(runs):
    before, after = find_subjects(str(runs / "las"), length=24)
    first, last = (s.layers[0][0].qkv.weight for s in (before, after))
    change = (first - last).abs().max()
    assert 0 < change < 0.1  # two steps away from each other, not two draws
    (alone,) = find_subjects(str(runs / "las"), length=24, before=False)
    assert alone.stage == "trained"
    (layer, x), _ = alone.layers
    assert x.shape == (4, 24, 8) and layer.causal


def test_random_inputs_need_no_data(runs, tmp_path, monkeypatch):
    copy = tmp_path / "moved"
    copy.mkdir()
    for name in ("config.json", "model.safetensors", "record.json"):
        (copy / name).write_bytes((runs / "las" / name).read_bytes())
    record = json.loads((copy / "record.json").read_text())
    record["options"]["task"] = "text"  # needs files that are not there
    record["options"]["root"] = str(tmp_path / "nowhere")
    record["options"]["task_options"] = {}
    (copy / "record.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"cannot be read.*use --inputs random"):
        find_subjects(str(copy))
    _, after = find_subjects(str(copy), inputs="random", length=16)
    assert after.inputs == "random tokens, 4 × 16"
    assert look(after)[-1].part == "whole model"
    (copy / "record.json").unlink()
    with pytest.raises(ValueError, match=r"has no record.json.*use --inputs random"):
        find_subjects(str(copy))
    (alone,) = find_subjects(str(copy), inputs="random", length=16)  # no seed, no "before"
    assert alone.stage == "trained"


def test_a_folder_of_a_mixers_name_is_reached_by_its_path(runs, monkeypatch):
    monkeypatch.chdir(runs)
    assert find_subjects("las", length=16)[0].run is None
    assert find_subjects("./las", length=16)[0].run is not None


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("s4dd", "unknown mixer or run 's4dd'; did you mean 's4d'"),
        ("runs/nothing", "there is no folder runs/nothing"),
        ("las:window", "options are written as in las:bound=0.05,window=9, got 'las:window'"),
        ("las:dim=8", "dim is no option of a mixer here; give --dim, got 'las:dim=8'"),
        ("las:windo=3", "unknown option of 'las' 'windo'; did you mean 'window'"),
    ],
)
def test_wrong_names(word, message, tmp_path, capsys):
    assert main(["lens", word, "--folder", str(tmp_path), *SMALL]) == 1
    assert message in capsys.readouterr().err


def test_a_run_without_weights(runs, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"is no run: it has no config.json"):
        find_subjects(str(tmp_path))
    for name in ("config.json", "record.json"):
        (tmp_path / name).write_bytes((runs / "las" / name).read_bytes())
    assert main(["lens", str(tmp_path), "--folder", str(tmp_path / "a")]) == 1
    text = capsys.readouterr().err
    assert "has no weights (model.safetensors): its status is 'finished'" in text


@pytest.mark.parametrize("missing", ["PIL", "resvg_py"])
def test_without_libraries_for_pictures_there_are_numbers(tmp_path, capsys, monkeypatch, missing):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *rest, **more)

    raster.font.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["lens", "conv", "--folder", str(tmp_path), *SMALL]) == 1
    assert f"pictures need {missing}: pip install 'longlens[lab]'" in capsys.readouterr().err
    assert main(["lens", "conv", "--folder", str(tmp_path), "--no-pictures", *SMALL]) == 0
    assert read(tmp_path)["subjects"][0]["mixer"] == "conv"
    assert not (tmp_path / "kernels.png").exists()


@pytest.mark.parametrize("option", [{"length": 1}, {"batch": 0}, {"dim": 0}, {"inputs": "noise"}])
def test_wrong_values(option):
    (name,) = option
    with pytest.raises(ValueError, match=name):
        find_subjects("las", **option)


def test_who_decays():
    def layer(word):
        return find_subjects(word, length=8, dim=8)[0].layers[0][0]

    rates, what = decay_of(layer("las:num_heads=2,bound=0.5"))
    assert what == "score" and torch.allclose(rates, torch.tensor([0.0, 0.5]))
    assert decay_of(layer("alibi:num_heads=2"))[1] == "weight"
    assert decay_of(layer("softmax:num_heads=2")) is None


def test_the_page_shows_what_was_measured():
    values = json.loads((ROOT / "results" / "lens_zoo.json").read_text())
    found = {s["mixer"]: s["layers"][0]["median"] for s in values["subjects"]}
    row = r"^\| `(\S+)` \| ([\d.]+ \| \d+ \| [\d.]+ \| [\d.]+) \|$"
    shown = re.findall(row, (ROOT / "docs" / "lens.md").read_text(), re.MULTILINE)
    assert len(shown) >= 8
    for mixer, cells in shown:
        m = found[mixer]
        numbers = (
            f"{m['decay_rate']:.4f}", f"{m['half_distance']}", f"{m['total_variation']:.1f}",
            f"{m['spectral_centroid']:.3f}",
        )  # fmt: skip
        assert tuple(cells.split(" | ")) == numbers, mixer
