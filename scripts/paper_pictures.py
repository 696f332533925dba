"""What docs/paper.md shows, from a folder that `scripts/reproduce_paper.py` made: pictures of few
colours, settings and the tables of agreement.

    python scripts/paper_pictures.py paper-figures docs/figures
"""

import shutil
import sys
from pathlib import Path

from scan_snap_ode.figures import style
from scan_snap_ode.paper.index import write_index


def main(source: Path, target: Path) -> None:
    """Copy what a page needs, and index it."""
    target.mkdir(parents=True, exist_ok=True)
    for picture in source.glob("figure_*.png"):
        style.few_colours(picture, target / picture.name)
        record = picture.with_suffix(".json")
        shutil.copyfile(record, target / record.name)
    write_index(target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
