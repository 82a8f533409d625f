"""``longlens collect RUNS/NAME``: an experiment's records as one compact file under results/."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from longlens.cli.parser import Parser
from longlens.cli.terminal import complain
from longlens.runs.results import check_same_data, collect, merge, read_table, write_results
from longlens.untrusted import check_folder_name

EPILOG = """The file holds labels, published numbers and of each run its options, provenance, data,
metrics, speed and thinned curves; no weights. If it exists, what is new is merged into it: a run
with the same row, column and seed replaces an older one, everything else stays. Failed runs are
kept as failed. Reads records only and needs no torch.

  longlens collect runs/table2                     # -> results/table2.json
  longlens collect /mnt/gpu/runs/table2 runs/table2 -o results/table2.json"""


def main(argv: Sequence[str]) -> int:
    """Run ``longlens collect``; returns the exit code."""
    parser = Parser(
        "collect", "Collect the records of an experiment into one compact file.", EPILOG
    )
    parser.add_argument("folders", nargs="+", metavar="RUNS/NAME", help="folders of an experiment")
    parser.add_output("default: results/NAME.json")
    args = parser.parse_args(argv)
    problems: list[str] = []
    table = collect(args.folders[0], problems)
    for folder in args.folders[1:]:
        table = merge(collect(folder, problems), table)
    for problem in problems:
        complain("longlens collect", problem)
    if table.quick and args.output is None:
        raise ValueError(
            f"{args.folders[0]} holds runs of --quick, which are no results; give -o FILE to "
            "collect them all the same"
        )
    name = check_folder_name(table.name, "the experiment's name")
    path = args.output or Path(f"results/{name}.json")
    if path.exists():
        table = merge(table, read_table(path))
    check_same_data(table.records)
    write_results(path, table)
    states = Counter(record.status for record in table.runs)
    counted = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    print(f"{path}: {len(table.runs)} runs ({counted or 'none yet'})")
    return 0
