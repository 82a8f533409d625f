"""Helper process: SIGKILL at random moments, check what is left, start again until the end.

Usage: kills.py KIND FOLDER KILLS SEED, KIND one of train, prepare, import, runs and commands.
Prints counts as JSON; fails where something is lost or a result differs from that of a process that
was left alone. All but `commands` kill forks of this process, so that none of them has to import
torch first; `commands` kills `longlens` itself.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from longlens.tasks import import_arrays, load, prepare
from longlens.tasks.imported import imported_folder
from tests.tasks import layouts

Counts = dict[str, int]


def fork(action: Callable[[], object]) -> int:
    """Do something in a child process, which leads a group of its own."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), 1)
        found = action()
        code = found if isinstance(found, int) else 0
    finally:
        os._exit(code)


def until_it_ends(action: Callable[[], object], longest: float, chance: random.Random):
    """Start ``action``, kill it up to eight times, then leave it alone; yield at every kill."""
    for _ in range(chance.randint(1, 8)):
        if survives(action, chance.uniform(0, longest)):
            return
        yield
    seconds_alone(action)


def survives(action: Callable[[], object], seconds: float) -> bool:
    """Start ``action``, kill it after ``seconds``; True if it had come to its end by then."""
    child = fork(action)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            assert os.waitstatus_to_exitcode(status) == 0, f"{action} failed"
            return True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code == 0


def seconds_alone(action: Callable[[], object]) -> float:
    """How long it takes, undisturbed."""
    began = time.perf_counter()
    assert os.waitstatus_to_exitcode(os.waitpid(fork(action), 0)[1]) == 0
    return time.perf_counter() - began


def kill_train(folder: Path, wanted: int, chance: random.Random) -> Counts:
    """Runs of five kinds; no kill may lose a checkpoint, and all end bit-identical."""
    from longlens.runs import train_run
    from longlens.training import checkpoint
    from tests.training.kills import VARIANTS
    from tests.training.runs import outcome, tiny

    kills = later = runs = 0
    kinds = [{"steps": 48, **changes} for changes in VARIANTS]
    alone = [tiny(folder, **changes, name=f"alone-{n}") for n, changes in enumerate(kinds)]
    for one in alone:
        load(one.task, one.root, **one.task_options)  # to be trained on, no part of the time
    took = [seconds_alone(lambda one=one: train_run(one)) for one in alone]
    while kills < wanted:
        kind = runs % len(kinds)
        options = tiny(folder, **kinds[kind], name=f"killed-{runs}")
        here = folder / "runs" / f"killed-{runs}"
        reached: dict[str, int] = {}
        for _ in until_it_ends(lambda o=options: train_run(o), took[kind], chance):
            kills += 1
            for stage in ("", "pretrain"):
                found = checkpoint.load(here / stage / "checkpoints")
                step = -1 if found is None else found.facts["step"]
                done = '"status": "finished"' in _text(here / stage / "record.json")
                assert found is None or not found.damaged, found.damaged
                assert done or step >= reached.get(stage, -1), "a checkpoint is lost"
                reached[stage] = step
            later += max(reached.values()) >= 0
        assert outcome(here) == outcome(folder / "runs" / f"alone-{kind}"), options
        runs += 1
    return {"kills": kills, "kills_after_a_checkpoint": later, "runs_bit_identical": runs}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def kill_prepare(folder: Path, wanted: int, chance: random.Random) -> Counts:
    """Data sets from generators and from files; each is whole or not there, and ends the same."""
    source = layouts.write_folder(folder / "source", layouts.aan_files(40))
    small = {"validation": 300, "test": 300}
    sets = [
        ("listops", {"train": 3000, **small, "min_length": 5, "max_length": 60}, None),
        ("cumsum", {"length": 64, "train": 20_000, **small}, None),
        ("far-order", {"distance": 16, "train": 6000, **small}, None),
        ("retrieval", {"subset": True}, source),
    ]
    clean = folder / "clean"
    took = [
        seconds_alone(lambda n=name, o=options, s=given: prepare(n, clean, source=s, **o))
        for name, options, given in sets
    ]
    kills = made = 0
    while kills < wanted:
        kind = made % len(sets)
        name, options, given = sets[kind]
        work = folder / f"work-{made}"

        def action(work=work, name=name, options=options, given=given):
            prepare(name, work, source=given, quiet=True, **options)

        for _ in until_it_ends(action, took[kind], chance):
            kills += 1
            whole = [p for p in work.glob(f"{name}/*") if not p.name.endswith(".partial")]
            if any(path.is_dir() and not path.name.startswith(".") for path in whole):
                load(name, work, **options)  # verifies every byte
        left, right = (
            {path.relative_to(root): path.read_bytes() for path in root.glob(f"{name}/*/*")}
            for root in (work, clean)
        )
        assert left == right, (name, sorted(set(left) ^ set(right)))
        shutil.rmtree(work)
        made += 1
    return {"kills": kills, "data_sets_bit_identical": made}


def kill_import(folder: Path, wanted: int, chance: random.Random) -> Counts:
    """Replace imported data, with a reader at work: the old or the new, and nobody else's."""
    rng = np.random.default_rng(chance.randrange(2**32))
    tokens, targets = rng.integers(0, 99, (40_000, 32)), np.arange(40_000) % 2
    other = import_arrays("m.partial", tokens[:100], targets[:100], root=folder).identity

    def action(number: int) -> None:
        import_arrays("m", tokens + number, targets, root=folder, replace=True)

    known = {}
    for number in range(2):
        alone = import_arrays("m", tokens + number, targets, root=folder / f"alone-{number}")
        known[alone.identity] = number
    took = seconds_alone(lambda: action(0))
    reads, results = folder / "reads", (folder / "stop")

    def reader() -> None:
        count = 0
        while not results.exists():
            assert load("m", folder).identity in known
            count += 1
            reads.write_text(str(count))

    watching = fork(reader)
    kills = imports = replaced = 0
    while kills < wanted:
        now = known[load("m", folder).identity]
        new = 1 - now
        ended = survives(lambda new=new: action(new), chance.uniform(0, 2 * took))
        found = known[load("m", folder).identity]  # verifies every byte
        assert found == new if ended else found in (now, new)
        assert load("m.partial", folder).identity == other
        kills, imports, replaced = kills + (not ended), imports + ended, replaced + (found == new)
    results.touch()
    assert os.waitstatus_to_exitcode(os.waitpid(watching, 0)[1]) == 0, "the reader failed"
    action(1 - known[load("m", folder).identity])
    home = imported_folder(folder, "m").parent
    assert len(list(home.iterdir())) == 1, "something is left over"
    return {
        "kills": kills,
        "imports_that_ended": imports + 1,
        "times_replaced": replaced + 1,  # some of them by a process that was killed afterwards
        "reads_meanwhile": int(reads.read_text()),
    }


def kill_runs(folder: Path, wanted: int, chance: random.Random) -> Counts:
    """`longlens run TABLE` with the worker in its own process: all cells, bit-identical."""
    from longlens.cli.main import main
    from tests.training.runs import outcome, tiny

    cells = []
    for number, changes in enumerate(({}, {"mixer": "s4d", "mixer_options": {}}, {"seed": 1})):
        options = tiny(folder, **changes, steps=12).to_json()
        cells.append({k: v for k, v in options.items() if k != "runs"} | {"name": f"cell-{number}"})
    table = folder / "table.json"
    table.write_text(json.dumps(cells))

    def action(runs: Path) -> int:
        return main(["run", str(table), "--runs", str(runs)])

    alone = folder / "alone"
    took = seconds_alone(lambda: action(alone))
    kills = tables = 0
    while kills < wanted:
        runs, finished = folder / f"runs-{tables}", {}
        for _ in until_it_ends(lambda r=runs: action(r), took, chance):
            kills += 1
            for path in runs.glob("cell-*/record.json"):
                content = path.read_bytes()
                assert finished.get(path, content) == content, "a finished run has changed"
                if json.loads(content)["status"] == "finished":
                    finished[path] = content
        for cell in cells:
            assert outcome(runs / cell["name"]) == outcome(alone / cell["name"])
        tables += 1
    return {"kills": kills, "tables": tables, "runs_bit_identical": tables * len(cells)}


def kill_commands(folder: Path, wanted: int, chance: random.Random) -> Counts:
    """`longlens data import`, `data prepare` and `train` themselves, from the first import on."""
    np.save(folder / "x.npy", np.arange(400_000).reshape(-1, 20) % 50)
    np.save(folder / "y.npy", np.arange(20_000) % 2)
    arrays = ["--tokens", str(folder / "x.npy"), "--targets", str(folder / "y.npy")]
    data = ["--set", "length=64", "--set", "train=20000"]
    model = ["--mixer", "conv", "--dim", "8", "--depth", "1", "--steps", "40", "--log_every", "2"]
    quiet = ["--checkpoint_seconds", "0", "--name", "a", "--progress", "false"]
    commands = [
        ["data", "import", "m", *arrays, "--replace", "true"],
        ["data", "prepare", "cumsum", *data, "--workers", "2"],
        ["train", "--task", "m", *model, *quiet],
    ]
    kills = ended = 0

    def start(words: list[str], root: Path) -> subprocess.Popen[bytes]:
        places = ["--root", str(root)] + (
            ["--runs", str(root / "runs")] if words[0] == "train" else []
        )
        return subprocess.Popen(
            [sys.executable, "-m", "longlens.cli.main", *words, *places],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    took = []
    for words in commands:
        began = time.perf_counter()
        assert start(words, folder / "alone").wait() == 0, words
        took.append(time.perf_counter() - began)
    for kind, words in enumerate(commands):
        share, done = wanted * (kind + 1) // len(commands), False
        while kills < share or not done:
            process = start(words, folder / "killed")
            try:
                limit = chance.uniform(0, took[kind]) if kills < share else None
                done = process.wait(limit) == 0
                assert done, words
                ended += 1
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                kills += 1
    from tests.training.runs import outcome

    one, other = folder / "alone", folder / "killed"
    for name, options in (("m", {}), ("cumsum", {"length": 64, "train": 20_000})):
        assert load(name, one, **options).identity == load(name, other, **options).identity
    left, right = outcome(one / "runs" / "a"), outcome(other / "runs" / "a")
    for found in (left, right):
        found["record"].options.pop("root")
    assert left == right
    return {"kills": kills, "commands_ended": ended}


KINDS = {
    "train": kill_train,
    "prepare": kill_prepare,
    "import": kill_import,
    "runs": kill_runs,
    "commands": kill_commands,
}


def main() -> None:
    os.environ["LONGLENS_COMMIT"] = "killed"  # asking git takes longer than many a run
    kind, folder, wanted, seed = sys.argv[1:]
    if kind in ("train", "runs"):
        import torch

        torch.set_num_threads(1)
    counts = KINDS[kind](Path(folder), int(wanted), random.Random(int(seed)))
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
