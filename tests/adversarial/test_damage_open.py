"""Files in which nothing could tell a changed digit from a meant one; see test_damage.py."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from longlens.cli.run import checked_cells
from longlens.cli.train import parse
from longlens.config import ModelConfig
from longlens.files import canonical_json, digest
from longlens.models.build import build_model, load_model
from longlens.tasks import import_arrays, load
from tests.adversarial.attack import SEED, attack, command, limited, preparing, validate
from tests.adversarial.counts import record
from tests.adversarial.damage import restructure
from tests.report.sample import table2
from tests.runs.test_collect import HEADER, write_run
from tests.tasks import layouts

pytestmark = pytest.mark.adversarial
ROOT = Path(__file__).parents[2]


def open_sources(folder: Path) -> dict[str, tuple[str, Path, dict[str, object]]]:
    rng = np.random.default_rng(SEED)
    small = dict(subset=True, validation=4)
    mnist = {name[:-3]: gzip.decompress(data)
             for name, data in layouts.mnist_files(rng).items()}  # fmt: skip
    images = folder / "images"
    images.mkdir()
    np.save(images / "images.npy", rng.integers(0, 256, (24, 32, 32), dtype=np.uint8))
    np.save(images / "labels.npy", np.arange(24) % 10)
    made = {
        "text, jsonl": ("text", layouts.imdb_json(layouts.reviews()), small),
        "image, bin": ("image", layouts.cifar_files(rng, 2), small),
        "smnist, idx": ("smnist", mnist, small),
        "retrieval, tsv": ("retrieval", layouts.aan_files(), dict(subset=True)),
        "retrieval-mine, jsonl and tsv": ("retrieval-mine", layouts.corpus_files(), {}),
        "pathfinder, png": ("pathfinder", layouts.pathfinder_files(rng, 12, None),
                            dict(origin="lra", subset=True)),
    }  # fmt: skip
    return {"image, npy": ("image", images, small)} | {
        kind: (task, layouts.write_folder(folder / kind, files), options)
        for kind, (task, files, options) in made.items()
    }


def attack_imports(folder: Path, count: int) -> Counter:
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(1, 9, 30)
    total: Counter = Counter()
    cases = {
        "tokens": (rng.integers(0, 50, (30, 8)), np.arange(30) % 3, lengths),
        "floats": (rng.normal(size=(30, 8, 2)), rng.normal(size=(30, 2)), None),
        "stream": (rng.integers(0, 9, 300), None, None),
    }
    for kind, arrays in cases.items():
        files = []
        for name, array in zip(("tokens", "targets", "lengths"), arrays, strict=True):
            if array is not None:
                files.append(folder / f"{kind}-{name}.npy")
                np.save(files[-1], array)
        words = ["data", "import", "mine", "--root", str(folder), "--replace"]
        for path in files:
            words += [f"--{path.stem.split('-')[1]}", str(path)]

        def judge(words: list[str] = words) -> None:
            command(words)
            validate("mine", folder, {})

        total += attack(f"import, {kind}", files, judge, count, opened=True)
    return total


def attack_records(folder: Path, count: int) -> Counter:
    runs = folder / "runs"
    write_run(runs, "one")
    write_run(runs, "two", accuracy=0.7)
    labels = {n: {"row": "LaS", "column": "Image", "seed": i} for i, n in enumerate(("one", "two"))}
    (runs / "experiment.json").write_text(json.dumps({**HEADER, "runs": labels}))
    (runs / "one" / "curves.jsonl").write_text(
        "".join((runs / "one" / "curves.jsonl").read_text().splitlines(True)[:20])
    )
    files = [runs / "one" / "record.json", runs / "one" / "curves.jsonl"]

    def listed() -> str:  # one damaged run must not hide the other
        out = folder / "out.json"
        out.unlink(missing_ok=True)
        try:
            assert "two" in command(["runs", str(runs)])
            assert "LaS" in command(["report", str(runs), "--format", "markdown"])
            said = command(["collect", str(runs), "-o", str(out)])
        except ValueError as error:
            if "different data" in str(error):  # the identity of its data was damaged
                raise
            raise AssertionError(f"one damaged run was fatal: {error}") from None
        found = json.loads(out.read_text())["records"]
        assert len(found) == 2 and found[1]["metrics"]["test"]["accuracy"] == 0.7
        with contextlib.suppress(ValueError):
            command(["show", str(runs / "one"), str(runs / "two")])
        return "listed" if "/one/" in said else "validated"

    def labelled() -> None:
        command(["collect", str(runs), "-o", str(folder / "fresh.json")])

    total = attack("records and curves", files, listed, count, opened=True)

    def fresh() -> None:
        (folder / "fresh.json").unlink(missing_ok=True)
        labelled()

    return total + attack("labels", [runs / "experiment.json"], fresh, count // 4, opened=True)


def attack_results(folder: Path, count: int) -> Counter:
    good = folder / "good.json"
    good.write_text(json.dumps(table2()))
    total: Counter = Counter()
    names = ("readings.json", "audit_listops.json", "audit_pathfinder.json", "lens_image.json",
             "ops_cpu_amd_epyc_2_threads.csv", "step_h200.csv", "length_h200.csv")  # fmt: skip
    for name in names:
        path = folder / f"copy_{name}"
        path.write_bytes((ROOT / "results" / name).read_bytes())
        page = folder / "page.html"

        def judge(path: Path = path, page: Path = page) -> str:
            said = command(["report", str(good), str(path), "-o", str(page)])
            if "MEGA" not in page.read_text():
                raise AssertionError("a damaged file hid another one")
            return "listed" if "skipped" in said else "validated"

        total += attack(f"results, {name}", [path], judge, count, opened=True)
    return total


TABLE = """\
base: {task: listops, steps: 10, mixer_options: {num_heads: 2}, lr: 0.001}
grid:
  mixer: [las, l]
  seed: [0, 1]
  mixer_options.bound: [0.001, 0.0001]
"""


def attack_tables(folder: Path, count: int) -> Counter:
    table, config = folder / "table.yaml", folder / "config.yaml"
    table.write_text(TABLE)
    config.write_text("task: listops\ndim: 16\nlr: 0.01\nmixer_options: {window: 3}\nname: mine\n")
    inside = folder / "runs"

    def cells() -> None:
        for options in checked_cells(str(table), str(inside), {}):
            place = inside / (options.name or options.default_name())
            assert place.resolve().parent == inside.resolve()

    def options() -> None:
        json.dumps(parse(["--config", str(config)]).to_json())

    total = attack("tables", [table], cells, count, opened=True)
    return total + attack("configs of train", [config], options, count, opened=True)


def attack_models(folder: Path, count: int) -> Counter:
    build_model(ModelConfig(dim=8, depth=1, vocab_size=5)).save_pretrained(folder)

    def judge() -> None:
        model = load_model(folder)
        assert model.eval()(torch.tensor([[1, 2, 3]])).isfinite().all()

    return attack("configs of models", [folder / "config.json"], judge, count, opened=True)


def attack_manifests(root: Path, count: int) -> Counter:
    """Manifests that lie: changed, and sealed again with the right checksums."""
    import_arrays("mine", np.arange(240).reshape(40, 6) % 7, np.arange(40) % 3, root=root)
    (path,) = root.rglob("manifest.json")
    whole = path.read_bytes()
    rng = Random(f"{SEED} manifests")
    counts: Counter = Counter()
    outside = ("checksum", "identity", "sources", "notes", "made_with")
    for number in range(count):
        changed = restructure(whole, rng)
        try:
            values = json.loads(changed)
            values.pop("checksum", None)
            content = {key: value for key, value in values.items() if key not in outside}
            values["identity"] = digest(content)
            path.write_text(canonical_json({**values, "checksum": digest(values)}))
            with limited():
                task = load("mine", root)
                list(task["train"])
            counts["validated"] += 1
        except (ValueError, OSError):
            counts["refused"] += 1
        except Exception as error:
            raise AssertionError(f"{number}: {type(error).__name__}: {error}\n{changed}") from error
    print(f"\nmanifests sealed again: {dict(counts)}", end="")
    return counts


def test_damage_that_nothing_could_see_never_ends_in_a_traceback(tmp_path):
    total: Counter = Counter()
    for name, attacker, count in (
        ("imports", attack_imports, 100),
        ("records", attack_records, 200),
        ("results", attack_results, 60),
        ("tables", attack_tables, 200),
        ("models", attack_models, 150),
        ("manifests", attack_manifests, 200),
    ):
        (tmp_path / name).mkdir()
        total += attacker(tmp_path / name, count)
    (tmp_path / "sources").mkdir()
    for kind, (task, source, options) in open_sources(tmp_path / "sources").items():
        files = sorted(path for path in source.rglob("*") if path.is_file())
        judge = preparing(task, source, tmp_path / "root", options)
        total += attack(kind, files, judge, 50, opened=True)
    record(
        "damaged files that are open", seed=SEED, files=sum(total.values()),
        refused=total["refused"], listed_and_skipped=total["listed"],
        read_and_validated=total["validated"], tracebacks=total["traceback"],
    )  # fmt: skip
