"""What the authors' own code gives: facts measured from it, mean and sample std over seeds."""

from __future__ import annotations

FIGURE_4_SEEDS, FIGURE_6_SEEDS = 5, 10

# The four statistics of attention, each the mean over both classes; entropies in nats.
STATISTICS = ("entropy", "distinct_entropy", "common_mass", "largest")

# {(η_Y, η_Z): {step: (mean, std) of each of STATISTICS}}, Syn-Small from zero, momentum 0.9.
FIGURE_4 = {
    (1.0, 1.0): {
        10: ((2.8948, 0.0018), (2.0929, 0.0035), (0.5704, 0.0032), (0.0939, 0.0023)),
        100: ((2.7408, 0.0118), (1.9350, 0.0103), (0.3861, 0.0071), (0.1833, 0.0067)),
    },
    (10.0, 1.0): {
        10: ((2.9003, 0.0025), (2.1106, 0.0084), (0.5856, 0.0129), (0.0856, 0.0044)),
        100: ((2.8834, 0.0143), (2.0754, 0.0182), (0.5377, 0.0256), (0.1047, 0.0100)),
    },
}

# {Q: {η_Z: (mean, std) at η_Y/η_Z = 1, 2, 5, 10}}: entropy on the distinct tokens, renormalised, in
# nats, after 100 steps of Syn-Medium from uniform initial values.
FIGURE_6_RATIOS = (1.0, 2.0, 5.0, 10.0)
FIGURE_6 = {
    1: {
        0.5: ((1.971, 0.028), (2.007, 0.032), (2.066, 0.017), (2.092, 0.016)),
        1.0: ((1.871, 0.052), (1.937, 0.052), (2.022, 0.036), (2.053, 0.030)),
        2.0: ((1.699, 0.101), (1.810, 0.099), (1.934, 0.068), (1.900, 0.200)),
        3.0: ((1.551, 0.155), (1.708, 0.152), (1.786, 0.170), (1.825, 0.331)),
    },
    3: {
        0.5: ((2.019, 0.010), (1.988, 0.012), (2.031, 0.007), (2.063, 0.005)),
        1.0: ((1.963, 0.015), (1.920, 0.018), (1.982, 0.009), (2.024, 0.008)),
        2.0: ((1.842, 0.024), (1.809, 0.027), (1.899, 0.018), (1.955, 0.020)),
        3.0: ((1.737, 0.032), (1.715, 0.038), (1.821, 0.030), (1.839, 0.100)),
    },
}


def figure_6_cells() -> dict[tuple[int, float, float], tuple[float, float]]:
    """(mean, std) by (Q, η_Z, η_Y/η_Z)."""
    return {
        (num_query, attention, ratio): cell
        for num_query, table in FIGURE_6.items()
        for attention, cells in table.items()
        for ratio, cell in zip(FIGURE_6_RATIOS, cells, strict=True)
    }
