"""How the class vectors overlap: their Gram matrix, and whether it can be inverted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scan_snap_ode.problem.classes import SequenceClasses


def class_gram(classes: SequenceClasses) -> NDArray[np.float64]:
    """(N, N) G = FᵀF of the initial, normalised class vectors of concrete classes, in double
    precision on the host whatever JAX's default is; the diagonal is exactly 1."""
    layout = classes.layout
    f = np.asarray(classes.support_probs, np.float64)
    f = f / np.linalg.norm(f, axis=1, keepdims=True)
    # Distinct tokens matter to the norm alone.
    shared = np.flatnonzero(layout.num_classes_of_token > 1)
    rows, slots = np.nonzero(layout.mask & np.isin(layout.ids, shared))
    columns = np.searchsorted(shared, layout.ids[rows, slots])
    gram, width = np.zeros((len(f), len(f))), 4096
    for start in range(0, len(shared), width):
        here = (columns >= start) & (columns < start + width)
        block = np.zeros((len(f), min(width, len(shared) - start)))
        block[rows[here], columns[here] - start] = f[rows[here], slots[here]]
        gram += block @ block.T
    np.fill_diagonal(gram, 1)
    return gram


def rank_deficiency(gram: NDArray[Any]) -> str | None:
    """Which class vectors are linearly dependent, or None where their matrix F has full rank.

    Full rank: the smallest eigenvalue of G is above 100 N ε, ε of the type of `gram` (float64 for
    integers). It is found in double precision, so give G in the type in which it will be inverted.

    Args:
        gram: (N, N) G of normalised class vectors with no negative entries; concrete.

    Returns:
        A phrase without a full stop.

    >>> import numpy as np
    >>> from scan_snap_ode.problem.overlap import rank_deficiency
    >>> F = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]])
    >>> rank_deficiency(F @ F.T)
    'classes 0 and 2 coincide'
    """
    smallest = least_eigenvalue(len(gram), np.asarray(gram).dtype)
    G = np.asarray(gram, np.float64)
    if _exceeds(G, smallest):
        return None
    groups = _equal_rows(G, smallest)
    if groups:
        named = [_listed(group) for group in groups[:3]]
        more = len(groups) - len(named)
        text = f"classes {named[0]} coincide"
        if len(named) > 1:
            text += f", so do {', '.join(named[1:])}" + (f" and {more:,} more groups" * (more > 0))
        return text
    # The first k classes that are dependent: leaving the last of them out, they are not, so one
    # combination of them vanishes.
    low, k = 1, len(G)
    while low < k:
        middle = (low + k) // 2
        low, k = (middle + 1, k) if _exceeds(G[:middle, :middle], smallest) else (low, middle)
    combination = np.abs(np.linalg.eigh(G[:k, :k])[1][:, 0])
    members = np.flatnonzero(combination > 1e-3 * combination.max())
    return f"classes {_listed(members.tolist())} are linearly dependent"


def least_eigenvalue(num_classes: int, dtype: Any) -> float:
    """Of G, above which F has full rank in numbers of that type."""
    kind = dtype if np.issubdtype(dtype, np.floating) else np.float64
    return 1e2 * num_classes * float(np.finfo(kind).eps)


def _exceeds(G: NDArray[np.float64], bound: float) -> bool:
    """Whether all eigenvalues do; by Cholesky, a tenth of the cost of finding them."""
    try:
        np.linalg.cholesky(G - bound * np.eye(len(G)))
    except np.linalg.LinAlgError:
        return False
    return True


def _equal_rows(G: NDArray[np.float64], tolerance: float) -> list[list[int]]:
    """The groups of two and more unit vectors f that coincide: 1 − fᵢ·fⱼ is an eigenvalue."""
    length = np.sqrt(np.diag(G))
    equal = 1 - G / (length[:, None] * length) <= tolerance
    first = equal.argmax(1)
    groups = ((np.flatnonzero(first == i)).tolist() for i in np.unique(first))
    return [group for group in groups if len(group) > 1]


def _listed(numbers: list[int], most: int = 8) -> str:
    """'1', '1 and 4', '1, 4 and 9', or '1, 2, 3, 4, 5, 6, 7, 8 and 12 more'."""
    shown = [str(n) for n in numbers[:most]]
    if len(numbers) > most:
        return f"{', '.join(shown)} and {len(numbers) - most:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
