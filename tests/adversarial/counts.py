"""What the adversarial tests counted, and the table of it in docs/reliability.md.

Each test ends with `record`, which prints its counts. With ADVERSARIAL_RECORD=1, as in
``make test-adversarial RECORD=1``, they are also written to counts.json and into the page, so that
the page never holds a number that was typed by hand.
"""

import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

import longlens

ROOT = Path(__file__).parents[2]
COUNTS = Path(__file__).with_name("counts.json")
PAGE = ROOT / "docs" / "reliability.md"
BLOCK = re.compile(r"(<!-- counts -->\n).*?(<!-- end -->)", re.DOTALL)


def record(name: str, *, seed: int, **counts: int) -> None:
    """Print what the test `name` counted; keep it, where that is asked for."""
    print(f"\n{name} (seed {seed}): {_words(counts)}")
    if os.environ.get("ADVERSARIAL_RECORD") != "1":
        return
    # what this function itself has written does not make the code another one
    own = [f":(exclude){path.relative_to(ROOT)}" for path in (PAGE, COUNTS)]
    changed = _git("status", "--porcelain", "-uno", "--", ".", *own)
    commit = _git("describe", "--always") + ("-dirty" if changed else "")
    origin = dict(
        date=datetime.now(UTC).date().isoformat(), commit=commit, longlens=longlens.__version__,
        torch=torch.__version__, python=platform.python_version(),
    )  # fmt: skip
    kept = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    kept[name] = {"counts": counts, "seed": seed, **origin}
    COUNTS.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
    PAGE.write_text(BLOCK.sub(lambda m: m[1] + table() + m[2], PAGE.read_text()))


def table() -> str:
    """The recorded counts as a Markdown table."""
    kept = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    lines = [
        "| test | counted | seed | date | commit | torch |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in sorted(kept.items()):
        words = (name, _words(row["counts"]), row["seed"], row["date"], row["commit"], row["torch"])
        lines.append("| " + " | ".join(map(str, words)) + " |")
    return "\n".join(lines) + "\n"


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in counts.items())
