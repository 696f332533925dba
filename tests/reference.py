"""An independent model: the full M×M system in NumPy, straight from the paper's definitions, with
none of the package's reductions."""

import numpy as np
from hypothesis import strategies as st

import scan_snap_ode as sso


def gradient(probs, query, next_token, weights, Y, Z):
    """J, ∂J/∂Y and ∂J/∂Z of the full system: Y[token, next], Z[query, token], both (M, M)."""
    J, dY, dZ = 0.0, np.zeros_like(Y), np.zeros_like(Z)
    for P, m, n, w in zip(probs, query, next_token, weights, strict=True):
        score = P * np.exp(Z[m] - Z[m].max())
        f = score / np.linalg.norm(score)
        logits = Y.T @ f
        alpha = np.exp(logits - logits.max())
        alpha /= alpha.sum()
        J += w * np.log(alpha[n])
        residual = np.eye(len(Y))[n] - alpha
        g = Y @ residual
        dY += w * np.outer(f, residual)
        dZ[m] += w * f * (g - f * (f @ g))
    return J, dY, dZ


def flow(classes, rates, t, Y, Z):
    """(Y, Z) of the joint flow at time t, by SciPy's DOP853."""
    from scipy.integrate import solve_ivp

    M = classes.vocab_size
    arrays = [np.asarray(x) for x in (classes.probs, classes.query, classes.next_token)]
    weights = np.asarray(classes.weights)

    def field(_, state):
        Y, Z = state.reshape(2, M, M)
        _, dY, dZ = gradient(arrays[0], arrays[1], arrays[2], weights, Y, Z)
        return np.concatenate(
            [float(rates.decoder) * dY.ravel(), float(rates.attention) * dZ.ravel()]
        )

    start = np.concatenate([Y.ravel(), Z.ravel()])
    end = solve_ivp(field, (0, t), start, "DOP853", rtol=1e-11, atol=1e-13).y[:, -1]
    return end.reshape(2, M, M)


@st.composite
def class_sets(draw, most_classes=5, most_tokens=9):
    """Random classes: shared queries, shared next tokens, tokens in any role, any weights."""
    M = draw(st.integers(2, most_tokens))
    N = draw(st.integers(1, most_classes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    probs = rng.dirichlet(np.ones(M), N) * (rng.random((N, M)) < draw(st.floats(0.3, 1)))
    empty = probs.sum(1) == 0
    probs[empty, rng.integers(0, M, empty.sum())] = 1
    probs /= probs.sum(1, keepdims=True)
    return sso.SequenceClasses(
        probs, rng.integers(0, M, N), rng.integers(0, M, N), rng.dirichlet(np.ones(N))
    )
