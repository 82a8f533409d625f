"""``longlens evaluate RUN``: loss and metric of a finished run, on any split or another task."""

from __future__ import annotations

import json
from collections.abc import Sequence

from longlens.cli.parser import Parser, UsageError, key_values
from longlens.report.tables import render, show
from longlens.runs.cell import with_options

EPILOG = """examples:
  longlens evaluate runs/listops-las-0-5e1cd8ed                   test, once more
  longlens evaluate runs/listops-las-0-5e1cd8ed --split validation --json
  longlens evaluate runs/listops-las-0-5e1cd8ed --where operator=3   sums alone (SM), by depth
  longlens evaluate runs/far-order-las-0-5e1c --set task_options.distance=64   a greater distance
  longlens evaluate runs/text-las-0-5e1cd8ed --task mine          your own data, imported"""


def main(argv: Sequence[str]) -> int:
    """Run ``longlens evaluate``; returns the exit code."""
    parser = Parser("evaluate", "Measure a finished run again.", EPILOG, settable=["task_options"])
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--task", metavar="NAME", help="another task (default: the run's own)")
    parser.add_set("an option of the task: task_options.KEY")
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"),
                        help="default: test")  # fmt: skip
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="EXTRA=VALUE",
        help="only these examples, as in operator=3; may be given again",
    )
    parser.add_argument("--length", type=int, help="cut examples to this many positions")
    parser.add_argument(
        "--views",
        type=int,
        metavar="N",
        help="average over each example and N-1 copies, augmented as in training (default: the "
        "run's, of another task 1)",
    )
    parser.add_argument("--batch_size", type=int, help="examples at once (default: the run's)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--root", help="the data cache (default: the run's)")
    parser.add_json()
    args = parser.parse_args(argv)
    changes = with_options({}, key_values(args.changes))
    task_options = changes.pop("task_options", {})
    if changes:
        name = next(iter(changes))
        raise UsageError(f"--set {name}: only task_options.KEY can be set, the model is the run's")
    from longlens.runs.run import find_device
    from longlens.runs.trained import evaluate_run

    values = evaluate_run(
        args.run, args.split, where=key_values(args.where, "--where"), task=args.task,
        task_options=task_options, length=args.length, batch_size=args.batch_size,
        views=args.views, device=find_device(args.device).type, root=args.root,
    )  # fmt: skip
    if args.json:
        print(json.dumps(values, indent=1))
        return 0
    groups = {name: table for name, table in values.items() if isinstance(table, dict)}
    plain = {name: value for name, value in values.items() if name not in groups}
    width = max(12, max(map(len, plain)) + 2)
    for name, value in plain.items():
        print(f"{name:<{width}}{show(value)}")
    for name, table in groups.items():
        print(f"\n{render([{name: key, **entry} for key, entry in table.items()])}")
    return 0
