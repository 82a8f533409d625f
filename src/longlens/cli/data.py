"""``longlens data``: list, prepare, import, show and verify data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from jsonargparse import ArgumentError, ArgumentParser

from longlens import tasks
from longlens.cli.terminal import complain
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

  list                      every task: length, classes, sizes, source, licence
  prepare NAME [options]    make a data set: generate it, download it, or take it from --from PATH
  import NAME [options]     make a task out of your own file (--from) or .npy arrays
  show NAME [options]       print or draw examples; lengths, class balance, duplicates; a gallery
  verify [NAME]             check every byte of one data set, or of all, against its sha256

`longlens data COMMAND --help` (for prepare, show and verify: `longlens data prepare NAME --help`,
since options depend on the task). Data live in $LONGLENS_DATA, else in the platform's cache folder.
"""


FLAGS = ("--subset", "--color", "--replace")  # alone they mean true


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
    """Print every task with its length, classes, sizes, source and licence; mark prepared ones."""
    (root,), _ = _parsed(_parser("list", "Every task."), words, "root")
    prepared = _prepared(root)
    for info in TASKS.values():
        mark = "prepared" if info.name in prepared else "generated on first use"
        if info.needs_source and info.name not in prepared:
            mark = "not prepared"
        print(f"{info.name}  [{mark}]\n    {info.summary}")
        print(f"    length {info.length}; classes {info.classes}; train/val/test {info.sizes}")
        print(f"    source: {info.source}; licence: {info.licence}")
    for name in sorted(set(prepared) - set(TASKS)):
        print(f"{name}  [prepared]\n    {prepared[name][0]}")
        _facts(read_manifest(prepared[name][0]))
    print(f"cache: {cache_root(root)}")


def _facts(manifest: Manifest) -> None:
    """Length, classes and sizes of an imported task, in one line."""
    spec = manifest.spec
    what = f"{spec.num_classes} classes" if spec.num_classes else spec.kind.replace("_", " ")
    channels = f" × {spec.channels} channels" if (spec.channels or 1) > 1 else ""
    sizes = "/".join(f"{manifest.examples[split]:,}" for split in SPLITS)
    shorter = "up to " if spec.pad_id is not None else ""
    print(f"    length {shorter}{spec.max_length:,}{channels}; {what}; train/val/test {sizes}")


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
    parser = _task_parser("prepare", "Generate, download or read a data set.", words)
    have = "what you have: the official archive, its files, or arrays"
    parser.add_argument("--from", type=str | None, default=None, help=have)
    elsewhere = "an address that has the official file"
    parser.add_argument("--mirror", type=str | None, default=None, help=elsewhere)
    parser.add_argument("--workers", type=int | None, default=None, help="default: all cores")
    (name, root, source, mirror, workers), options = _parsed(
        parser, words, "name", "root", "from", "mirror", "workers"
    )
    workers = default_workers() if workers is None else workers
    _describe(tasks.prepare(name, root, source=source, mirror=mirror, workers=workers, **options))


def import_task(words: Sequence[str]) -> None:
    """Make a task out of the user's file or arrays and print its counts and hashes."""
    parser = _parser("import", "Make a task out of a file (--from), or of .npy arrays (--tokens).")
    parser.add_argument("name", type=str, help="under which you will load it")
    if any(word.partition("=")[0] == "--from" for word in words):
        parser.add_argument("--from", type=str, help=".npy, .npz, .csv, .tsv, .ts, .parquet, a "
                            "folder with a train and a test file, or ucr:NAME")  # fmt: skip
        parser.add_function_arguments(
            tasks.import_file, as_group=False, skip={"source", "name", "root"}
        )
        values = parser.parse_args(list(words)).as_dict()
        _describe(tasks.import_file(values.pop("from"), **values))
        return
    arrays = {
        "tokens": "integers (N, L), floats (N, L) or (N, L, C); with --lengths also all of them "
        "one after the other; without targets one long stream (total,)",
        "targets": "classes (N,), or floats (N,), (N, T) or (N, T, D) for the last T positions; "
        "left out: next-token prediction",
        "lengths": "(N,) where examples differ in length",
        "split": "(N,) train, validation or test (0, 1, 2), where that is given",
    }
    for option, what in arrays.items():
        kind: Any = str if option == "tokens" else str | None
        need = {"required": True} if option == "tokens" else {"default": None}
        parser.add_argument(f"--{option}", type=kind, help=f".npy file: {what}", **need)
    parser.add_argument("--kind", choices=get_args(Kind), default=None,
                        help="what the targets are, where their type does not say it")  # fmt: skip
    parser.add_function_arguments(
        tasks.import_arrays, as_group=False,
        skip={"name", "root", "kind", "class_names", "encoding", "notes", *arrays},
    )  # fmt: skip
    _describe(tasks.import_arrays(**parser.parse_args(list(words)).as_dict()))


def show(words: Sequence[str]) -> None:
    """Print or draw a few examples and the task's statistics; write a gallery, if asked for."""
    parser = _task_parser("show", "Look at a data set.", words)
    parser.add_argument("--split", type=str, default="train", help="|".join(SPLITS))
    parser.add_argument("--count", type=int, default=3, help="examples to print")
    parser.add_argument("--pick", type=int, default=0, help="seed of the choice of examples")
    parser.add_argument("--out", type=str | None, default=None, help="gallery: .png, .html")
    (name, root, split, count, pick, out), options = _parsed(
        parser, words, "name", "root", "split", "count", "pick", "out"
    )
    if count < 1:
        raise DataError(f"count must be 1 or more, got {count}")
    task = tasks.load(name, root, **options)
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
    if out is not None:
        gallery.write_gallery(task, Path(out), split, max(count, 16), pick, facts)
        print(f"gallery: {out}")


def verify(words: Sequence[str]) -> None:
    """Check every file of one data set, or of every prepared one; name every bad one."""
    parser = _task_parser("verify", "Check every byte.", words, optional=True)
    (name, root), options = _parsed(parser, words, "name", "root")
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


def _parser(command: str, about: str) -> ArgumentParser:
    parser = ArgumentParser(prog=f"longlens data {command}", description=about, exit_on_error=False)
    parser.add_argument("--root", type=str | None, default=None, help="the cache folder")
    return parser


def _task_parser(
    command: str, about: str, words: Sequence[str], optional: bool = False
) -> ArgumentParser:
    """Make a parser with the options of the task that ``words`` name."""
    name = _named(words)
    about += "" if name else f" `longlens data {command} NAME --help` lists the options of a task."
    parser = _parser(command, about)
    which = f"one of {', '.join(TASKS)}, another retrieval-NAME, or what you imported"
    parser.add_argument("name", type=str | None, nargs="?" if optional else None, help=which)
    if name is not None and (name in TASKS or name.startswith("retrieval-")):
        parser.add_class_arguments(find_task(name).options, help=f"options of {name}")
    return parser


def _parsed(
    parser: ArgumentParser, words: Sequence[str], *taken: str
) -> tuple[list[Any], dict[str, Any]]:
    """The values of the options ``taken``, and those of the task that were given.

    The others are left out, so that messages can repeat what somebody wrote.
    """
    values = parser.parse_args(list(words)).as_dict()
    given = {word[2:].split("=")[0] for word in words if word.startswith("--")} - {*taken}
    return [values[name] for name in taken], {k: v for k, v in values.items() if k in given}


def _named(given: Sequence[str]) -> str | None:
    """Return the first word that is neither an option nor its value."""
    words = iter(given)
    for word in words:
        if not word.startswith("-"):
            return word
        if "=" not in word and word not in ("-h", "--help"):
            next(words, None)
    return None


def _spelled_out(given: list[str]) -> list[str]:
    """Spell options as the parser knows them.

    >>> _spelled_out(["--min-length=5", "--subset", "--from", "a-b"])
    ['--min_length=5', '--subset', 'true', '--from', 'a-b']
    """
    words = []
    for number, word in enumerate(given):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            word = f"--{name.replace('-', '_')}{equals}{value}"
        words.append(word)
        if word in FLAGS and given[number + 1 : number + 2] not in (["true"], ["false"]):
            words.append("true")
    return words


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "list": list_tasks,
    "prepare": prepare,
    "download": prepare,
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
        raise DataError(f"command must be one of {', '.join(COMMANDS)}, got {argv[0]!r}")
    try:
        COMMANDS[argv[0]](_spelled_out(list(argv[1:])))
    except ArgumentError as error:
        raise DataError(str(error)) from None
    return 0
