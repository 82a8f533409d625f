"""Thousands of damaged files: none is read as if it were whole, and none ends in a traceback.

Three kinds of file, by what can be known of them:

- **sealed**: a checksum of ours covers every byte (weights, checkpoints, prepared data, and what an
  interrupted preparation left). Whatever is loaded must be what was written, to the bit.
- **compressed**: the format has checksums (gzip, xz, zip). A source is refused, or gives the same
  data as the whole one.
- **open**: nothing could tell a changed digit from a meant one (a user's arrays, tables, JSON
  lines, records, results, configs). Such a file may be read, but what comes out is validated, and
  every error is one line: a ValueError or an OSError, which commands print without a traceback.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import lzma
import shutil
import signal
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from longlens.cli.main import main
from longlens.cli.run import read_cells
from longlens.cli.train import parse
from longlens.config import ModelConfig
from longlens.files import canonical_json, digest
from longlens.models.build import build_model, load_model
from longlens.tasks import import_arrays, load, prepare
from longlens.tasks.writer import Writer
from longlens.training import checkpoint
from longlens.training.options import TrainOptions
from longlens.weights import load_tensors, save_tensors
from tests.adversarial.counts import record
from tests.adversarial.damage import damaged, restructure
from tests.report.sample import table2
from tests.report.test_collect import HEADER, write_run
from tests.tasks import task_layouts as layouts

pytestmark = pytest.mark.adversarial
SEED = 17
SECONDS = 30  # longer than this is a hang
ROOT = Path(__file__).parents[2]
Judge = Callable[[], object]


class HangError(Exception):
    """A damaged file kept the program busy."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def attack(
    name: str, files: list[Path], judge: Judge, count: int, *, opened: bool = False
) -> Counter:
    """Damage one of ``files`` at a time, ``count`` times, and judge what comes of it.

    ``judge`` reads the files and returns what it got; for ``opened`` kinds, where that may differ
    from the original, it validates what it got itself.
    """
    rng = Random(f"{SEED} {name}")
    whole = judge()
    counts: Counter = Counter()
    problems = []
    for number in range(count):
        path = rng.choice(files)
        before = path.read_bytes()
        text = path.suffix in (".json", ".jsonl") or rng.random() < 0.1
        way, content = damaged(before, rng, text)
        while content == 2 * before and path.suffix in (".gz", ".xz"):
            way, content = damaged(before, rng, text)  # two whole streams are a whole file
        path.write_bytes(content)
        outcome = "accepted"
        try:
            with limited(), contextlib.redirect_stderr(io.StringIO()):
                found = judge()
            outcome = "validated" if opened else "the same" if found == whole else "accepted"
        except (ValueError, OSError):
            outcome = "refused"
        except Exception as error:
            outcome = "traceback"
            problems.append(f"{number}: {path.name} {way}: {type(error).__name__}: {error}")
        finally:
            path.write_bytes(before)
        counts[outcome] += 1
        if outcome == "accepted":
            problems.append(f"{number}: {path.name} {way}: read as if it were whole")
    print(f"\n{name}: {dict(counts)}", end="")
    assert not problems, "\n".join([f"{name}: {dict(counts)}", *problems[:40]])
    assert judge() == whole or opened  # the files are as they were
    return counts


# ---------------------------------------------------------------------- sealed


def content_of(tensors: dict[str, torch.Tensor]) -> dict[str, object]:
    return {n: (str(t.dtype), tuple(t.shape), t.numpy().tobytes()) for n, t in tensors.items()}


def some_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(SEED)
    return {"a.weight": torch.randn(7, 5), "b": torch.arange(9), "flag": torch.tensor([True]),
            "empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5)}  # fmt: skip


def attack_weights(folder: Path, count: int) -> Counter:
    path = folder / "model.safetensors"
    save_tensors(path, some_tensors(), {"format": "pt"})
    return attack("weights", [path], lambda: content_of(load_tensors(path)), count)


def attack_checkpoints(folder: Path, count: int) -> Counter:
    checkpoint.save(folder, 3, some_tensors(), {"state": {"step": 3}, "curve_bytes": 0})
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) == 2

    def judge() -> object:
        found = checkpoint.load(folder)
        assert found is not None
        return content_of(found.tensors), found.facts

    return attack("checkpoints", files, judge, count)


def arrays_of(name: str, root: Path, **options: object) -> object:
    task = load(name, root, **options)
    return task.identity, {
        (split, key): hashlib.sha256(rows.whole().tobytes()).hexdigest()
        for split, part in task.splits.items()
        for key, rows in part.arrays.items()
    }


def attack_data(root: Path, count: int) -> Counter:
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(1, 9, 60)
    tokens = rng.integers(0, 50, int(lengths.sum()))
    import_arrays("mine", tokens, np.arange(60) % 3, lengths=lengths, root=root)
    files = sorted(path for path in root.rglob("*") if path.suffix in (".npy", ".json"))
    return attack("prepared data", files, lambda: arrays_of("mine", root), count)


def attack_interrupted(folder: Path, count: int) -> Counter:
    options = dict(train=60, validation=20, test=20, min_length=8, max_length=40)
    kept = folder / "kept"
    with pytest.MonkeyPatch.context() as patch:

        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(Writer, "finish", stop)
        with contextlib.suppress(KeyboardInterrupt), contextlib.redirect_stderr(io.StringIO()):
            prepare("listops", kept, quiet=True, **options)
    files = sorted(path for path in kept.rglob("*") if path.suffix in (".npy", ".jsonl"))
    (journal,) = [path for path in files if path.name == "journal.jsonl"]

    def judge() -> object:
        root = folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(kept, root)
        return prepare("listops", root, quiet=True, **options).identity

    return attack("interrupted preparations", files + len(files) * [journal], judge, count)


# ---------------------------------------------------------------------- compressed


def xz_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def compressed_sources(folder: Path) -> dict[str, tuple[str, list[Path], Path, dict[str, object]]]:
    """Kind -> task, files to damage, source, options."""
    rng = np.random.default_rng(SEED)
    imdb, small = layouts.imdb_files(layouts.reviews()), dict(subset=True, validation=4)
    lines = layouts.imdb_json(layouts.reviews())
    mnist = layouts.write_folder(folder / "mnist", layouts.mnist_files(rng))
    jsonl = layouts.write_folder(
        folder / "jsonl", {f"{name}.xz": lzma.compress(data) for name, data in lines.items()}
    )
    text = bytes(rng.integers(97, 123, 400, dtype=np.uint8))
    archives = {
        "text, tar.gz": ("text", layouts.write_tar(folder / "a.tar.gz", imdb), small),
        "text, tar.xz": ("text", xz_tar(folder / "a.tar.xz", imdb), small),
        "text, zip": ("text", layouts.write_zip(folder / "a.zip", imdb), small),
        "image, tar.gz": ("image", layouts.write_tar(folder / "c.tar.gz",
                                                     layouts.cifar_files(rng, 2)), small),
        "enwik8, zip": ("enwik8", layouts.write_zip(folder / "e.zip", {"enwik8": text}),
                        dict(subset=True)),
        "wikitext103, zip": ("wikitext103", layouts.write_zip(folder / "w.zip",
                             layouts.wikitext_files()), dict(subset=True)),
        "retrieval, tar.gz": ("retrieval", layouts.write_tar(folder / "r.tar.gz",
                              layouts.aan_files()), dict(subset=True)),
        "retrieval-mine, zip": ("retrieval-mine", layouts.write_zip(folder / "m.zip",
                                layouts.corpus_files()), {}),
    }  # fmt: skip
    sources = {
        kind: (task, [path], path, options) for kind, (task, path, options) in archives.items()
    }
    sources["smnist, idx.gz"] = ("smnist", sorted(mnist.iterdir()), mnist, small)
    sources["text, jsonl.xz"] = ("text", sorted(jsonl.iterdir()), jsonl, small)
    return sources


def preparing(task: str, source: Path, root: Path, options: dict[str, object]) -> Judge:
    def judge() -> object:
        shutil.rmtree(root, ignore_errors=True)
        prepare(task, root, source=source, quiet=True, **options)
        found = arrays_of(task, root, **options)
        validate(task, root, options)
        return found

    return judge


def validate(task: str, root: Path, options: dict[str, object]) -> None:
    """What every prepared task promises: tokens and classes in range, floats that are finite."""
    found = load(task, root, **options)
    for split in found.splits.values():
        assert len(split) == found.examples[split.name] or found.spec.kind == "next_token"
        for key in ("inputs", "flat", "stream"):
            if key in split.arrays and len(split.arrays[key]):
                values = split.arrays[key].whole()
                if found.spec.inputs == "tokens":
                    assert values.min() >= 0 and values.max() < found.spec.vocab_size
                else:
                    assert np.isfinite(values).all()
        if "targets" in split.arrays and found.spec.kind == "classification":
            assert split.targets.min() >= 0 and split.targets.max() < found.spec.num_classes
        elif "targets" in split.arrays:
            assert np.isfinite(split.targets).all()


def test_damage_that_can_be_seen_is_never_accepted(tmp_path):
    total: Counter = Counter()
    for name, attacker, count in (
        ("weights", attack_weights, 500),
        ("checkpoints", attack_checkpoints, 400),
        ("data", attack_data, 500),
        ("interrupted", attack_interrupted, 200),
    ):
        (tmp_path / name).mkdir()
        total += attacker(tmp_path / name, count)
    (tmp_path / "sources").mkdir()
    for kind, (task, files, source, options) in compressed_sources(tmp_path / "sources").items():
        judge = preparing(task, source, tmp_path / "root", options)
        total += attack(kind, files, judge, 80)
    assert sum(total.values()) >= 2000
    record(
        "damaged files, sealed or compressed", seed=SEED, files=sum(total.values()),
        refused=total["refused"], read_to_the_same_content=total["the same"],
        accepted=total["accepted"], tracebacks=total["traceback"],
    )  # fmt: skip


# ---------------------------------------------------------------------- open


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


def command(words: list[str]) -> str:
    """Run a command; an error must be one line on standard error, and is raised as ValueError."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    text = out.getvalue() + err.getvalue()
    bad = [c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
    if bad:
        raise AssertionError(f"{words}: control characters reach the terminal: {bad[:3]}")
    if code:
        lines = err.getvalue().splitlines()
        if not lines or any(not line.startswith("longlens") for line in lines):
            raise AssertionError(f"{words}: no one-line error: {err.getvalue()!r}")
        raise ValueError(lines[-1])
    return text


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

    def listed() -> None:  # one damaged run must not hide the other
        out = folder / "out.json"
        out.unlink(missing_ok=True)
        try:
            assert "two" in command(["runs", str(runs)])
            assert "LaS" in command(["report", str(runs), "--format", "md"])
            command(["collect", str(runs), "-o", str(out)])
        except ValueError as error:
            if "different data" in str(error):  # the identity of its data was damaged
                raise
            raise AssertionError(f"one damaged run was fatal: {error}") from None
        found = json.loads(out.read_text())["records"]
        assert len(found) == 2 and found[1]["metrics"]["test"]["accuracy"] == 0.7
        with contextlib.suppress(ValueError):
            command(["show", str(runs / "one"), str(runs / "two")])

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

        def judge(path: Path = path, page: Path = page) -> None:
            command(["report", str(good), str(path), "-o", str(page)])
            if "MEGA" not in page.read_text():
                raise AssertionError("a damaged file hid another one")

        total += attack(f"results, {name}", [path], judge, count, opened=True)
    return total


TABLE = """\
base: {task: listops, steps: 10, mixer_options: {num_heads: 2}, lr: 0.001}
grid:
  mixer: [las, softmax]
  seed: [0, 1]
  mixer_options.bound: [0.001, 0.0001]
"""


def attack_tables(folder: Path, count: int) -> Counter:
    table, config = folder / "table.yaml", folder / "config.yaml"
    table.write_text(TABLE)
    config.write_text("task: listops\ndim: 16\nlr: 0.01\nmixer_options: {window: 3}\nname: mine\n")
    inside = folder / "runs"

    def cells() -> None:
        for cell in read_cells(str(table), str(inside)):
            options = TrainOptions(**json.loads(json.dumps(cell)))
            place = inside / (options.name or options.default_name())
            assert place.resolve().parent == inside.resolve()

    def options() -> None:
        from jsonargparse import ArgumentError

        try:
            found = parse(["--config", str(config)])
        except ArgumentError as error:
            raise ValueError(str(error)) from None  # which the command prints as one line
        json.dumps(found.to_json())

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
        refused=total["refused"], read_and_validated=total["validated"],
        tracebacks=total["traceback"],
    )  # fmt: skip
