"""``longlens audit TASK``: does a task need long range? Bounded beside global models."""

from __future__ import annotations

import inspect
import json
import sys
import time
from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longlens.cli.parser import Parser, UsageError, command_line, ending_in, key_values
from longlens.cli.terminal import complain
from longlens.cli.train import NAMES, inside
from longlens.runs.cell import with_options
from longlens.tasks.own import is_file

EPILOG = """examples:
  longlens audit listops                               five minutes: probes, then trained models
  longlens audit text --budget 10m --no-training       probes alone
  longlens audit image --model-budget 4m --fields 5,17,61,241,513,global --seeds 3
  longlens audit far-order --set task_options.distance=512 --fields 61,835,global --steps 3000
  longlens audit text --mixers s4d,las --set mixer_options.las.window=9
  longlens audit mine --set dim=64 --set depth=6       a task that you imported
  longlens audit series.csv --set task_options.label=class    a file: imported, then audited
  longlens audit --judge results/audit_*.json          the verdicts of records, by today's rules

Without --model-budget, --steps, --epochs and --quick an audit takes the time of --budget in all,
begins with what is cheap and says what is known as it goes; Ctrl-C ends it with the verdict so far.
With one of them every model of --fields and --mixers is trained for that long, with all seeds.

--fields with "global" also trains the models of --mixers; without it they are left out. The same
command again goes on where it was cut off, and costs nothing where all is done."""

# Options of the command that are options of the audit under the same name.
AS_GIVEN = ("seeds", "steps", "epochs", "diagnostics", "quick", "runs", "root", "progress",
            "workers")  # fmt: skip


def parser() -> Parser:
    """The command line of ``longlens audit``."""
    p = Parser(
        "audit",
        "Audit a task: what is reached without training, by convolutions of bounded receptive "
        "field, and by global models under the same budget.",
        EPILOG,
        settable=NAMES,
    )
    p.add_argument("task", nargs="?",
                   help="any task with classes, of `longlens data list` or imported; or a file, "
                   "imported first (.npz .csv .tsv .ts .parquet, a folder, ucr:NAME)")  # fmt: skip
    p.add_argument("--judge", nargs="+", type=Path, default=[], metavar="FILE",
                   help="train nothing: verdicts and certificates of these records, made anew "
                   "from what was measured")  # fmt: skip
    p.add_argument("--fields", help="receptive fields, as in 5,17,61,global (default: 3 … length)")
    p.add_argument("--mixers", default="s4d", help="global models, as in s4d,las (default: s4d)")
    p.add_argument("--seeds", type=int, help="how many (default: 3, quick: 2)")
    long = p.add_argument_group("how long")
    long.add_argument("--budget", help="time of the whole audit, as in 60s or 10m (default: 5m)")
    p.add_argument("--no-training", action="store_true",
                   help="only what needs no trained network")  # fmt: skip
    long.add_argument("--model-budget", help="train all models, each for so long, as in 90s or 8m")
    long.add_argument("--steps", type=int, help="or for so many steps")
    long.add_argument("--epochs", type=float, help="or for so many epochs")
    long.add_argument("--quick", action="store_true", help="small models and data, some minutes")
    p.add_set("an option of `longlens train` for all models, of the task (task_options.KEY) or of "
              "a global mixer (mixer_options.MIXER.KEY)")  # fmt: skip
    p.add_argument("--data", action="append", default=[], help=SUPPRESS)  # in records of old
    p.add_argument("--no-diagnostics", action="store_false", dest="diagnostics",
                   help="of what needs no training only the linear probes, the verdict's floor"
                   )  # fmt: skip
    p.add_output("where to write (default: results/audit_TASK.json)", ".json")
    p.add_argument("--plot", type=ending_in(".svg"), metavar="FILE",
                   help="the picture (default: as --output, ending in .svg)")  # fmt: skip
    where = p.add_argument_group("where")
    where.add_argument("--runs", default="runs", help="folder of records (default: runs)")
    where.add_argument("--root", help="the data cache")
    where.add_argument("--workers", type=int, default=1, metavar="N", help="models at a time")
    p.add_argument("--quiet", action="store_false", dest="progress", help="no progress")
    return p


def read_fields(text: str | None) -> tuple[tuple[int, ...] | None, bool]:
    """The receptive fields, and whether global models are wanted.

    >>> read_fields("5,61,global"), read_fields(None), read_fields("global")
    (((5, 61), True), (None, True), ((), True))
    """
    if text is None:
        return None, True
    words = [word.strip() for word in text.split(",") if word.strip()]
    numbers = [word for word in words if word != "global"]
    if not words or not all(word.isdigit() for word in numbers):
        raise ValueError(f"fields must be numbers and 'global', as in 5,17,global; got {text!r}")
    return tuple(map(int, numbers)), "global" in words


def judge_files(paths: Sequence[Path]) -> None:
    """Write verdicts and certificates of records anew."""
    from longlens.files import replace_file, to_json
    from longlens.lens.audit.judge import judge
    from longlens.lens.audit.run import certificate_of

    for path in paths:
        try:
            report = json.loads(path.read_text())
        except OSError as error:
            raise ValueError(f"judge: {path} cannot be read: {error.strerror}") from None
        except ValueError:
            report = None
        if not isinstance(report, dict) or report.get("kind") != "audit":
            raise ValueError(f"judge: {path} is no record of an audit")
        before = (report.get("verdict") or {}).get("text")
        report |= judge(report)
        report["certificate"] = certificate_of(report["task"], report["data"]["options"])
        replace_file(path, to_json(report))
        after = report["verdict"]["text"]
        print(f"{path}, {'changed' if after != before else 'unchanged'}: {after}")


def bring(source: str, options: dict[str, Any], root: str | None) -> str:
    """Import a file, say what was inferred, and return the name of the task."""
    from longlens.tasks import import_file
    from longlens.tasks.own import bring_ucr

    if source.startswith("ucr:") and not options:
        return bring_ucr(source, root)
    known = sorted({*list(inspect.signature(import_file).parameters)[1:]} - {"for_audit"})
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"task_options.{unknown[0]}: of a file it takes {', '.join(known)}")
    values = {"for_audit": True, "root": root, **options}
    if "label" in values:  # a number of a column is a name, too
        values["label"] = str(values["label"])
    manifest = import_file(source, **values)
    print(f"{manifest.name}: {'; '.join(manifest.notes)}", file=sys.stderr, flush=True)
    return manifest.name


def main(argv: Sequence[str]) -> int:
    """Run ``longlens audit``; returns the exit code."""
    began = time.monotonic()
    args = parser().parse_args(argv)
    if bool(args.judge) == (args.task is not None):
        raise UsageError("give a task to audit, or --judge and records of audits")
    if args.judge:
        judge_files(args.judge)
        return 0
    of_task = [f"task_options.{word}" for word in args.data]
    for name in key_values(args.changes):
        full = inside(name, args.task) if name.partition(".")[0] not in NAMES else None
        if full and full not in NAMES:
            raise UsageError(f"{name!r} is no option of train; did you mean --set {full}=…?")
    given = with_options({}, key_values([*args.changes, *of_task]))
    task_options, mixer_options = (given.pop(f"{of}_options", {}) for of in ("task", "mixer"))
    if not all(isinstance(options, dict) for options in mixer_options.values()):
        raise UsageError(
            "options of a global mixer are given as --set mixer_options.MIXER.KEY=VALUE"
        )
    if is_file(args.task):
        args.task, task_options = bring(args.task, task_options, args.root), {}
    from longlens.files import to_json, write_output
    from longlens.lens.audit import AuditOptions, audit, timed_audit
    from longlens.report.audit_chart import draw_audit
    from longlens.report.audits import audit_text
    from longlens.training.options import TrainOptions

    timed = not (args.quick or args.model_budget or args.steps or args.epochs)
    if args.budget and not timed:
        raise ValueError("give one of budget (of the whole audit) and quick, model-budget, steps, "
                         "epochs (of each model)")  # fmt: skip
    fields, with_global = read_fields(args.fields)
    with_global = with_global and not args.no_training
    mixers = tuple(filter(None, args.mixers.split(","))) if with_global else ()
    training = TrainOptions.from_values(given).to_json()  # of the right types
    options = AuditOptions(
        task=args.task,
        task_options=task_options,
        fields=fields,
        mixers=mixers,
        mixer_options=mixer_options,
        training={name: training[name] for name in given},
        budget=args.model_budget,
        **{name: getattr(args, name) for name in AS_GIVEN},
    )
    output = args.output or Path(f"results/audit_{args.task}.json")
    plot = args.plot or output.with_suffix(".svg")
    command = command_line("audit", argv)

    def save(report: dict[str, Any]) -> None:
        write_output(output, to_json({**report, "command": command}))
        if report.get("curve"):
            write_output(plot, draw_audit(report).encode())

    if timed:
        report = timed_audit(options, args.budget or "5m", save, began)
    else:
        report = audit(options, save)
    print(audit_text(report), output, *([plot] if report.get("curve") else []), sep="\n")
    failed = [p for p in [*report["points"], *report["global"]] if p["status"] == "failed"]
    for point in failed:
        complain(f"{point['model']}, seed {point['seed']} failed", point["error"])
    return 1 if failed else 0
