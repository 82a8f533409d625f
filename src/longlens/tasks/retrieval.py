"""``retrieval``: do two papers cite each other? Document pairs as bytes.

Two sources. LRA's own ``new_aan_pairs.{train,eval,test}.tsv`` (the ACL Anthology Network) is read
as a stream: a document that occurs in many pairs is stored once, and memory holds hashes, never
texts. A corpus in JSON lines with a citation list makes a task of its own, ``retrieval-NAME``: a
stand-in whose numbers compare with nothing published.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import PurePosixPath

import numpy as np

from longlens.tasks.build import Draft
from longlens.tasks.errors import DataError, check_least, check_shares
from longlens.tasks.fetch import Remote
from longlens.tasks.order import generator, permutation
from longlens.tasks.progress import Progress
from longlens.tasks.spec import SPLITS, Spec
from longlens.tasks.writer import Writer
from longlens.untrusted import parse_json

LRA = Remote(  # nobody published a checksum; the manifest records the one that was found
    "https://storage.googleapis.com/long-range-arena/lra_release.gz", "lra_release.gz", None, None
)
_FILES = {
    "new_aan_pairs.train.tsv": "train",
    "new_aan_pairs.eval.tsv": "validation",
    "new_aan_pairs.test.tsv": "test",
}
PUBLISHED_TRAIN = 147_000  # and some: fewer training pairs mean a truncated file
PAIRS_IN_BLOCK = 50_000
BYTES_IN_BLOCK = 32_000_000


@dataclass(frozen=True)
class RetrievalOptions:
    """Options of ``retrieval``.

    Args:
        max_length: bytes kept of each document.
        subset: accept fewer pairs than were published (not comparable).
    """

    max_length: int = 4_000
    subset: bool = False

    def __post_init__(self) -> None:
        check_least(self, "retrieval", max_length=1)


@dataclass(frozen=True)
class CitationOptions:
    """Options of ``retrieval-NAME`` (JSON lines and a citation list).

    Args:
        max_length: bytes kept of each document.
        validation: share of the documents.
        test: share of the documents.
        seed: of the split and of the negative pairs.
    """

    max_length: int = 4_000
    validation: float = 0.15
    test: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, "retrieval", max_length=1, seed=0)
        check_shares(self.validation, self.test)


class _Documents:
    """Writes documents as they come, each once; keeps sixteen bytes of each in memory."""

    def __init__(self, writer: Writer, max_length: int) -> None:
        self.writer, self.max_length = writer, max_length
        self.number: dict[bytes, int] = {}
        self.longest = 0
        self._texts: list[bytes] = []
        self._bytes = self._block = 0

    def add(self, text: bytes) -> int:
        """Return the number of the document with this text, writing it if it is new."""
        text = text[: self.max_length]
        key = hashlib.blake2b(text, digest_size=16).digest()
        if key not in self.number:
            self.number[key] = len(self.number)
            self._texts.append(text)
            self._bytes += len(text)
            self.longest = max(self.longest, len(text))
            if self._bytes >= BYTES_IN_BLOCK:
                self.flush()
        return self.number[key]

    def flush(self) -> None:
        """Write what is pending as a block."""
        if not self._texts:
            return
        flat = np.frombuffer(b"".join(self._texts), np.uint8).astype(np.uint16) + np.uint16(1)
        lengths = np.array([len(text) for text in self._texts], np.int32)
        self.writer.write_block("documents", self._block, {"flat": flat, "lengths": lengths})
        self._texts, self._bytes, self._block = [], 0, self._block + 1


def _write_pairs(writer: Writer, split: str, rows: Iterable[tuple[int, int, int]]) -> int:
    """Write (label, document, document) rows in blocks; return how many there were."""
    rows, total = iter(rows), 0
    for block in count():
        if not (part := list(islice(rows, PAIRS_IN_BLOCK))):
            break
        table = np.array(part, np.int32)
        pairs, targets = table[:, 1:].copy(), table[:, 0].astype(np.uint8)
        writer.write_block(split, block, {"pairs": pairs, "targets": targets})
        total += len(part)
    if not total:
        raise DataError(f"retrieval: the {split} split holds no pair")
    return total


def spec(options: RetrievalOptions | CitationOptions) -> Spec:
    """The shape of the task; its documents may all be shorter."""
    another = "AAN document pairs (another corpus; not comparable)"
    return Spec(
        kind="classification",
        inputs="tokens",
        max_length=options.max_length,
        vocab_size=257,
        pad_id=0,
        num_classes=2,
        pair=True,
        encoding="bytes+1",
        class_names=("no citation", "citation"),
        stands_in_for=another if isinstance(options, CitationOptions) else None,
    )


def parse_pair(line: bytes, where: str) -> tuple[int, bytes, bytes]:
    r"""Split one line of LRA's layout: label, id, id, text, text, with tabs between.

    The texts are kept as the file has them (LRA wrote Python's ``b'…'``), since that is what every
    published number was trained on.

    >>> parse_pair(b"1.0\tP01\tP02\tb'one'\tb'two'\n", "demo")
    (1, b"b'one'", b"b'two'")
    """
    columns = line.rstrip(b"\r\n").split(b"\t")
    if len(columns) != 5 or columns[0].strip(b'"') not in (b"0", b"1", b"0.0", b"1.0"):
        raise DataError(f"{where}: not 'label, id, id, text, text' with tabs between; truncated?")
    if not columns[3] or not columns[4]:
        raise DataError(f"{where}: a text is empty")
    return int(float(columns[0].strip(b'"'))), columns[3], columns[4]


def build_aan(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """Write the task from LRA's three files (in their archive or in a folder), as a stream."""
    options: RetrievalOptions = draft.options
    documents = _Documents(draft.writer, options.max_length)
    sizes: dict[str, int] = {}
    with Progress(draft.name, None, "pairs", draft.quiet) as progress:

        def rows(name: str, file: Iterable[bytes]) -> Iterator[tuple[int, int, int]]:
            for number, line in enumerate(file, start=1):
                label, first, second = parse_pair(line, f"{name}, line {number}")
                yield label, documents.add(first), documents.add(second)
                progress.advance(1)

        wanted = draft.need_source().stream(lambda name: PurePosixPath(name).name in _FILES)
        for name, file in wanted:
            split = _FILES[PurePosixPath(name).name]
            if split not in sizes:  # the archive holds some folders twice
                sizes[split] = _write_pairs(draft.writer, split, rows(name, file))
    documents.flush()
    for filename, split in _FILES.items():
        if split not in sizes:
            raise DataError(f"{draft.need_source().path} holds no {filename}")
    if sizes["train"] < PUBLISHED_TRAIN and not options.subset:
        raise DataError(
            f"retrieval: {sizes['train']} training pairs where the published set has more than "
            f"{PUBLISHED_TRAIN}; pass subset=True (--set subset=true) to use them all the same"
        )
    sizes = {split: sizes[split] for split in SPLITS}
    return replace(spec(options), max_length=documents.longest), sizes


def _read_corpus(draft: Draft) -> tuple[dict[str, tuple[str, bytes]], list[tuple[str, str]]]:
    """Documents by id as (title, text), and citations between known documents, both sorted."""
    documents: dict[str, tuple[str, bytes]] = {}
    citations: set[tuple[str, str]] = set()
    wanted = draft.need_source().stream(lambda name: name.endswith((".jsonl", "citations.tsv")))
    for name, file in wanted:
        for number, line in enumerate(file, start=1):
            where = f"{name}, line {number}"
            if name.endswith(".jsonl"):
                key, document = _read_document(line, where)
                if key in documents:
                    raise DataError(f"{where}: the id {key!r} was used before")
                documents[key] = document
            else:
                citations.add(_read_citation(line, where))
    if not documents or not citations:
        raise DataError(
            f"{draft.need_source().path} needs a .jsonl file (id, title, text) and citations.tsv"
        )
    documents = {key: document for key, document in sorted(documents.items()) if document[1]}
    known = [pair for pair in sorted(citations) if pair[0] in documents and pair[1] in documents]
    return documents, [pair for pair in known if pair[0] != pair[1]]


def _read_document(line: bytes, where: str) -> tuple[str, tuple[str, bytes]]:
    """Id, title and text out of a line of JSON."""
    try:
        row = parse_json(line)
        key, title, text = row["id"], row["title"], row["text"]
        if type(key) not in (str, int) or not isinstance(title, str):
            raise TypeError
        return str(key), (title, text.encode())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{where}: expected a JSON object with id, title and text") from None


def _read_citation(line: bytes, where: str) -> tuple[str, str]:
    try:
        citing, cited = line.decode().rstrip("\r\n").split("\t")
    except ValueError:
        raise DataError(f"{where}: expected two document ids with a tab between them") from None
    return citing, cited


def _groups(documents: dict[str, tuple[str, bytes]], max_length: int) -> list[list[str]]:
    """Documents that are copies of one paper: equal titles, or equal texts up to the cut."""
    leader = {key: key for key in documents}

    def find(key: str) -> str:
        while leader[key] != key:
            key = leader[key] = leader[leader[key]]
        return key

    first: dict[str | bytes, str] = {}
    for key, (title, text) in documents.items():
        plain = re.sub(r"[^a-z0-9]", "", title.lower()) or f"id:{key}"
        for mark in (plain, text[:max_length]):
            leader[find(key)] = find(first.setdefault(mark, key))
    groups: dict[str, list[str]] = {}
    for key in documents:
        groups.setdefault(find(key), []).append(key)
    return sorted(groups.values())


def split_documents(
    documents: dict[str, tuple[str, bytes]], options: CitationOptions
) -> dict[str, str]:
    """Assign each document to a split; copies of a paper go together."""
    groups = _groups(documents, options.max_length)
    home = {}
    for rank, place in enumerate(permutation(len(groups), options.seed)):
        share = (rank + 0.5) / len(groups)
        if share < options.validation:
            split = "validation"
        else:
            split = "test" if share < options.validation + options.test else "train"
        for key in groups[place]:
            home[key] = split
    return home


def draw_negatives(
    positives: list[tuple[str, str]],
    cited: set[tuple[str, str]],
    paper: Mapping[str, str],
    rng: np.random.Generator,
) -> list[tuple[str, str]]:
    """Give every positive pair a negative one with the same first paper.

    The second papers are drawn from those of the positive pairs, as often as they occur there: a
    much-cited paper is as frequent among the negatives, so being one does not give the label away.
    ``paper`` names what a document is a copy of: no copies of a positive pair are a negative one.
    """
    cited = {(paper[first], paper[second]) for first, second in cited}
    second = [pair[1] for pair in positives]
    used: set[tuple[str, str]] = set()
    negatives = []
    for first, _ in positives:
        for place in rng.integers(0, len(second), 100):
            pair = (paper[first], paper[second[place]])
            known = pair in cited or pair[::-1] in cited or pair in used or pair[::-1] in used
            if pair[0] != pair[1] and not known:
                used.add(pair)
                negatives.append((first, second[place]))
                break
    return negatives


def build_citations(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """Write a task of a document corpus and its citation list; no document is in two splits."""
    options: CitationOptions = draft.options
    documents, citations = _read_corpus(draft)
    home = split_documents(documents, options)
    groups = _groups(documents, options.max_length)
    paper = {key: group[0] for group in groups for key in group}
    store = _Documents(draft.writer, options.max_length)
    sizes = {}
    kept = 0
    for number, split in enumerate(SPLITS):
        positives = [p for p in citations if home[p[0]] == home[p[1]] == split]
        kept += len(positives)
        if not positives:
            raise DataError(f"{draft.name}: no citation lies inside the {split} split")
        rng = generator(options.seed, number)
        negatives = draw_negatives(positives, set(citations), paper, rng)
        rows = [(1, *pair) for pair in positives] + [(0, *pair) for pair in negatives]
        order = permutation(len(rows), options.seed, number)
        numbered = (
            (label, store.add(documents[a][1]), store.add(documents[b][1]))
            for label, a, b in (rows[place] for place in order)
        )
        sizes[split] = _write_pairs(draft.writer, split, numbered)
    store.flush()
    draft.writer.notes.append(
        f"{len(documents)} documents; {kept} of {len(citations)} citations lie inside one split, "
        "the others were left out"
    )
    return replace(spec(options), max_length=store.longest), sizes
