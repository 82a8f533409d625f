"""The wheel and the sdist: what is in them, what they say, and that they install and run."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import longlens

ROOT = Path(__file__).parent.parent
VERSION = longlens.__version__
URL = "https://host.example/owner/longlens"

TRY = """
import torch, longlens
print(longlens.__version__, longlens.__file__)
q = torch.randn(1, 2, 70, 8)
longlens.las_attention(q, q, q, alpha=longlens.decay_rates(2))
layer = longlens.LaSAttention(dim=32, num_heads=4)
layer(torch.randn(1, 10, 32)).sum().backward()
"""


def build(folder, url=""):
    """Both distributions, by the build backend itself: nothing is downloaded."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"LONGLENS_URL": url}
    )
    assert done.returncode == 0, done.stderr
    return folder / f"longlens-{VERSION}-py3-none-any.whl", folder / f"longlens-{VERSION}.tar.gz"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("dist"), URL + "/")


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"longlens-{VERSION}.dist-info/METADATA").decode()
    return email.message_from_string(text)


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as archive:
        packed = {n for n in archive.namelist() if ".dist-info/" not in n}
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "longlens").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == source
    assert {"longlens/py.typed", "longlens/report/page/page.html"} <= packed


def test_the_sdist_holds_what_the_tests_need(built):
    with tarfile.open(built[1]) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "Makefile", "hatch_build.py"}
    assert needed | {"tests/test_release.py", "results/table2.json", "mkdocs.yml"} <= packed
    assert not [name for name in packed if name.startswith((".venv", "runs/", ".ci", ".git/"))]


def test_links_of_the_description_work_away_from_the_repository(built):
    description = metadata(built[0]).get_payload()
    targets = re.findall(r"\]\(([^)\s]+)\)", description)
    assert [t for t in targets if not t.startswith(("https://", "#"))] == []
    ours = [t.removeprefix(URL) for t in targets if t.startswith(URL)]
    assert ours
    for target in ours:
        kind, tag, path = target.removeprefix("/").split("/", 2)
        assert tag == f"v{VERSION}"
        assert (kind == "raw") == path.endswith((".svg", ".png"))
        assert (ROOT / path.partition("#")[0]).exists(), path


def test_addresses_are_those_of_the_repository_that_builds(built, tmp_path):
    links = dict(link.split(", ") for link in metadata(built[0]).get_all("Project-URL"))
    assert set(links) == {"Source", "Documentation", "Changelog", "Issues"}
    assert all(link.startswith(URL) for link in links.values())
    bare = metadata(build(tmp_path)[0])
    assert bare.get_all("Project-URL") is None
    assert bare.get_payload().rstrip() == (ROOT / "README.md").read_text().rstrip()


def test_one_version_everywhere():
    """A release has its heading and is what is cited; between releases the last one is."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if ".dev" in VERSION:
        assert headings[:2] == ["Unreleased", cited]
    else:
        assert headings[0] == cited == VERSION


def test_the_workflow_tries_what_the_package_promises():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    pythons = [c.rpartition(" ")[2] for c in project["classifiers"] if c.startswith(prefix)]
    oldest_torch = re.search(r"torch>=([\d.]+)", " ".join(project["dependencies"]))[1]
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == pythons
    assert matrix["torch"] == [oldest_torch, "newest"]


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_github_files_are_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)


@pytest.mark.slow
def test_wheel_and_sdist_install_and_run_in_a_clean_environment(built, tmp_path):
    """Downloads torch: minutes. The library first, with torch and numpy alone; then the rest."""
    wheel, sdist = built
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(*command):
        done = subprocess.run(
            [str(c) for c in command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python, longlens_command = tmp_path / "venv/bin/python", tmp_path / "venv/bin/longlens"
    pip = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    for package in (wheel, sdist):
        run(*pip, package)
        version, place = run(python, "-c", TRY).split()
        assert version == VERSION
        assert Path(place).is_relative_to(tmp_path / "venv")
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "longlens")
    run(*pip, f"longlens[lab] @ {wheel.as_uri()}")
    assert "listops" in run(longlens_command, "data", "list")
    command = "train --task listops --mixer las --steps 2 --dim 16 --depth 1 --batch_size 4"
    sizes = "--set task_options.train=16 --set task_options.validation=4 --set task_options.test=4"
    environment["LONGLENS_DATA"] = str(tmp_path / "data")
    run(longlens_command, *command.split(), *sizes.split())
    assert list(tmp_path.glob("runs/*/record.json"))
