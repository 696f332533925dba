"""The paper's synthetic problems, in the authors' token layout: common tokens first, then each
class's distinct tokens, then the query tokens, then the next tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scan_snap_ode import checks
from scan_snap_ode.problem.classes import SequenceClasses


def syn_small() -> SequenceClasses:
    """Syn-Small (paper, Section 6 and Fig. 4): 2 queries with one next token each, M = 34.

    >>> import scan_snap_ode as sso
    >>> sso.syn_small().vocab_size
    34
    """
    return syn_medium(num_query=2, next_per_query=1)


def syn_medium(
    num_query: int, next_per_query: int = 2, num_common: int = 10, num_distinct: int = 10
) -> SequenceClasses:
    """Syn-Medium (paper, Section 6 and Fig. 6): K = num_query·next_per_query classes.

    Unnormalised probabilities: 1 for each of `num_common` common tokens, `linspace(0.1, 1)` over
    each class's `num_distinct` distinct tokens. M = num_common + num_distinct·K + num_query + K.

    Raises:
        ValueError: when a count is below 1 (num_common: below 0).
    """
    checks.integer("num_query", num_query, 1)
    checks.integer("next_per_query", next_per_query, 1)
    checks.integer("num_common", num_common, 0)
    checks.integer("num_distinct", num_distinct, 1)
    scores = np.concatenate([np.ones(num_common), np.linspace(0.1, 1, num_distinct)])
    num_classes = num_query * next_per_query
    first_query = num_common + num_distinct * num_classes
    return _shared_common(
        scores / scores.sum(),
        num_common,
        query=first_query + np.repeat(np.arange(num_query), next_per_query),
        next_token=first_query + num_query + np.arange(num_classes),
        vocab_size=first_query + num_query + num_classes,
    )


def single_common_token(
    num_classes: int, vocab_size: int, common_mass: float, num_distinct: int
) -> SequenceClasses:
    """One query, one common token (paper, Theorem 4): token 0 carries `common_mass` in each of K
    classes, whose `num_distinct` distinct tokens share the rest as `linspace(0.5, 1.5)`.

    Raises:
        ValueError: when a count is below 1, `common_mass` is outside (0, 1), or `vocab_size` is
            below 2 + K·(num_distinct + 1).
    """
    checks.integer("num_classes", num_classes, 1)
    checks.integer("num_distinct", num_distinct, 1)
    first_query = 1 + num_classes * num_distinct
    checks.integer("vocab_size", vocab_size, first_query + 1 + num_classes)
    checks.within("common_mass", common_mass, 0, 1, open_low=True)
    distinct = np.linspace(0.5, 1.5, num_distinct) if num_distinct > 1 else np.ones(1)
    distinct = distinct * ((1 - common_mass) / distinct.sum())
    return _shared_common(
        np.concatenate([[common_mass], distinct]),
        1,
        query=np.full(num_classes, first_query),
        next_token=first_query + 1 + np.arange(num_classes),
        vocab_size=vocab_size,
    )


def _shared_common(
    probs: NDArray, num_common: int, query: NDArray, next_token: NDArray, vocab_size: int
) -> SequenceClasses:
    """Classes that differ only in which distinct tokens they hold."""
    num_classes, num_distinct = len(query), len(probs) - num_common
    common = np.broadcast_to(np.arange(num_common), (num_classes, num_common))
    distinct = num_common + np.arange(num_classes * num_distinct).reshape(num_classes, -1)
    return SequenceClasses.from_sparse(
        np.concatenate([common, distinct], axis=1),
        np.broadcast_to(probs, (num_classes, len(probs))),
        query,
        next_token,
        vocab_size=vocab_size,
    )
