"""All figures of the paper in one folder, with index.md: pictures, settings, agreements.

    python scripts/reproduce_paper.py paper-figures            # hours, most of them Figure 10
    python scripts/reproduce_paper.py paper-figures --fast     # a minute or two

What the folder holds already is kept, and half-done training goes on: after a kill, repeat the
command. Further options are those of `scan-snap figure`, which this runs for every figure.
"""

import sys

from scan_snap_ode.cli import main

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder, *options = sys.argv[1:]
    sys.argv = ["scan-snap", "figure", "all", "--resume", "--out", folder, *options]
    main()
