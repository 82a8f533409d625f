"""``longlens data``: list, prepare, import, show and verify data sets."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, get_args

from longlens import tasks
from longlens.cli.parser import (
    Parser,
    UsageError,
    add_options,
    defaults_of,
    explained,
    key_values,
)
from longlens.cli.terminal import complain
from longlens.config import did_you_mean
from longlens.tables import Table
from longlens.tasks import gallery, stats
from longlens.tasks.build import default_workers, find_folder, make_options
from longlens.tasks.cache import cache_root
from longlens.tasks.errors import DataError
from longlens.tasks.files import human_bytes
from longlens.tasks.imported import IMPORTED, imported_folder, imported_names
from longlens.tasks.manifest import FILENAME, Manifest, read_manifest, verify_files
from longlens.tasks.registry import TASKS, find_task
from longlens.tasks.spec import SPLITS, Kind

USAGE = """usage: longlens data COMMAND …

  list [NAME …] [--json]    every task; of a NAME also its options, source and licence
  prepare NAME [options]    make a data set: generate it, download it, or take it from --from PATH
  import NAME [options]     make a task out of your own file (--from) or .npy arrays
  show NAME [options]       print or draw examples; lengths, class balance, duplicates; a gallery
  verify [NAME]             check every byte of one data set, or of all, against its sha256

Options of a task are given as in `longlens data show far-order --set distance=64`. Data live in
$LONGLENS_DATA, else in the platform's cache folder. `longlens data COMMAND --help` tells more.
"""


def _prepared(root: str | Path | None) -> dict[str, list[Path]]:
    """Folders of prepared data sets under ``root``, by task name."""
    folders: dict[str, list[Path]] = {}
    base = cache_root(root)
    for path in sorted(base.glob(f"*/*/{FILENAME}")) if base.is_dir() else []:
        folder = path.parent
        if not folder.name.endswith(".partial") and folder.parent.name != IMPORTED:
            folders.setdefault(folder.parent.name, []).append(folder)
    for name in imported_names(root):
        if (current := imported_folder(root, name)) is not None:
            folders[name] = [current]
    return folders


def list_tasks(words: Sequence[str]) -> None:
    """Print every task as a table; of those that are named everything."""
    parser = _parser("list", "Every task, or all that is known of some.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="show these alone, with options")
    parser.add_json()
    args = parser.parse_args(words)
    prepared = _prepared(args.root)
    rows: list[dict[str, Any]] = []
    for info in TASKS.values():
        missing = "to be downloaded or given" if info.needs_source else "generated on first use"
        state = "prepared" if info.name in prepared else missing
        rows.append({"name": info.name, "length": info.length, "classes": info.classes,
                     "examples": info.sizes, "data": state, "what": info.summary,
                     "source": info.source, "licence": info.licence})  # fmt: skip
    for name in sorted(set(prepared) - set(TASKS)):
        rows.append({"name": name, **_facts(read_manifest(prepared[name][0])), "data": "imported",
                     "what": f"yours, in {prepared[name][0]}", "source": "", "licence": ""}
                    )  # fmt: skip
    for name in args.names:
        if name not in {row["name"] for row in rows}:
            find_task(name)  # raises, with the near match
    if args.names:
        rows = [
            row | {"options": _options(row["name"])} for row in rows if row["name"] in args.names
        ]
    if args.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif args.names:
        for row in rows:
            options = row.pop("options")
            print("\n".join(f"{key:<10}{value}" for key, value in row.items()))
            if options:
                print("options   --set NAME=VALUE of `longlens data`, "
                      "--set task_options.NAME=VALUE of train and audit:")  # fmt: skip
            for name, option in options.items():
                print(f"  {name}={json.dumps(option['default'])}  {option['help']}")
    else:
        shown = ("name", "length", "classes", "examples", "data", "what")
        print(Table.of([{key: row[key] for key in shown} for row in rows]).text())
        print(f"\nexamples are of train / validation / test; cache: {cache_root(args.root)}")


def _options(name: str) -> dict[str, dict[str, Any]]:
    """The options of a task: what each is, and its default."""
    if name not in TASKS:
        return {}
    kind = TASKS[name].options
    docs = explained(kind)
    return {
        key: {"default": default, "help": docs.get(key, "")}
        for key, default in defaults_of(kind).items()
    }


def _facts(manifest: Manifest) -> dict[str, str]:
    """Length, classes and sizes of an imported task."""
    spec = manifest.spec
    channels = f" × {spec.channels}" if (spec.channels or 1) > 1 else ""
    shorter = "up to " if spec.pad_id is not None else ""
    return {
        "length": f"{shorter}{spec.max_length:,}{channels}" if spec.max_length else "any",
        "classes": str(spec.num_classes or "–"),
        "examples": " / ".join(f"{manifest.examples[split]:,}" for split in SPLITS),
    }


def _describe(manifest: Manifest) -> None:
    print(f"{manifest.name}: {human_bytes(manifest.bytes)}, identity {manifest.identity}")
    for split in SPLITS:
        files = [f for name, f in manifest.files.items() if name.startswith(f"{split}-")]
        size = human_bytes(sum(file.bytes for file in files))
        print(f"  {split:<10} {manifest.examples[split]:>11,}  {size:>9}")
    if manifest.spec.stands_in_for:
        print(f"  stands in for: {manifest.spec.stands_in_for}")
    for source in manifest.sources:
        if "task" in source:  # a note says it
            continue
        what = source.get("name") or f"{source['files']:,} files"
        print(f"  source: {what}, {human_bytes(source['bytes'])}, sha256 {source['sha256']}")
    for note in manifest.notes:
        print(f"  note: {note}")


def prepare(words: Sequence[str]) -> None:
    """Make a data set and print its counts and hashes."""
    parser = _task_parser("prepare", "Generate, download or read a data set.")
    parser.add_argument("--from", dest="source", metavar="PATH",
                        help="what you have: the official archive, its files, or arrays"
                        )  # fmt: skip
    parser.add_argument("--mirror", metavar="URL", help="an address that has the official file")
    parser.add_argument("--workers", type=int, default=default_workers(), help="default: all cores")
    args = parser.parse_args(words)
    options = key_values(args.changes)
    _describe(tasks.prepare(args.name, args.root, source=args.source, mirror=args.mirror,
                            workers=args.workers, **options))  # fmt: skip


def import_task(words: Sequence[str]) -> None:
    """Make a task out of the user's file or arrays and print its counts and hashes."""
    parser = _parser("import", "Make a task out of a file (--from), or of .npy arrays (--tokens).")
    parser.add_argument("name", help="under which you will load it")
    known = {
        name: p for name, p in inspect.signature(tasks.import_file).parameters.items()
        if name not in ("source", "name", "root")
    }  # fmt: skip
    if any(word.partition("=")[0] == "--from" for word in words):
        parser.add_argument("--from", dest="source", metavar="PATH", help=".npy, .npz, .csv, .tsv, "
                            ".ts, .parquet, a folder with a train and a test file, or ucr:NAME"
                            )  # fmt: skip
        add_options(parser, tasks.import_file, known)
        _describe(tasks.import_file(**vars(parser.parse_args(words))))
        return
    parser.add_argument("--from", metavar="PATH", help="a file or a folder, in the place of what "
                        "follows; its options: longlens data import NAME --from PATH --help"
                        )  # fmt: skip
    docs = explained(tasks.import_arrays)
    for option in ("tokens", "targets", "lengths", "split"):
        parser.add_argument(f"--{option}", metavar="FILE", help=f".npy file: {docs[option]}")
    others = ("kind", "num_classes", "vocab_size", "validation", "test", "seed", "replace")
    add_options(parser, tasks.import_arrays, others, {"kind": get_args(Kind)})
    given = vars(parser.parse_args(words))
    del given["from"]  # it was not given
    if given["tokens"] is None:
        raise UsageError("give a file (--from PATH) or arrays (--tokens FILE)")
    _describe(tasks.import_arrays(**given))


def show(words: Sequence[str]) -> None:
    """Print or draw a few examples and the task's statistics; write a gallery, if asked for."""
    parser = _task_parser("show", "Look at a data set.")
    parser.add_argument("--split", default="train", choices=SPLITS, help="default: train")
    parser.add_argument("--count", type=int, default=3, help="examples to print (default: 3)")
    parser.add_argument("--pick", type=int, default=0, help="seed of the choice of examples")
    parser.add_output("also write a gallery: .png or .html")
    args = parser.parse_args(words)
    split, count, pick = args.split, args.count, args.pick
    if count < 1:
        raise DataError(f"count must be 1 or more, got {count}")
    task = tasks.load(args.name, args.root, **key_values(args.changes))
    for title, text, _ in gallery.example_texts(task, split, count, pick):
        print(f"--- {title}\n{text}\n")
    facts, shared = stats.task_stats(task)
    for part, fact in facts.items():
        shares = " ".join(f"{share:.1%}" for share in fact.classes)
        if task.spec.kind == "next_token":
            print(f"{part}: {fact.tokens:,} tokens; the most frequent ones make up {shares}")
            continue
        print(f"{part}: {fact.examples:,} examples, {fact.tokens:,} tokens, "
              f"lengths {fact.shortest:,}–{fact.longest:,}, repeated {fact.repeated}")  # fmt: skip
        if shares:
            print(f"  classes {shares}")
        most = max((number for _, _, number in fact.histogram), default=1)
        for low, high, number in fact.histogram:
            print(f"  {low:>7,}–{high:<7,} {'█' * round(40 * number / most)} {number:,}")
    for (first, second), number in shared.items():
        print(f"in both {first} and {second}: {number}")
    if args.output is not None:
        gallery.write_gallery(task, args.output, split, max(count, 16), pick, facts)
        print(f"gallery: {args.output}")


def verify(words: Sequence[str]) -> None:
    """Check every file of one data set, or of every prepared one; name every bad one."""
    args = _task_parser("verify", "Check every byte.", nargs="?").parse_args(words)
    name, root, options = args.name, args.root, key_values(args.changes)
    if name is None:
        folders = [folder for group in _prepared(root).values() for folder in group]
    elif (imported := imported_folder(root, name)) is not None:
        folders = [imported]
    else:
        info = find_task(name)
        folders = [find_folder(info, root, make_options(info, options))]
    damaged = []
    for folder in folders:
        try:
            manifest = read_manifest(folder)
            verify_files(folder, manifest)
            print(f"{manifest.name}: {len(manifest.files)} files as written, {manifest.identity}")
        except (DataError, OSError) as error:  # the others are looked at all the same
            damaged.append(error)
    for problem in damaged[:-1]:
        complain("longlens data", problem)
    if damaged:
        raise damaged[-1]
    if not folders:
        print(f"nothing is prepared under {cache_root(root)}")


def _parser(command: str, about: str, settable: Container[str] = ()) -> Parser:
    parser = Parser(f"data {command}", about, settable=settable)
    parser.add_argument("--root", metavar="FOLDER", help="the cache folder")
    return parser


def _task_parser(command: str, about: str, **more: Any) -> Parser:
    parser = _parser(
        command, about, {name for info in TASKS.values() for name in _options(info.name)}
    )
    parser.add_argument("name", help="of `longlens data list`, another retrieval-NAME, or what you "
                        "imported", **more)  # fmt: skip
    parser.add_set("an option of the task, of `longlens data list NAME`")
    return parser


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "list": list_tasks,
    "prepare": prepare,
    "import": import_task,
    "show": show,
    "verify": verify,
}


def main(argv: Sequence[str]) -> int:
    """Run ``longlens data``; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if argv[0] not in COMMANDS:
        raise UsageError(f"command must be one of {', '.join(COMMANDS)}, got {argv[0]!r}"
                         f"{did_you_mean(argv[0], COMMANDS)}")  # fmt: skip
    COMMANDS[argv[0]](argv[1:])
    return 0
