"""Orders of convergence: each approximation approaches what it approximates at the rate that the
theory gives, as the slope of a log-log line."""

import jax
import jax.numpy as jnp
import numpy as np

import scan_snap_ode as sso
from scan_snap_ode.training.batches import Batch, FreshWindows
from scan_snap_ode.training.pairwise import loss_and_gradient


def slope(x, y):
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def test_gradient_descent_approaches_the_flow_at_order_one():
    classes = sso.syn_small()
    rates = 2.0 ** -np.arange(5)
    errors = []
    for rate in rates:
        both, steps = sso.LearningRates(rate, rate), round(100 / rate)
        descent = sso.train(classes, both, steps, batch_size=None, record_at=[steps])
        flow = sso.integrate(sso.JointFlow(classes), both, [steps], rtol=1e-10, atol=1e-12)
        gap = jnp.linalg.norm(descent.attention_logits - flow.attention_logits)
        errors.append(float(gap / jnp.linalg.norm(flow.attention_logits)))
    assert abs(slope(rates, errors) - 1) < 0.1
    # The published figures for rates 1 and 1/2.
    np.testing.assert_allclose(errors[:2], [2.4e-3, 1.3e-3], rtol=0.03)


def test_finite_windows_approach_the_classes_at_order_one():
    """The expected gradient over windows of T tokens against the class gradient, at one (Y, Z).

    A control variate, the class gradient's derivative along the excess of the counts, whose mean is
    zero, takes away the noise of order T^(-1/2).
    """
    classes = sso.syn_small()
    layout, decoder = classes.layout, classes.layout.decoder
    run = sso.integrate(sso.JointFlow(classes), sso.LearningRates(1.0, 1.0), [30.0])
    state = run.decoder[0], run.attention_logits[0]
    of_class = np.repeat(np.arange(2), 4096)

    def gradient(counts, of_class):
        columns, query_row = layout.columns[of_class], layout.query_row[of_class]
        batch = Batch(*map(jnp.asarray, (columns, counts, query_row, of_class)))
        return loss_and_gradient(state, batch, decoder)[1]

    def biases(num_context, seeds):
        sampler = FreshWindows(classes, len(of_class), num_context)

        @jax.jit
        def bias(key):
            counts = sampler._counts(key, jnp.asarray(of_class)) / num_context
            excess = counts.reshape(2, -1, counts.shape[1]).mean(1) - classes.support_probs
            limit, along = jax.jvp(
                lambda x: gradient(x, np.arange(2)), (classes.support_probs,), (excess,)
            )
            return jax.tree.map(lambda a, b, c: a - b - c, gradient(counts, of_class), limit, along)

        keys = [jax.random.key(s, impl="threefry2x32") for s in range(seeds)]
        return np.array([np.concatenate([x.ravel() for x in bias(k)]) for k in keys])

    lengths, sizes = 2 ** np.arange(8, 12), []
    for length in lengths:
        found = biases(int(length) - 1, 12)
        mean, error = found.mean(0), found.std(0, ddof=1) / np.sqrt(len(found))
        assert np.linalg.norm(error) < 0.03 * np.linalg.norm(mean)
        sizes.append(np.linalg.norm(mean))
    assert abs(slope(lengths, sizes) + 1) < 0.1
