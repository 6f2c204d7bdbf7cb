"""README's picture: the header, table, claims and first figure of an HTML report, as a PNG.

    python scripts/picture.py outputs/reports/soup_femnist.html scripts/pictures/report.png

The report is one that ``knot-runner report`` wrote from real runs; nothing in it is changed, sections and notes are
left out. Needs Chromium (``chromium``, ``google-chrome`` or ``chrome`` on the path), which is no dependency.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

#: What a picture of a report leaves out, and how the rest is laid: the claims beside the figure.
STYLE = """
nav, .lines, h3, a[download], details, figcaption, footer, .claims .part { display: none !important }
#settings, #made, #jobs, #command, .claims :is(th, td):is(:nth-child(6), :nth-child(8)) { display: none !important }
body { max-width: none !important }
header, main { max-width: 1560px !important; padding-bottom: 0 !important; margin-bottom: 0 !important }
header h1 { max-width: none !important }
main { display: grid; grid-template-columns: 58% 40%; column-gap: 2% }
#table { grid-column: 1 / 3 }
section { margin: 1rem 0 0 !important; padding-top: 0 !important }
#figures img { width: 100%; height: auto }
"""
WIDTH, HEIGHT = 1600, 2400  # pixels; what is empty below the last line is cut off
MARGIN = 20
LARGEST = 300_000  # bytes
COLOURS = 256


def photographed(report: Path, folder: Path) -> Image.Image:
    """The page as the browser shows it, RGB. Raises ``SystemExit`` where there is no browser."""
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
    if browser is None:
        raise SystemExit("scripts/picture.py: needs Chromium (chromium, google-chrome or chrome on the path)")
    page = folder / "page.html"
    text = report.read_text(encoding="utf-8").replace("</head>", f"<style>{STYLE}</style></head>", 1)
    page.write_text(text, encoding="utf-8")
    shot = folder / "page.png"
    asked = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
    subprocess.run([browser, *asked, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True)
    with Image.open(shot) as image:
        return image.convert("RGB")


def trimmed(image: Image.Image) -> Image.Image:
    """Without the empty part below the last line."""
    blank = Image.new("RGB", image.size, image.getpixel((0, 0)))
    box = ImageChops.difference(image, blank).getbbox() or (0, 0, *image.size)
    return image.crop((0, 0, image.width, min(box[3] + MARGIN, image.height)))


def main(arguments: list[str]) -> int:
    """``REPORT.html PICTURE.png``: draw the one into the other; returns the exit code."""
    if len(arguments) != 2:
        print(__doc__)
        return 2
    report, picture = map(Path, arguments)
    with tempfile.TemporaryDirectory() as folder:
        image = trimmed(photographed(report, Path(folder)))
    image.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(picture, optimize=True)
    size = picture.stat().st_size
    print(f"{picture}: {image.width} x {image.height} pixels, {size / 1000:.0f} kB")
    return 0 if size <= LARGEST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
