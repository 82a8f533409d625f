"""Lay the attention of this package out as a kernel of the Hugging Face Hub: `make hub-kernel`.

A Hub kernel is a folder that kernel-builder builds and `kernels.get_kernel` loads, several versions
side by side: it imports nothing but torch, triton and itself, itself by relative imports, and
registers its operators under a name of its own. So this takes the files of `longlens.ops` that the
public functions need and rewrites these two things; all else lies beside this file.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "longlens" / "ops"
ROOT = "longlens.ops"
PUBLIC = {
    "las.api": ["explain", "las_attention", "las_attention_packed", "las_weights"],
    "las.decay": ["decay_rates"],
    "las.decode": ["LaSCache"],
    "las.varlen": ["las_attention_varlen"],
}
BESIDE = ("build.toml", "flake.nix", "CARD.md", "example.py", "tests")


def make(folder: Path, repo_id: str | None = None) -> Path:
    """Write the repository; returns the Python package in it."""
    if folder.exists():
        shutil.rmtree(folder)
    package = folder / "torch-ext" / "longlens_las"
    package.mkdir(parents=True)
    for name in BESIDE:
        (shutil.copytree if (HERE / name).is_dir() else shutil.copy)(HERE / name, folder / name)
    if repo_id is not None:
        with (folder / "build.toml").open("a") as file:
            file.write(f'\n[general.hub]\nrepo-id = "{repo_id}"\n')
    for module in needed():
        path = package / relative_path(module)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rewritten(module))
    for inner in package.rglob("*/"):
        (inner / "__init__.py").touch()
    lines = [f"from .{module} import {', '.join(names)}" for module, names in PUBLIC.items()]
    names = sorted(name for names in PUBLIC.values() for name in names)
    shown = "".join(f'    "{name}",\n' for name in names)
    text = '"""LaS attention, exact and without a matrix of queries by keys."""\n\n' + "\n".join(
        lines
    )
    (package / "__init__.py").write_text(f"{text}\n\n__all__ = [\n{shown}]\n")
    return package


def needed() -> list[str]:
    """The modules that the public functions import, their own imports included."""
    found: list[str] = []
    todo = [*PUBLIC]
    while todo:
        module = todo.pop()
        if module not in found:
            found.append(module)
            todo += [name for node in imports(module) for name in modules_of(node)]
    return sorted(found)


def relative_path(module: str) -> Path:
    """Where a module lies, under `longlens/ops` and in the kernel alike."""
    path = Path(*module.split("."))
    return path / "__init__.py" if (SOURCE / path).is_dir() else path.with_suffix(".py")


def imports(module: str) -> list[ast.ImportFrom]:
    """The imports from `longlens` in a module, those inside functions, too."""
    tree = ast.walk(ast.parse((SOURCE / relative_path(module)).read_text()))
    nodes = [n for n in tree if isinstance(n, ast.ImportFrom)]
    nodes = [n for n in nodes if (n.module or "").startswith("longlens")]
    outside = [n.module for n in nodes if not f"{n.module}.".startswith(f"{ROOT}.")]
    if outside:
        raise ValueError(f"{module} imports {outside[0]}, which is no part of {ROOT}")
    return nodes


def modules_of(node: ast.ImportFrom) -> list[str]:
    """The modules that an import names: a file, or files of a folder."""
    module = (node.module or "").removeprefix(f"{ROOT}.")
    if not (SOURCE / Path(*module.split("."))).is_dir():
        return [module]
    inner = [f"{module}.{alias.name}" for alias in node.names]
    files = [name for name in inner if (SOURCE / relative_path(name)).is_file()]
    return files + ([module] if len(files) < len(inner) else [])


def rewritten(module: str) -> str:
    """A module's text with relative imports and operators in the kernel's own namespace."""
    path = relative_path(module)
    text = (SOURCE / path).read_text()
    up = "." * len(path.parts)
    text = re.sub(rf"from {re.escape(ROOT)}\.", f"from {up}", text)
    own, operators = re.subn(r'(f?)"longlens::([^"]+)"', r'add_op_namespace_prefix(\1"\2")', text)
    own, uses = re.subn(r"torch\.ops\.longlens\.", "ops.", own)
    if operators or uses:
        future = "from __future__ import annotations\n"
        wanted = ["add_op_namespace_prefix"] * bool(operators) + ["ops"] * bool(uses)
        own = own.replace(future, f"{future}\nfrom {up}_ops import {', '.join(wanted)}\n", 1)
    return own


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/hub-kernel"))
    parser.add_argument("--repo-id", help="OWNER/NAME on the Hub, for kernel-builder's upload")
    given = parser.parse_args()
    print(make(given.folder, given.repo_id))
