"""Brings what lies beside docs/ into the site, so that links to it work there, too.

README.md becomes the first page; other files that a page links to get the place in the site that
they have in the repository. A link to a folder becomes plain text: a site has no listing of it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from longlens.layers import MIXERS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(
    r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)"
)
MIXERS_HERE = re.compile(r"^<!-- mixers: .*-->$", re.MULTILINE)
COMMENT = re.compile(r"^<!--.*?-->$", re.MULTILINE)  # marks of tables, which Markdown trips over
CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def site_path(path: str) -> str:
    """Where a file of the repository is in the site.

    >>> site_path("README.md"), site_path("docs/lens.md"), site_path("results/table2.json")
    ('index.md', 'lens.md', 'results/table2.json')
    """
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def repository_path(uri: str) -> str:
    """The file of the repository that a page of the site is made from."""
    if uri == "index.md":
        return "README.md"
    return uri if (ROOT / uri).is_file() else f"docs/{uri}"


def linked_files(path: str) -> set[str]:
    """The files outside docs/ that a Markdown file links to, from the repository's root."""
    text = CODE.sub("", (ROOT / path).read_text(encoding="utf-8"))
    folder = PurePosixPath(path).parent
    targets = {os.path.normpath(folder / match[3]) for match in LINK.finditer(text)}
    return {t for t in targets if (ROOT / t).is_file() and not t.startswith("docs/")}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add everything that is linked, starting from the pages that are there."""
    waiting = {"README.md", "DESIGN.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}
    waiting.add("examples/README.md")
    for page in files.documentation_pages():
        waiting |= linked_files(f"docs/{page.src_uri}")
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        done.add(path)
        files.append(File.generated(config, site_path(path), content=(ROOT / path).read_bytes()))
        if path.endswith(".md"):
            waiting |= linked_files(path) - done
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Point links at the places that files have in the site."""
    path = repository_path(page.file.src_uri)
    here = PurePosixPath(path).parent
    there = PurePosixPath(page.file.src_uri).parent

    def moved(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups(default="")
        target = os.path.normpath(here / target)
        if (ROOT / target).is_dir():
            return text
        return f"{picture}[{text}]({os.path.relpath(site_path(target), there)}{anchor})"

    modules = dict.fromkeys(factory.load().__module__ for factory in MIXERS.values())
    markdown = MIXERS_HERE.sub("\n\n".join(f"::: {name}" for name in modules), markdown)
    parts = CODE.split(COMMENT.sub("", markdown))
    return "".join(part if n % 2 else LINK.sub(moved, part) for n, part in enumerate(parts))
