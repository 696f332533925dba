"""What a wrong argument says to the flows beside the joint one, and to the closed form."""

# pyright: reportArgumentType=false

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import scan_snap_ode as sso

PROBS = np.array([[0.5, 0.5, 0, 0, 0, 0], [0.5, 0, 0.5, 0, 0, 0]])
NAN = float("nan")

small = sso.syn_small()
flow = sso.JointFlow(small)
rates = sso.LearningRates(1.0, 1.0)
square = np.zeros((34, 34))
stream = sso.TokenStream(np.arange(400, dtype=np.int32) % 7, tuple("abcdefg"), "letters", "")
windows = sso.windows(stream, 8, query=2)
twins = sso.SequenceClasses(PROBS[[0, 0]], [3, 3], [4, 5])
many = sso.SequenceClasses(np.ones((3, 2)) / 2, [0, 0, 1], [0, 1, 1])
slow = sso.SlowAttentionFlow(small)
heavy = sso.HeavyBall(flow, 0.5)
other_probs = sso.SequenceClasses(
    small.probs**2 / (small.probs**2).sum(1, keepdims=True), small.query, small.next_token
)
once = sso.single_common_token(2, 20, 0.1, 2)


def integrate(flow=flow, **options):
    return sso.integrate(flow, rates, [1.0, 2.0], **options)


def again(first, second, later=rates):
    """The second flow, begun where the first ended."""
    begun = sso.integrate(first, rates, [1.0, 20.0])
    return sso.integrate(second, later, [30.0], init=begun)


def stopped():
    return sso.integrate(flow, rates, [1e6], event=sso.Snap(0.05))


CLASSES = "classes must be SequenceClasses, was Windows; of windows, take windows.classes()"
INDEPENDENT = "classes must have linearly independent class vectors for"
WRAPS = (
    "flow must be a flow of decoder and attention (JointFlow, ModifiedJointFlow, AdiabaticFlow) "
    "inside"
)
MOMENTUM = "momentum must lie in [0, 1), was"

WRONG = [
    # -------------------------------------------------------------------------- other flows
    *(
        (lambda kind=kind: kind(windows), CLASSES)
        for kind in (sso.ModifiedJointFlow, sso.AdiabaticFlow, sso.SlowAttentionFlow)
    ),
    (lambda: sso.ModifiedJointFlow(twins), f"{INDEPENDENT} ModifiedJointFlow"),
    (lambda: sso.SlowAttentionFlow(twins), "classes 0 and 1 coincide"),
    (lambda: sso.SlowAttentionFlow(many), "3 classes hold only 2 tokens"),
    (lambda: sso.SlowAttentionFlow(small, leading_order=1), "leading_order must be bool, was 1."),
    (lambda: sso.CommonTokenFlow(10, 0, 1.0), "num_classes must be an integer of at least 1"),
    (lambda: sso.CommonTokenFlow(4, 3, 1.0), "vocab_size must be an integer of at least 5, was 4."),
    (lambda: sso.CommonTokenFlow(10, 3, 0.0), "c0 must be positive and finite, was 0.0."),
    (lambda: sso.CommonTokenFlow(10, 3, [1.0, 2.0]), "c0 must be one number, was of shape (2,)."),
    (lambda: integrate(slow, init=(square + 1, square)), "init Y0 must be zero for SlowAttention"),
    (
        lambda: integrate(sso.AdiabaticFlow(small), init=(square + 1, square)),
        "init Y0 must be zero for AdiabaticFlow, whose decoder is made of class vectors",
    ),
    (
        lambda: integrate(sso.FiniteStep(sso.AdiabaticFlow(small)), init=(square + 1, square)),
        "init Y0 must be zero for FiniteStep(AdiabaticFlow)",
    ),
    (lambda: sso.HeavyBall(small, 0.5), f"{WRAPS} HeavyBall, was SequenceClasses."),
    (lambda: sso.HeavyBall(slow, 0.5), f"{WRAPS} HeavyBall, was SlowAttentionFlow."),
    (lambda: sso.FiniteStep(sso.CommonTokenFlow(10, 3, 1.0)), "was CommonTokenFlow."),
    (lambda: sso.HeavyBall(heavy, 0.5), "flow must not be HeavyBall inside HeavyBall: it has"),
    (lambda: sso.HeavyBall(sso.FiniteStep(flow), 0.5), "must not be FiniteStep inside HeavyBall"),
    (lambda: sso.HeavyBall(flow, 1.0), f"{MOMENTUM} 1.0."),
    (lambda: sso.HeavyBall(flow, "a"), "momentum must be real numbers, was 'a'."),
    (lambda: sso.FiniteStep(sso.FiniteStep(flow)), "flow must not be FiniteStep inside FiniteStep"),
    (lambda: sso.FiniteStep(heavy), f"{WRAPS} FiniteStep, was HeavyBall."),
    (lambda: sso.FiniteContext(heavy, 9), "inside FiniteContext: put HeavyBall outermost."),
    (lambda: sso.FiniteContext(sso.FiniteStep(flow), 9), "put FiniteStep outermost."),
    (lambda: sso.FiniteContext(sso.FiniteContext(flow, 9), 9), "its context is finite already."),
    (
        lambda: sso.FiniteContext(sso.JointFlow(windows.as_classes()), 8),
        "flow must be of classes, not of single windows",
    ),
    (lambda: sso.FiniteContext(flow), "give either context_length or windows, one of the two."),
    (lambda: sso.FiniteContext(flow, 8, windows=windows), "give either context_length or windows"),
    (lambda: sso.FiniteContext(sso.AdiabaticFlow(twins), 9), f"{INDEPENDENT} FiniteContext of"),
    (lambda: sso.FiniteContext(flow, 1), "context_length must be an integer of at least 2, was 1."),
    (lambda: sso.FiniteContext(flow, windows=small), "windows must be Windows, was Sequence"),
    (
        lambda: sso.FiniteContext(flow, windows=windows),
        "windows must be those that the flow's classes were made of",
    ),
    (lambda: integrate(event=1), "event must be such as Snap(), or None, was 1."),
    (lambda: integrate(event=sso.Snap), "event must be such as Snap(), or None, was <class"),
    (lambda: integrate(event=lambda *_: None), "event must return one real number"),
    (lambda: integrate(event=lambda c, t, m, v: m[1]), "event must return one real number"),
    (lambda: integrate(event=lambda c, t, m, v: t > 1), "event must return one real number"),
    # ------------------------------------------------------------------- continued, but not so
    (
        lambda: again(sso.SlowAttentionFlow(small, leading_order=True), slow),
        "SlowAttentionFlow on the same classes, was of SlowAttentionFlow(leading_order=True)",
    ),
    (
        lambda: again(sso.CommonTokenFlow(10, 3, 1.0), sso.CommonTokenFlow(10, 3, 2.0)),
        "init must be a Trajectory of CommonTokenFlow(c0=2.0) on the same classes, was of",
    ),
    (lambda: again(heavy, sso.HeavyBall(flow, 0.5000001)), "momentum=0.5000001) on the same"),
    (lambda: again(slow, sso.SlowAttentionFlow(other_probs)), "was of SlowAttentionFlow on other"),
    (
        lambda: again(slow, slow, sso.LearningRates(2.0, 1.0)),
        "rates must be those of init for SlowAttentionFlow, whose decoder is a clock that began at",
    ),
    (
        lambda: sso.integrate(flow, rates, [2e6], init=stopped()),
        "init must be a Trajectory that reached its last time, had stopped at its event.",
    ),
    # --------------------------------------------------------------------------- closed form
    (lambda: sso.closed_form(windows, rates, [1.0]), CLASSES),
    (lambda: sso.closed_form(small, rates, [1.0]), "classes must have one query token for the"),
    (
        lambda: sso.closed_form(sso.syn_medium(1, 2, 4, 5), rates, [1.0]),
        "classes must have one common token for the closed form, had not (1 query tokens, 2 ",
    ),
    (
        lambda: sso.closed_form(
            sso.SequenceClasses(once.probs, once.query, once.next_token, [0.4, 0.6]), rates, [1.0]
        ),
        "classes must have equal weights for the closed form",
    ),
    (
        lambda: sso.closed_form(
            sso.SequenceClasses(once.probs, once.query, once.next_token[[0, 0]]), rates, [1.0]
        ),
        "classes must have a next token of its own for each class",
    ),
    (
        lambda: sso.closed_form(sso.single_common_token(1, 20, 0.1, 2), rates, [1.0]),
        "classes must have two classes or more",
    ),
    (lambda: sso.closed_form(once, 1.0, [1.0]), "rates must be LearningRates, was 1.0."),
    (lambda: sso.closed_form(once, rates, [2.0, 1.0]), "ts must be a non-empty 1-D array"),
    (lambda: sso.closed_form(once, rates, []), "ts must be a non-empty 1-D array"),
    (lambda: sso.closed_form(once, rates, [-1.0]), "ts must be finite and not negative, held -1.0"),
    (lambda: sso.closed_form(once, rates, [NAN]), "ts must be finite and not negative, held nan."),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_argument_says_what_it_must_be(call, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert message in str(error.value)


def test_a_traced_decoder_that_is_not_zero_is_refused_as_well():
    adiabatic = sso.AdiabaticFlow(small)

    @eqx.filter_jit
    def end(Y):
        run = sso.integrate(adiabatic, rates, [1.0], init=(Y, jnp.zeros((34, 34))))
        return run.attention_logits

    assert np.isfinite(end(jnp.zeros((34, 34)))).all()
    with pytest.raises(Exception, match="init Y0 must be zero for AdiabaticFlow"):
        end(jnp.ones((34, 34)))


def test_right_arguments_pass():
    assert sso.HeavyBall(sso.FiniteContext(sso.AdiabaticFlow(small), 9), 0.5).classes is small
    assert integrate(sso.AdiabaticFlow(twins)).status == 0
    assert sso.closed_form(once, rates, [1]).attention_logits.shape == (1, 1, 5)
    assert integrate(slow, init=(square, square)).status == 0
