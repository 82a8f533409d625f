"""``longlens report``: a page, or tables, from files of results and folders of runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from longlens.charts import standalone
from longlens.cli.parser import Parser
from longlens.cli.terminal import complain
from longlens.files import write_output
from longlens.report.atlas import draw_atlas
from longlens.report.audit_chart import draw_audit
from longlens.report.bench import bench_pictures
from longlens.report.figures import chances, overview
from longlens.report.formats import BLOCK, update_blocks, write_tables
from longlens.report.measurements import profiles
from longlens.report.results import Results, read_results, show_all

WIDTH = 640  # of pictures that are files
EPILOG = """examples:
  longlens report                                     report.html from results/
  longlens report results/table2.json runs -o page.html
  longlens report --format markdown --only table2     a table for a README
  longlens report --format csv                        every cell with its conditions
  longlens report --pictures docs/pictures            charts as SVG files
  longlens report --update README.md                  write the tables inside README.md anew"""


def parser() -> Parser:
    """The command line of ``longlens report``."""
    about = "Show results: published numbers beside ours, curves, speed, failures."
    p = Parser("report", about, EPILOG)
    p.add_argument(
        "records", nargs="*",
        help="files of results (.json, .csv), folders of them, folders of runs (default: results, "
        "else runs)",
    )  # fmt: skip
    p.add_argument(
        "--format", default=None, choices=("html", "markdown", "csv"),
        help="html is one page with everything, the others are its tables (default: html)",
    )  # fmt: skip
    p.add_output("default: report.html for html; the others are printed")
    p.add_argument(
        "--only", action="append", default=[], metavar="NAME",
        help="these results only; may be given again",
    )  # fmt: skip
    p.add_argument("--title", default="longlens report", help="the page's title")
    p.add_argument(
        "--pictures", nargs="+", default=None, metavar=("FOLDER", "NAME"),
        help="write charts as SVG, all or those of these names; no page unless -o",
    )  # fmt: skip
    p.add_argument(
        "--update", nargs="+", type=Path, default=[], metavar="FILE",
        help="write the blocks <!-- table: FILE --> … <!-- end --> of Markdown files anew",
    )  # fmt: skip
    return p


def main(argv: Sequence[str]) -> int:
    """Run ``longlens report``; returns the exit code."""
    args = parser().parse_args(argv)
    for path in args.update:
        _update(path)
    shown = args.format or args.output or not (args.update or args.pictures)
    if not shown and not args.pictures:
        return 0
    results = read_results(args.records or [_folder()])
    if args.only:
        results = results.only(args.only)
    if args.pictures:
        folder, *names = args.pictures
        drawn, results = show_all(results, lambda some: dict(pictures(some)))
        if unknown := [name for name in names if f"{name}.svg" not in drawn]:
            known = ", ".join(name.removesuffix(".svg") for name in drawn)
            raise ValueError(f"pictures: there is no {unknown[0]!r}; there are {known}")
        for name in [f"{name}.svg" for name in names] or drawn:
            _write(Path(folder, name), drawn[name])
        if not shown:
            return _skipped(results)
    form = args.format or "html"
    if form == "html":
        from longlens.report.build import build_page  # the tables need no jinja2

        output = args.output or Path("report.html")
        page, results = show_all(results, lambda some: build_page(some, args.title))
        _write(output, page)
        print(f"{output}: {len(page.encode()) / 1e6:.2f} MB, {_counted(results)}")
    else:
        text, results = show_all(results, lambda some: write_tables(some, form))
        if args.output is None:
            print(text, end="")
        else:
            _write(args.output, text)
    return _skipped(results)


def _folder() -> str:
    """What is shown where nothing is named."""
    found = [name for name in ("results", "runs") if Path(name).is_dir()]
    if not found:
        raise ValueError("there is neither results/ nor runs/ here; `longlens train` and `longlens "
                         "run` make runs/, `longlens collect` makes results/")  # fmt: skip
    return found[0]


def _skipped(results: Results) -> int:
    for problem in results.skipped:
        complain("longlens report: skipped", problem)
    return 0


def _counted(results: Results) -> str:
    runs = sum(len(experiment.runs) for experiment in results.experiments)
    return (
        f"{len(results.experiments)} experiments with {runs} runs, "
        f"{len(results.measurements)} audits and measurements, {len(results.benches)} benchmarks"
    )


def _write(path: Path, text: str) -> None:
    try:
        write_output(path, text.encode())
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def pictures(results: Results) -> Iterator[tuple[str, str]]:
    """Yield the charts that are files of their own: their names and SVG."""
    known = chances(results)
    for experiment in results.experiments:
        drawn = [] if experiment.quick else overview(experiment, experiment.title, WIDTH, known)
        for column, picture in drawn:
            name = re.sub(r"\W+", "-", f"{experiment.name} {column}".strip().lower()).strip("-")
            yield f"{name}.svg", standalone(picture)
    for bench in results.benches:
        for name, picture in bench_pictures(bench, WIDTH):
            yield f"{bench.name}_{name}.svg", standalone(picture)
    for measurement in results.measurements:
        if measurement.kind == "audit" and measurement.values.get("curve"):
            yield f"{measurement.name}.svg", draw_audit(measurement.values)
        if measurement.kind == "lens":
            for view, picture in profiles(measurement.values, WIDTH):
                yield f"{measurement.name}_{view}.svg", standalone(picture)
        if measurement.kind == "atlas" and measurement.values["tasks"]:
            yield f"{measurement.name}.svg", draw_atlas(measurement.values)


def _update(path: Path) -> None:
    try:
        before = path.read_text()
    except OSError as error:
        raise ValueError(f"update: {path} cannot be read: {error.strerror}") from None
    after = update_blocks(before, Path.cwd())
    if after != before:
        _write(path, after)
    state = "written anew" if after != before else "unchanged"
    print(f"{path}: {len(BLOCK.findall(after))} tables, {state}")
