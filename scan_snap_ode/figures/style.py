"""What all figures share: colours told apart by everyone, sizes, words on axes, saving."""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scan_snap_ode import files

# Okabe and Ito's palette: distinct under every common colour blindness.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#999999"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)


def sheet(width: float, height: float) -> Figure:
    """An empty figure in inches; not tied to any display."""
    matplotlib.rcParams["axes.unicode_minus"] = False
    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def tidy(axes: Axes, title: str = "") -> None:
    """No box, a bold title at the left, a quiet grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10)
    if title:
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")


def word(text: str, longest: int = 14) -> str:
    """A token as matplotlib can show it: short, and with no mathematics in it."""
    short = text if len(text) <= longest else text[: longest - 1] + "…"
    return short.replace("\\", "\\\\").replace("$", r"\$")


def few_colours(source: Path, path: Path, colours: int = 96) -> Path:
    """A PNG as one of a palette, a third of the size: for documentation."""
    from PIL import Image  # comes with matplotlib

    with files.whole(path) as temporary, Image.open(source) as image:
        small = image.convert("RGB").quantize(colours, dither=Image.Dither.NONE)
        small.save(temporary, format="PNG", optimize=True)
    return path


def save(figure: Figure, path: Path) -> Path:
    """Write the figure, whole or not at all."""
    with files.whole(path) as temporary, warnings.catch_warnings():
        # A text may hold letters that the font lacks; a box in the picture says so well enough.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(temporary, format=path.suffix[1:])
    return path
