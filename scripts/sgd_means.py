"""Means of SGD over many seeds, against which the tests hold the finite-context flow.

Syn-Small, rates 1/4, no momentum, batches of 128 windows, 400 steps from zero. Takes some minutes:

    python scripts/sgd_means.py tests/data/sgd_means.json
"""

import json
import sys
from pathlib import Path

import numpy as np

import scan_snap_ode as sso

STEPS, RATE = 400, 0.25
SEEDS = {128: 256, 32: 512}


def mean(context_length: int, num_seeds: int) -> dict:
    """Z averaged over the seeds, and the standard error of that mean, relative in L2."""
    run = sso.train(
        sso.syn_small(),
        sso.LearningRates(RATE, RATE),
        STEPS,
        context_length=context_length,
        num_seeds=num_seeds,
        record_at=[STEPS],
        progress=True,
    )
    Z = np.asarray(run.attention_logits[:, 0])
    average = Z.mean(0)
    spread = np.sqrt(np.sum((Z - average) ** 2) / (num_seeds - 1))
    return {
        "context_length": context_length,
        "num_seeds": num_seeds,
        "rate": RATE,
        "steps": STEPS,
        "standard_error": float(spread / np.sqrt(num_seeds) / np.linalg.norm(average)),
        "attention_logits": average.tolist(),
    }


if __name__ == "__main__":
    sso.enable_double_precision()
    rows = [mean(*setting) for setting in SEEDS.items()]
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
