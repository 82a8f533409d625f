"""The documentation as a site: it builds without a warning, and every public name is in it."""

import importlib.util
import os
import pkgutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import longlens
from longlens.layers import MIXERS

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr == ""
    return folder


def entries(site):
    """The names that the reference explains, by the inventory that mkdocstrings writes."""
    compressed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.partition(" ")[0] for line in zlib.decompress(compressed).decode().splitlines()}


def public_names():
    """What packages list in ``__all__``, and the classes behind the keys of `longlens layers`."""
    packages = [m for m in pkgutil.walk_packages(longlens.__path__, "longlens.") if m.ispkg]
    for name in ["longlens", *(package.name for package in packages)]:
        for public in getattr(importlib.import_module(name), "__all__", []):
            if public != "__version__":
                yield f"{name}.{public}"
    for factory in MIXERS.values():
        yield f"{factory.load().__module__}.{factory.load().__qualname__}"


def test_every_public_name_has_an_entry(site):
    missing = sorted(set(public_names()) - entries(site))
    assert not missing, f"add to a page of docs/reference, with a docstring: {missing}"


def test_pages_load_nothing_from_other_sites(site):
    for page in ("index.html", "concepts/index.html", "reference/index.html"):
        text = (site / page).read_text()
        for tag in ('<script src="http', 'rel="stylesheet" href="http', '<img src="http'):
            assert tag not in text, (page, tag)


def test_files_beside_the_docs_are_in_the_site(site):
    assert (site / "results" / "table2.json").is_file()
    assert (site / "src" / "longlens" / "layers" / "index.html").is_file()
    assert "LaS" in (site / "CHANGELOG" / "index.html").read_text()


def load_file(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawing_of_las_shows_what_the_library_computes():
    path = ROOT / "docs" / "pictures" / "las.py"
    kept = path.with_suffix(".svg").read_text()
    assert kept == load_file(path).draw(), "python docs/pictures/las.py draws it anew"


def test_examples_in_docstrings_become_code():
    as_markdown = load_file(ROOT / "docs" / "docstrings.py").as_markdown
    assert as_markdown("See :func:`f`.\n\n>>> f(1)\n[1]\n\nMore.") == (
        "See `f`.\n\n```pycon\n>>> f(1)\n[1]\n```\n\nMore."
    )
    assert as_markdown("    >>> g()") == "    ```pycon\n    >>> g()\n    ```"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
