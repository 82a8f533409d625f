"""Next-token streams: ``enwik8``, ``text8`` (90/5/5 million bytes) and ``wikitext103`` (words)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import PurePosixPath
from typing import IO

import numpy as np

from longlens.files import sha256_of
from longlens.tasks.build import Draft
from longlens.tasks.errors import DataError
from longlens.tasks.fetch import Remote
from longlens.tasks.spec import SPLITS, Spec

ENWIK8 = Remote(
    "https://mattmahoney.net/dc/enwik8.zip",
    "enwik8.zip",
    36_445_475,
    "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
)
TEXT8 = Remote(
    "https://mattmahoney.net/dc/text8.zip",
    "text8.zip",
    31_344_016,
    "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
)
WIKITEXT = Remote(
    "https://wikitext.smerity.com/wikitext-103-v1.zip",
    "wikitext-103-v1.zip",
    190_229_076,
    "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
)
_UNPACKED = {  # sha256 of the 100,000,000 bytes themselves, for copies that are not the zip file
    "enwik8": "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    "text8": "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
}
PUBLISHED = 100_000_000
VOCABULARY = 267_735  # different words of wikitext103
PART = 5_000_000  # tokens in a block


@dataclass(frozen=True)
class LanguageOptions:
    """Options of the language-modelling tasks.

    Args:
        subset: accept another text than the published one; splits are 90/5/5 per cent.
    """

    subset: bool = False


def build_bytes(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """Write ``enwik8`` (bytes 0 … 255) or ``text8`` (a space and a … z as 0 … 26)."""
    contents = draft.need_source().collect(draft.name)
    if draft.name not in contents:
        raise DataError(
            f"{draft.need_source().path} holds no file {draft.name} (or {draft.name}.zip, .xz)"
        )
    data = contents[draft.name]
    if not draft.options.subset:
        if len(data) != PUBLISHED:
            raise DataError(
                f"{draft.name} has {len(data)} bytes instead of {PUBLISHED}: truncated?"
            )
        if (sha := sha256_of(data)) != _UNPACKED[draft.name]:
            raise DataError(f"{draft.name} has sha256 {sha} instead of {_UNPACKED[draft.name]}")
    tokens = np.frombuffer(data, np.uint8)
    if draft.name == "text8":
        letters = np.full(256, 255, np.uint8)
        letters[np.frombuffer(b" abcdefghijklmnopqrstuvwxyz", np.uint8)] = np.arange(27)
        tokens = letters[tokens]
        if len(tokens) and tokens.max() == 255:
            raise DataError("text8 holds a character that is neither a space nor a … z")
    twentieth = len(tokens) // 20
    if twentieth < 2:
        raise DataError(f"{draft.name}: {len(tokens)} bytes are too few to split 90/5/5")
    cuts = np.split(tokens, [len(tokens) - 2 * twentieth, len(tokens) - twentieth])
    for split, part in zip(SPLITS, cuts, strict=True):
        for block, start in enumerate(range(0, len(part), PART)):
            draft.writer.write_block(split, block, {"stream": part[start : start + PART]})
    sizes = {split: len(part) for split, part in zip(SPLITS, cuts, strict=True)}
    return spec(draft.name, draft.options), sizes


def spec(name: str, options: LanguageOptions) -> Spec:
    """The shape of the task ``name``, with the vocabulary of the published text."""
    vocab, encoding = {
        "enwik8": (256, "bytes"), "text8": (27, "letters"), "wikitext103": (VOCABULARY, "words"),
    }[name]  # fmt: skip
    return Spec("next_token", "tokens", max_length=0, vocab_size=vocab, encoding=encoding)


_WIKI_FILES = {
    "train": "wiki.train.tokens",
    "validation": "wiki.valid.tokens",
    "test": "wiki.test.tokens",
}


def build_words(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """Write ``wikitext103``: words numbered by falling frequency, ``<eos>`` at line ends."""
    source = draft.need_source()
    names = {filename: split for split, filename in _WIKI_FILES.items()}

    def wanted(filename: str) -> bool:
        return PurePosixPath(filename).name in names

    counts: Counter[bytes] = Counter()
    seen = set()
    for name, file in source.stream(wanted):
        split = names[PurePosixPath(name).name]
        if split in seen:
            raise DataError(f"{source.path} holds two files {_WIKI_FILES[split]}; give one of them")
        seen.add(split)
        if PurePosixPath(name).name == _WIKI_FILES["train"]:
            for line in file:
                counts.update(line.split())
                counts[b"<eos>"] += 1
    if missing := [name for name, split in names.items() if split not in seen]:
        raise DataError(f"{source.path} holds no {missing[0]}")
    if not counts:
        raise DataError(f"wikitext103: {_WIKI_FILES['train']} is empty")
    if len(counts) != VOCABULARY and not draft.options.subset:
        raise DataError(
            f"wikitext103: {len(counts)} words where the published text has {VOCABULARY} different "
            "ones; pass subset=True (--set subset=true) to use it all the same"
        )
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if b"<unk>" not in counts:
        words.append(b"<unk>")
    ids = {word: number for number, word in enumerate(words)}
    sizes = {}
    for name, file in source.stream(wanted):
        split = names[PurePosixPath(name).name]
        sizes[split] = _write_words(draft, split, file, ids)
    text = np.frombuffer(b"\n".join(words), np.uint8)
    draft.writer.write_block("vocabulary", 0, {"text": text})
    sizes = {split: sizes[split] for split in SPLITS}
    return replace(spec(draft.name, draft.options), vocab_size=len(words)), sizes


def _write_words(draft: Draft, split: str, file: IO[bytes], ids: dict[bytes, int]) -> int:
    """Write one file's words as numbers, block by block; return how many there are."""
    unknown, end = ids[b"<unk>"], ids[b"<eos>"]
    numbers = (
        ids.get(word, unknown) if word is not None else end
        for line in file
        for word in (*line.split(), None)
    )
    total = 0
    for block in count():
        part = np.fromiter(islice(numbers, PART), np.int32)
        if not len(part):
            break
        draft.writer.write_block(split, block, {"stream": part})
        total += len(part)
    if total < 2:
        raise DataError(f"wikitext103: the {split} text is empty")
    return total
