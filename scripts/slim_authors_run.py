"""Make tests/data/authors_run.npz from a full recording of the authors' Syn-Small run.

The order of a window's contextual tokens does not matter to the model; sorted, they compress.

    python scripts/slim_authors_run.py authors_run_fig4_seed2.npz
"""

import sys
from pathlib import Path

import numpy as np

STEPS = (1, 2, 4, 6, 8, 10, 48, 100)
TARGET = Path(__file__).parents[1] / "tests" / "data" / "authors_run.npz"


def main(recording: str) -> None:
    """Write the slim copy."""
    full = np.load(recording)
    tokens = full["x"].copy()
    tokens[..., :-1] = np.sort(tokens[..., :-1], axis=-1)
    weights = {f"{name}_{t}": full[f"{name}_{t}"] for t in STEPS for name in ("K1", "K2")}
    np.savez_compressed(TARGET, x=tokens, label=full["label"], loss=full["loss"], **weights)


if __name__ == "__main__":
    main(sys.argv[1])
