"""Makes the README's relative links absolute in the package's metadata, so that they work on PyPI.

In the repository they are relative, and so they follow a clone, a fork or a branch. A package index
has no such place. Set ``LONGLENS_URL`` to the address of the repository while building, as the
release workflow does with its own:

    LONGLENS_URL=https://HOST/OWNER/longlens python -m build

Links to files become ``$LONGLENS_URL/blob/vVERSION/…``, pictures ``$LONGLENS_URL/raw/vVERSION/…``,
and the index gets links to source, documentation, changelog and issues. Without the variable the
README is packed as it is and the package states no addresses.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def absolute_links(text: str, url: str, tag: str) -> str:
    """``text`` with each relative link replaced by an address below ``url``."""

    def absolute(match: re.Match[str]) -> str:
        target = match[1]
        kind = "raw" if target.endswith((".svg", ".png")) else "blob"
        return f"]({url}/{kind}/{tag}/{target})"

    return RELATIVE_LINK.sub(absolute, text)


class Readme(MetadataHookInterface):
    """Fills in ``readme`` and ``urls``, which pyproject.toml declares dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        url = os.environ.get("LONGLENS_URL", "").rstrip("/")
        if url:
            tag = f"v{metadata['version']}"
            text = absolute_links(text, url, tag)
            metadata["urls"] = {
                "Source": url,
                "Documentation": f"{url}/tree/{tag}/docs",
                "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{url}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
