"""Draws docs/pictures/report.png: the top of the report's page on a desk and on a phone.

    make report && .venv/bin/python docs/pictures/report.py

Needs playwright, Pillow, and a Chromium on the machine.
"""

import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent.parent
PICTURE = Path(__file__).with_suffix(".png")
FRAME = """
<style>
body { margin: 0; padding: 16px; display: flex; gap: 16px; background: #8b919b; }
iframe { border: 0; border-radius: 8px; height: 1000px; }
</style>
<iframe src="PAGE" style="width: 1100px"></iframe><iframe src="PAGE" style="width: 390px"></iframe>
"""

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=shutil.which("chromium"),
        args=["--no-sandbox", "--allow-file-access-from-files"],
    )
    page = browser.new_page(viewport={"width": 1538, "height": 1032})
    frame = ROOT / "report.frame.html"
    frame.write_text(FRAME.replace("PAGE", "report.html"))
    try:
        page.goto(frame.as_uri())
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURE)
        # by coverage: the rare colour of a marker keeps its place beside many shades of grey
        small = Image.open(PICTURE).convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE)
        small.save(PICTURE, optimize=True)
    finally:
        frame.unlink()
        browser.close()
