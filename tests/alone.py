"""Code that runs as if a few packages were installed, and what these need themselves."""

import subprocess
import sys
import textwrap

PRELUDE = r"""
import importlib.metadata, re, sys

def closure(names):
    found = set()
    while names:
        name = names.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        names |= {re.split(r"[^\w-]", n)[0].lower() for n in needs if "extra ==" not in n}
    return {name.replace("-", "_") for name in found}

allowed = closure(set(packages)) | {"longlens"}
blocked = {
    top for top, dists in importlib.metadata.packages_distributions().items()
    if not any(d.lower().replace("-", "_") in allowed for d in dists)
}
assert {"rich", "pytest"} <= blocked
sys.modules.update(dict.fromkeys(blocked | {"triton", "transformers"}))  # None: not found
"""


def run_alone(code, packages, *arguments):
    whole = f"packages = {packages!r}\n{PRELUDE}\n{textwrap.dedent(code)}"
    done = subprocess.run([sys.executable, "-c", whole, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
