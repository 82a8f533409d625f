"""Every task that longlens knows, as one plain dictionary."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from longlens.config import did_you_mean
from longlens.tasks import atomic, images, language, listops, retrieval, text
from longlens.tasks.build import TaskInfo
from longlens.tasks.cache import check_name
from longlens.tasks.errors import DataError
from longlens.tasks.farfield import build as farfield
from longlens.tasks.farfield import injection
from longlens.tasks.farfield.certificate import OPTIONS as FARFIELD_OPTIONS
from longlens.tasks.farfield.sample import length_of
from longlens.tasks.pathfinder import generate as pathfinder
from longlens.tasks.synthetic import SYNTHETIC
from longlens.tasks.synthetic.base import estimate as synthetic_estimate

_OWN = "generated here"
_MIT = "MIT (part of longlens)"

_LISTOPS = TaskInfo(
    name="listops",
    summary="value of a nested expression of MIN, MAX, MED and SM (LRA)",
    length="501–1,999",
    classes="10",
    sizes="96,000 / 2,000 / 2,000",
    source=_OWN,
    licence=_MIT,
    options=listops.ListOpsOptions,
    build=listops.build,
    estimate=listops.estimate,
    spec=listops.spec,
)
_TEXT = TaskInfo(
    name="text",
    summary="sentiment of an IMDB review, byte by byte (LRA)",
    length="up to 13,704",
    classes="2",
    sizes="22,500 / 2,500 / 25,000",
    source="aclImdb_v1.tar.gz, 84 MB, Stanford",
    licence="for research, cite Maas et al. 2011",
    options=text.TextOptions,
    build=text.build,
    estimate=lambda options: 2 * 70_000_000,
    spec=text.spec,
    remotes=(text.IMDB,),
    needs_source=True,
)
_RETRIEVAL = TaskInfo(
    name="retrieval",
    summary="do two papers cite each other? AAN pairs, byte by byte (LRA)",
    length="up to 4,000 × 2",
    classes="2",
    sizes="147,086 / 18,090 / 17,437",
    source="lra_release.gz, 7.7 GB (new_aan_pairs.*.tsv)",
    licence="not redistributable",
    options=retrieval.RetrievalOptions,
    build=retrieval.build_aan,
    estimate=lambda options: 2 * 20_000 * options.max_length + 200_000 * 9,  # all new
    spec=retrieval.spec,
    remotes=(retrieval.LRA,),
    needs_source=True,
)
_PEERREAD = TaskInfo(
    name="retrieval-peerread",
    summary="the same question on another corpus (stand-in for AAN)",
    length="up to 4,000 × 2",
    classes="2",
    sizes="by document, 70/15/15 %",
    source="--from a folder: *.jsonl (id, title, text), citations.tsv",
    licence="the corpus's own",
    options=retrieval.CitationOptions,
    build=retrieval.build_citations,
    estimate=lambda options: 2 * 10_000 * options.max_length,  # of ten thousand documents
    spec=retrieval.spec,
    version=2,
    needs_source=True,
)
_IMAGE = TaskInfo(
    name="image",
    summary="CIFAR-10 in gray, row by row (LRA)",
    length="1,024",
    classes="10",
    sizes="45,000 / 5,000 / 10,000",
    source="cifar-10-binary.tar.gz, 170 MB, Toronto",
    licence="for research, none stated",
    options=images.CifarOptions,
    build=images.build_image,
    estimate=lambda options: 60_000 * (4097 if options.color else 1025),
    spec=images.spec,
    remotes=(images.CIFAR,),
    needs_source=True,
)
_PATHFINDER = TaskInfo(
    name="pathfinder",
    summary="are two markers on one dashed contour? 32 × 32 (LRA)",
    length="1,024",
    classes="2",
    sizes="160,000 / 20,000 / 20,000",
    source=f"{_OWN}; LRA's own images with --from and --set origin=lra",
    licence=_MIT,
    options=pathfinder.PathfinderOptions,
    build=pathfinder.build,
    estimate=pathfinder.estimate,
    spec=pathfinder.spec,
    version=2,
    newer=pathfinder.newer,
)
_SMNIST = TaskInfo(
    name="smnist",
    summary="MNIST, pixel by pixel",
    length="784",
    classes="10",
    sizes="55,000 / 5,000 / 10,000",
    source="four idx files, 11.6 MB",
    licence="CC BY-SA 3.0",
    options=images.ImageOptions,
    build=images.build_mnist,
    estimate=lambda options: 70_000 * 785,
    spec=images.spec,
    remotes=images.MNIST,
    needs_source=True,
)
_ATOMIC = {
    "select": "return the marked values, in order",
    "cumsum": "running sum, normalised",
    "cummax": "running maximum",
    "shift": "the sequence shifted by eight distances",
    "reverse": "the sequence backwards",
    "sort": "the sequence in rising order",
}
_FARFIELD = {
    "far-order": "which of two far segments comes first? not local",
    "far-match": "do the first two of three far segments match? not local",
    "far-xor": "parity of two bits, read out at a far position",
    "far-pointer": "follow a pointer through far tables, read out at the end",
    "far-listops": "expressions with far tokens, read out at the end",
    "far-injection": "any task's label combined with a far dependency",
}
_FARFIELD_CLASSES = {"far-pointer": "4", "far-listops": "10"}


def _far_length(name: str) -> str:
    """The length of a far-field example at the default distance."""
    options = FARFIELD_OPTIONS[name]()
    inner = "inner + " if name == "far-injection" else ""
    return f"{inner}{length_of(name, options):,} at D = {options.distance}"


_ENWIK8 = TaskInfo(
    name="enwik8",
    summary="next byte of Wikipedia's XML",
    length="any",
    classes="256 bytes",
    sizes="90 / 5 / 5 million",
    source="enwik8.zip, 36 MB, mattmahoney.net",
    licence="CC BY-SA (Wikipedia)",
    options=language.LanguageOptions,
    build=language.build_bytes,
    estimate=lambda options: language.PUBLISHED,
    spec=partial(language.spec, "enwik8"),
    remotes=(language.ENWIK8,),
    needs_source=True,
)

_ALL = [
    _LISTOPS, _TEXT, _RETRIEVAL, _PEERREAD, _IMAGE, _PATHFINDER,
    replace(
        _PATHFINDER, name="pathx", length="16,384 (4,096, 65,536)",
        summary="Pathfinder at 128 × 128, or at a size of 64 or 256 (LRA)",
        options=pathfinder.PathXOptions,
    ),
    _SMNIST,
    replace(
        _SMNIST, name="pmnist", summary="MNIST in a fixed random order of the pixels (seed 0)",
        options=images.PermutedOptions,
    ),
    *(
        TaskInfo(
            name=name + ending, length="512", classes="2" if ending else "–",
            summary=f"{summary}: is the last above its median?" if ending
            else f"{summary} (regression)",
            sizes="10,000 / 1,000 / 1,000", source=_OWN, licence=_MIT,
            options=atomic.SelectOptions if name == "select" else atomic.AtomicOptions,
            build=atomic.build, estimate=atomic.estimate, spec=partial(atomic.spec, name + ending),
        )
        for ending in ("", atomic.ABOVE)
        for name, summary in _ATOMIC.items()
    ),
    *(
        TaskInfo(
            name=name, summary=kind.summary, length=f"{kind.options().length}",
            classes=f"{kind.classes(kind.options())}", sizes="10,000 / 1,000 / 2,000", source=_OWN,
            licence=_MIT, options=kind.options, build=kind.build, estimate=synthetic_estimate,
            spec=kind.spec,
        )
        for name, kind in SYNTHETIC.items()
    ),
    *(
        TaskInfo(
            name=name, summary=summary, length=_far_length(name),
            classes=_FARFIELD_CLASSES.get(name, "2"), sizes="20,000 / 2,000 / 5,000",
            source=_OWN, licence=_MIT, options=FARFIELD_OPTIONS[name],
            build=farfield.build, estimate=partial(farfield.estimate, name),
            spec=partial(farfield.spec_of, name),
        )
        for name, summary in _FARFIELD.items()
    ),
    _ENWIK8,
    replace(
        _ENWIK8, name="text8", summary="next letter of cleaned Wikipedia", classes="27 letters",
        source="text8.zip, 31 MB, mattmahoney.net", remotes=(language.TEXT8,),
        spec=partial(language.spec, "text8"),
    ),
    replace(
        _ENWIK8, name="wikitext103", summary="next word of good Wikipedia articles",
        classes="267,735 words", sizes="103,227,021 / 217,646 / 245,569",
        source="wikitext-103-v1.zip, 190 MB", licence="CC BY-SA 3.0",
        build=language.build_words, estimate=lambda options: 4 * 104_000_000,
        remotes=(language.WIKITEXT,),
        spec=partial(language.spec, "wikitext103"),
    ),
]  # fmt: skip
TASKS: dict[str, TaskInfo] = {info.name: info for info in _ALL}
"""Every task by its name."""
TASKS["far-injection"] = replace(  # whose shape is that of the inner task and more
    TASKS["far-injection"], build=injection.build, estimate=injection.estimate, spec=None
)


def find_task(name: str) -> TaskInfo:
    """Return the entry of ``name``; any ``retrieval-NAME`` is a document-pair corpus of your own.

    >>> find_task("listops").classes
    '10'
    """
    if name in TASKS:
        return TASKS[name]
    if name.startswith("retrieval-"):
        return replace(_PEERREAD, name=check_name(name))
    if meant := did_you_mean(name, TASKS):
        raise DataError(f"unknown task {name!r}{meant} (longlens data list)")
    raise DataError(f"unknown task {name!r}; there are {', '.join(TASKS)}, and what you import")
