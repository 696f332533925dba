"""What a wrong argument says: its name, what it must be, what it was; before anything is computed.

The corpora and windows state theirs in test_streams_*; files in test_files.
"""

# pyright: reportArgumentType=false

import functools
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import scan_snap_ode as sso
from scan_snap_ode.figures.trajectory import plot_trajectory

PROBS = np.array([[0.5, 0.5, 0, 0, 0, 0], [0.5, 0, 0.5, 0, 0, 0]])
HERE = Path(__file__)
RAGGED = [[1, 2], [3]]
OBJECTS = np.array([[0.5, None], [1, 2]])
NAN, INF = float("nan"), float("inf")
TOKENS = np.array([[[0, 1, 2], [1, 0, 2]]])  # one step of two windows of T = 3

small = sso.syn_small()
flow = sso.JointFlow(small)
rates = sso.LearningRates(1.0, 1.0)
both = sso.LearningRates(1.0, np.array([0.5, 1.0]))
square = np.zeros((34, 34))
stream = sso.TokenStream(np.arange(400, dtype=np.int32) % 7, tuple("abcdefg"), "letters", "")
windows = sso.windows(stream, 8, query=2)
fixed = sso.FixedBatches(TOKENS, [[0, 1]])
twins = sso.SequenceClasses(PROBS[[0, 0]], [3, 3], [4, 5])


# Each public function, with right arguments where none are given.


def classes(probs=PROBS, query=(3, 3), next_token=(4, 5), **options):
    return sso.SequenceClasses(probs, query, next_token, **options)


def sparse(ids=((0, 1), (0, 2)), probs=((0.5, 0.5), (0.5, 0.5)), query=(3, 3), **options):
    options = {"next_token": (4, 5), "vocab_size": 6} | options
    return sso.SequenceClasses.from_sparse(ids, probs, query, **options)


def integrate(flow=flow, rates=rates, ts=(1.0, 2.0), **options):
    return sso.integrate(flow, rates, ts, **options)


def train(source=small, rates=rates, steps=2, **options):
    return sso.train(source, rates, steps, **({"batch_size": 2} | options))


def budget(source=small, rates=rates, ts=(0, 1), **options):
    return sso.error_budget(source, rates, ts, **({"batch_size": 2, "num_seeds": 1} | options))


def batches(tokens=TOKENS, next_token=((0, 1),), vocab_size=None):
    return sso.FixedBatches(tokens, next_token, vocab_size)


single = functools.partial(sso.single_common_token, 2, 20, 0.5, 3)


@functools.cache
def solved(batched=False):
    return integrate(rates=both if batched else rates)


@functools.cache
def trained():
    return train(record_at=[0, 2])


@functools.cache
def budgeted():
    return budget(levels=["SGD", "gradient descent", "class flow"])


def classes_of(num_classes, num_tokens):
    """`num_classes` classes of one token each, `num_tokens` in all."""
    ids = (np.arange(num_classes) % num_tokens)[:, None]
    every = np.full(num_classes, num_tokens)
    options = {"query": every, "next_token": every + 1, "vocab_size": num_tokens + 2}
    return sparse(ids, np.ones(ids.shape), **options)


def long_run():
    """400 records of 2,000 classes over as many tokens: small in itself, but not its attention."""
    return sso.Trajectory(
        classes=classes_of(2000, 2000),
        rates=rates,
        ts=jnp.arange(400.0),
        attention_logits=jnp.zeros((400, 1, 2000)),
        decoder=jnp.zeros((400, 2000, 2)),
        status=jnp.zeros((), int),
        stats={},
        about={},
    )


def unrecorded():
    run = solved()
    return eqx.tree_at(lambda r: (r.ts, r._decoder, r.attention_logits), run,
                       (run.ts[:0], run.decoder[:0], run.attention_logits[:0]))  # fmt: skip


MOMENTUM = "momentum must lie in [0, 1), was"
OPTIMIZER = 'optimizer must be "sgd", "adam" or an optax transformation, was'
TIMES = "ts must be a non-empty 1-D array of times, was of shape"
WHOLE = "ts must be a non-empty list of whole numbers of steps, was"
RISING = "ts must be strictly increasing, from 0 or more to 1 or more, was"
RECORDS = "record_at must be a non-empty list of whole numbers, was"
SAME = "init must be a Trajectory of the same run, differs in"
LEVELS = (
    "levels must be two or more of ['SGD', 'gradient descent', 'optimizer flow', "
    "'finite-context flow', 'class flow', 'adiabatic flow', 'modified flow', 'slow attention', "
    "'closed form'], was"
)

WRONG = [
    # ------------------------------------------------------------------------------- classes
    (lambda: classes(None), "probs must be real numbers, was None."),
    (lambda: classes("abc"), "probs must be real numbers, was 'abc'."),
    (lambda: classes(RAGGED), "probs must be a rectangular array, was ragged."),
    (lambda: classes(OBJECTS), "probs must be real numbers, was of type object."),
    (lambda: classes(PROBS + 0j), "probs must be real numbers, was of type complex128."),
    (lambda: classes(PROBS > 0), "probs must be real numbers, was of type bool."),
    (lambda: classes([["a"]]), "probs must be real numbers, was of type <U1."),
    (lambda: classes({1, 2}), "probs must be real numbers, was {1, 2}."),
    (lambda: classes(0.5), "probs must have shape (N, M), was of shape ()."),
    (lambda: classes(PROBS[0]), "probs must have shape (N, M), was of shape (6,)."),
    (lambda: classes([]), "probs must have shape (N, M), was of shape (0,)."),
    (lambda: classes(np.zeros((0, 4))), "probs must hold at least one class, was empty."),
    (lambda: classes(np.ones((2, 1))), "vocab_size must be an integer of at least 2, was 1."),
    (lambda: classes(PROBS - 0.5), "probs must be non-negative, class 0 holds -0.5."),
    (lambda: classes(PROBS * [[1], [NAN]]), "probs must be finite, class 1 holds nan."),
    (lambda: classes(PROBS * [[1], [0.999]]),
     "probs must sum to 1 in each row, class 1 sums to 0.999."),
    (lambda: classes(PROBS * [[1], [0]]),
     "probs must give every class a token, class 1 has an empty support."),
    (lambda: classes(query=None), "query must be a 1-D array, was of shape ()."),
    (lambda: classes(query=3), "query must be a 1-D array, was of shape ()."),
    (lambda: classes(query=[3.0, 3.0]), "query must be integer token ids, was of type float64."),
    (lambda: classes(query=["a", "b"]), "query must be integer token ids, was of type <U1."),
    (lambda: classes(query=[True, True]), "query must be integer token ids, was of type bool."),
    (lambda: classes(query=RAGGED), "query must be a rectangular array, was ragged."),
    (lambda: classes(query=[3]), "query must have shape (2,), was (1,)."),
    (lambda: classes(query=[]), "query must have shape (2,), was (0,)."),
    (lambda: classes(query=[3, 6]), "query must lie in [0, 6), held 6."),
    (lambda: classes(query=[-1, 3]), "query must lie in [0, 6), held -1."),
    (lambda: classes(query=[3, 2**40]),
     "query must fit 32-bit integers, went up to 1099511627776."),
    (lambda: jax.jit(lambda q: classes(query=q))(jnp.array([3, 3])),
     "query must be concrete token ids, was traced by a transformation."),
    (lambda: classes(next_token=[4, 6]), "next_token must lie in [0, 6), held 6."),
    (lambda: classes(next_token=[[4, 5]]), "next_token must be a 1-D array, was of shape (1, 2)."),
    (lambda: classes(weights="ab"), "weights must be real numbers, was 'ab'."),
    (lambda: classes(weights=[1]), "weights must have shape (2,), was (1,)."),
    (lambda: classes(weights=[0.5, 0.6]), "weights must sum to 1, summed to 1.1."),
    (lambda: classes(weights=[1.5, -0.5]),
     "weights must be finite and non-negative, was [ 1.5 -0.5]."),
    (lambda: classes(weights=[0.5, NAN]),
     "weights must be finite and non-negative, was [0.5 nan]."),
    (lambda: classes(vocab_size=7), "vocab_size must equal the width of probs, 6, was 7."),
    (lambda: classes(vocab_size=6.0), "vocab_size must be an integer of at least 2, was 6.0."),
    (lambda: classes(vocab_size=True), "vocab_size must be an integer of at least 2, was True."),
    (lambda: classes(vocab_size="6"), "vocab_size must be an integer of at least 2, was '6'."),
    (lambda: classes(words=["a"] * 5), "words must hold vocab_size = 6 names, held 5."),
    (lambda: classes(words="abcdef"), "words must be a list of 6 strings, was 'abcdef'."),
    (lambda: classes(words=6), "words must be a list of 6 strings, was 6."),
    (lambda: classes(words=range(6)), "words must be a list of 6 strings, was range(0, 6)."),
    (lambda: classes(origin=None), "origin must be str, was None."),
    (lambda: sparse(ids=[0, 1]), "ids must be a 2-D array, was of shape (2,)."),
    (lambda: sparse(ids=[[0.0, 1], [0, 2]]), "ids must be integer token ids, was of type float64."),
    (lambda: sparse(ids=[[0], [0]]),
     "ids and probs must have one shape, were of shapes (2, 1) and (2, 2)."),
    (lambda: sparse(ids=[[0, 6], [0, 2]]), "ids must lie in [-1, 6), held 6."),
    (lambda: sparse(ids=[[0, -2], [0, 2]]), "ids must lie in [-1, 6), held -2."),
    (lambda: sparse(ids=[[0, -1], [0, 2]]), "probs must be 0 where ids is -1 (padding), was not."),
    (lambda: sparse(ids=[[0, 1], [2, 2]]), "ids must be distinct in a class, class 1 repeats 2."),
    (lambda: sparse(vocab_size=None), "vocab_size must be an integer of at least 2, was None."),
    (lambda: sparse(vocab_size=-6), "vocab_size must be an integer of at least 2, was -6."),
    (lambda: sparse(vocab_size=2**31),
     "vocab_size must be an integer of at most 2147483647, was 2147483648."),
    (lambda: sparse(pooled=PROBS),
     "pooled must be SequenceClasses or None, was array("),
    (lambda: sparse(pooled=sparse(pooled=sparse())),
     "pooled must be classes without any pooled of their own, had some."),
    (lambda: sparse(vocab_size=2**31 - 1).probs,
     "probs would be a dense 2 x 2,147,483,647 array (4,294,967,294 numbers); at most"),
    (lambda: classes_of(12_000, 12_000).overlap,
     "overlap would be a dense 12,000 x 12,000 array (144,000,000 numbers); at most 134,217,728"),
    (lambda: classes().distinct_tokens(2), "i must be an integer of at most 1, was 2."),
    (lambda: classes().name(-1), "token must be an integer of at least 0, was -1."),
    (lambda: classes().name(6), "token must be an integer of at most 5, was 6."),
    # ----------------------------------------------------------------------------- synthetic
    (lambda: sso.syn_medium(0), "num_query must be an integer of at least 1, was 0."),
    (lambda: sso.syn_medium(10**30),
     "num_query must be an integer of at most 2147483647, was 1000000000000000000000000000000."),
    (lambda: sso.syn_medium(2, 0), "next_per_query must be an integer of at least 1, was 0."),
    (lambda: sso.syn_medium(2, 2, -1), "num_common must be an integer of at least 0, was -1."),
    (lambda: sso.syn_medium(2, 2, 2, 1.0),
     "num_distinct must be an integer of at least 1, was 1.0."),
    (lambda: sso.single_common_token(0, 20, 0.5, 3),
     "num_classes must be an integer of at least 1, was 0."),
    (lambda: sso.single_common_token(2, 20, 0.5, 0),
     "num_distinct must be an integer of at least 1, was 0."),
    (lambda: sso.single_common_token(2, 9, 0.5, 3),
     "vocab_size must be an integer of at least 10, was 9."),
    (lambda: sso.single_common_token(2, 20, 0, 3), "common_mass must lie in (0, 1), was 0."),
    (lambda: sso.single_common_token(2, 20, 1.0, 3), "common_mass must lie in (0, 1), was 1.0."),
    (lambda: sso.single_common_token(2, 20, NAN, 3), "common_mass must lie in (0, 1), was nan."),
    (lambda: sso.single_common_token(2, 20, "1", 3), "common_mass must be real numbers, was '1'."),
    (lambda: sso.single_common_token(2, 20, [0.5], 3),
     "common_mass must lie in (0, 1), was [0.5]."),
    # --------------------------------------------------------------------------------- rates
    (lambda: sso.LearningRates(0), "rates.decoder must be positive and finite, was 0."),
    (lambda: sso.LearningRates(-1.0), "rates.decoder must be positive and finite, was -1.0."),
    (lambda: sso.LearningRates(NAN), "rates.decoder must be positive and finite, was nan."),
    (lambda: sso.LearningRates(None), "rates.decoder must be real numbers, was None."),
    (lambda: sso.LearningRates("1"), "rates.decoder must be real numbers, was '1'."),
    (lambda: sso.LearningRates(True), "rates.decoder must be real numbers, was True."),
    (lambda: sso.LearningRates(1j), "rates.decoder must be real numbers, was 1j."),
    (lambda: sso.LearningRates(RAGGED), "rates.decoder must be a rectangular array, was ragged."),
    (lambda: sso.LearningRates([]), "rates.decoder must hold numbers, was empty."),
    (lambda: sso.LearningRates(1.0, INF), "rates.attention must be positive and finite, was inf."),
    (lambda: sso.LearningRates(1.0, [1, 0]), "rates.attention must be positive and finite, was 0."),
    (lambda: sso.LearningRates([1, 2], [1, 2, 3]),
     "rates must have shapes that broadcast, had (2,) for decoder and (3,) for attention."),
    (lambda: rates.with_momentum(1), f"{MOMENTUM} 1."),
    (lambda: rates.with_momentum(None), "momentum must be real numbers, was None."),
    # ----------------------------------------------------------------------------- integrate
    (lambda: sso.JointFlow(None),
     "classes must be SequenceClasses, was NoneType; of windows, take windows.classes() or"),
    (lambda: sso.JointFlow(windows),
     "classes must be SequenceClasses, was Windows; of windows, take "
     "windows.classes() or windows.as_classes()."),
    (lambda: integrate(None), "flow must be a flow such as JointFlow(classes), was NoneType."),
    (lambda: integrate(small),
     "flow must be a flow such as JointFlow(classes), was SequenceClasses."),
    (lambda: integrate(sso.JointFlow),
     "flow must be a flow such as JointFlow(classes), was "),
    (lambda: integrate(rates=(1.0, 0.1)), "rates must be LearningRates, was (1.0, 0.1)."),
    (lambda: integrate(rates=None), "rates must be LearningRates, was None."),
    (lambda: integrate(ts=None), "ts must be real numbers, was None."),
    (lambda: integrate(ts="1, 2"), "ts must be real numbers, was '1, 2'."),
    (lambda: integrate(ts=["1", "2"]), "ts must be real numbers, was of type <U1."),
    (lambda: integrate(ts={"to": 2}), "ts must be real numbers, was {'to': 2}."),
    (lambda: integrate(ts=[1j]), "ts must be real numbers, was of type complex128."),
    (lambda: integrate(ts=[None, 1]), "ts must be real numbers, was of type object."),
    (lambda: integrate(ts=RAGGED), "ts must be a rectangular array, was ragged."),
    (lambda: integrate(ts=[]), f"{TIMES} (0,)."),
    (lambda: integrate(ts=10.0), f"{TIMES} ()."),
    (lambda: integrate(ts=[[1, 2]]), f"{TIMES} (1, 2)."),
    (lambda: jax.jit(lambda ts: integrate(ts=ts).ts)(jnp.ones((2, 2))), f"{TIMES} (2, 2)."),
    (lambda: integrate(ts=[2, 1]), "ts must be strictly increasing, held 2 before 1."),
    (lambda: integrate(ts=[1, 1]), "ts must be strictly increasing, held 1 before 1."),
    (lambda: integrate(ts=[-1, 1]), "ts must not be negative, began at -1."),
    (lambda: integrate(ts=[1, NAN]), "ts must be finite, held nan."),
    (lambda: integrate(ts=[1, INF]), "ts must be finite, held inf."),
    (lambda: integrate(init="ones"),
     "init must be \"zeros\", a Trajectory or (Y0, Z0), was 'ones'."),
    (lambda: integrate(init=None),
     'init must be "zeros", a Trajectory or a pair (Y0, Z0), was None.'),
    (lambda: integrate(init=(1, 2, 3)),
     'init must be "zeros", a Trajectory or a pair (Y0, Z0), was (1, 2, 3).'),
    (lambda: integrate(init=(square, "z")), "init Z0 must be real numbers, was 'z'."),
    (lambda: integrate(init=(RAGGED, square)), "init Y0 must be a rectangular array, was ragged."),
    (lambda: integrate(init=(square + 0j, square)),
     "init Y0 must be real numbers, was of type complex128."),
    (lambda: integrate(init=(square[1:], square)),
     "init Y0 must have shape (34, 34), was (33, 34)."),
    (lambda: integrate(init=(square, square + NAN)), "init Z0 must be finite, held nan."),
    (lambda: integrate(solver="Tsit5"),
     "solver must be AbstractAdaptiveSolver or None, was 'Tsit5'."),
    (lambda: integrate(solver=diffrax.Tsit5),
     "solver must be AbstractAdaptiveSolver or None, was <class "),
    (lambda: integrate(solver=diffrax.Euler()),
     "solver must be AbstractAdaptiveSolver or None, was Euler()."),
    (lambda: integrate(rtol=0), "rtol must be positive and finite, was 0."),
    (lambda: integrate(rtol=None), "rtol must be real numbers, was None."),
    (lambda: integrate(rtol=[1e-3, 1e-4]), "rtol must be one number, was of shape (2,)."),
    (lambda: integrate(atol=NAN), "atol must be positive and finite, was nan."),
    (lambda: integrate(max_steps=0), "max_steps must be an integer of at least 1, was 0."),
    (lambda: integrate(max_steps=1e5), "max_steps must be an integer of at least 1, was 100000.0."),
    (lambda: integrate(max_steps=10**30),
     "max_steps must be an integer of at most 2147483647, was 1000000000000000000000000000000."),
    (lambda: integrate(init=solved()), "ts must lie after t = 2, where init ends, began at 1."),
    (lambda: integrate(ts=[3], init=trained()),
     "init must be a Trajectory of JointFlow on the same classes, was of SGD on the same classes."),
    (lambda: integrate(sso.JointFlow(classes()), ts=[3], init=solved()),
     "init must be a Trajectory of JointFlow on the same classes, was of JointFlow on other "
     "classes."),
    (lambda: integrate(rates=both, ts=[3], init=solved()),
     "rates must have the shape of those being continued, (), had (2,)."),
    (lambda: integrate(ts=[3], init=integrate(max_steps=3, throw=False)),
     "init must be a Trajectory that reached its last time, had failed."),
    # --------------------------------------------------------------------------------- train
    (lambda: train(None), "source must be SequenceClasses, Windows or FixedBatches, was NoneType."),
    (lambda: train(flow),
     "source must be SequenceClasses, Windows or FixedBatches, was JointFlow."),
    (lambda: train(stream),
     "source must be SequenceClasses, Windows or FixedBatches, was TokenStream."),
    (lambda: train(rates=0.5), "rates must be LearningRates, was 0.5."),
    (lambda: train(steps=0), "steps must be an integer of at least 1, was 0."),
    (lambda: train(steps=-5), "steps must be an integer of at least 1, was -5."),
    (lambda: train(steps=10.0), "steps must be an integer of at least 1, was 10.0."),
    (lambda: train(steps="10"), "steps must be an integer of at least 1, was '10'."),
    (lambda: train(steps=2**31), "steps must be an integer of at most 2147483647, was 2147483648."),
    (lambda: train(batch_size=0), "batch_size must be an integer of at least 1, was 0."),
    (lambda: train(batch_size=2.5), "batch_size must be an integer of at least 1, was 2.5."),
    (lambda: train(context_length=1), "context_length must be an integer of at least 2, was 1."),
    (lambda: train(context_length="8"),
     "context_length must be an integer of at least 2, was '8'."),
    (lambda: train(windows, context_length=9),
     "context_length must be that of the windows, 8, or None, was 9."),
    (lambda: train(momentum=1.0), f"{MOMENTUM} 1.0."),
    (lambda: train(momentum=-0.1), f"{MOMENTUM} -0.1."),
    (lambda: train(momentum=NAN), f"{MOMENTUM} nan."),
    (lambda: train(momentum="0.9"), "momentum must be real numbers, was '0.9'."),
    (lambda: train(momentum=[0.9]), f"{MOMENTUM} [0.9]."),
    (lambda: train(momentum=0.9, optimizer="adam"),
     'momentum must be 0 unless optimizer is "sgd", was 0.9.'),
    (lambda: train(optimizer="Adam"), f"{OPTIMIZER} 'Adam'."),
    (lambda: train(optimizer=None), f"{OPTIMIZER} None."),
    (lambda: train(optimizer=np.zeros(2)), f"{OPTIMIZER} array([0., 0.])."),
    (lambda: train(optimizer=optax.adam), f"{OPTIMIZER} <function adam"),
    (lambda: train(optimizer=optax.sgd(0.1)),
     "optimizer must be a transformation of the gradient without sign or learning rate, such as"),
    (lambda: train(init="ones"),
     "init must be \"zeros\", \"uniform\", a Trajectory or (Y0, Z0), was 'ones'."),
    (lambda: train(init=square),
     'init must be "zeros", a Trajectory or a pair (Y0, Z0), was array('),
    (lambda: train(init=(square, square[0])), "init Z0 must have shape (34, 34), was (34,)."),
    (lambda: train(classes_of(20_000, 20_000), init="uniform"),
     "init='uniform': Y would be a dense 20,000 x 20,002 array (400,040,000 numbers); at most"),
    (lambda: train(num_seeds=0), "num_seeds must be an integer of at least 1, was 0."),
    (lambda: train(num_seeds=None), "num_seeds must be an integer of at least 1, was None."),
    (lambda: train(num_seeds=10**30),
     "num_seeds must be an integer of at most 2147483647, was 1000000000000000000000000000000."),
    (lambda: train(seed=-1), "seed must be an integer of at least 0, was -1."),
    (lambda: train(seed=0.0), "seed must be an integer of at least 0, was 0.0."),
    (lambda: train(seed=2**32), "seed must be an integer of at most 4294967295, was 4294967296."),
    (lambda: train(seed=2**32 - 1, num_seeds=2),
     "seed must be an integer of at most 4294967294, was 4294967295."),
    (lambda: train(record_at=[]), f"{RECORDS} []."),
    (lambda: train(record_at=2), f"{RECORDS} 2."),
    (lambda: train(record_at=[0.5]), f"{RECORDS} [0.5]."),
    (lambda: train(record_at=[[0, 1]]), f"{RECORDS} [[0, 1]]."),
    (lambda: train(record_at="all"), "record_at must be real numbers, was 'all'."),
    (lambda: train(record_at=RAGGED), "record_at must be a rectangular array, was ragged."),
    (lambda: train(record_at=[-1, 1]), "record_at must lie in [0, 2], held -1."),
    (lambda: train(record_at=[0, 3]), "record_at must lie in [0, 2], held 3."),
    (lambda: train(checkpoint=3), "checkpoint must be a path, was 3."),
    (lambda: train(checkpoint=HERE.parent),
     f"checkpoint must be a file to write, was a folder: {HERE.parent}."),
    (lambda: train(checkpoint=HERE / "x"),
     f"the folder of checkpoint must be a folder to write to, was {HERE}: "),
    (lambda: train(fixed, batch_size=None),
     "batch_size must not be None for FixedBatches, which have their own."),
    (lambda: train(fixed, steps=2), "steps must be at most the 1 of the FixedBatches, was 2."),
    (lambda: train(steps=1, init=trained()),
     "steps must be at least the 2 updates that init has had, was 1."),
    (lambda: train(steps=3, init=solved()), f"{SAME} optimizer."),
    (lambda: train(steps=3, seed=1, init=trained()), f"{SAME} seed."),
    (lambda: train(steps=3, num_seeds=2, init=trained()), f"{SAME} num_seeds."),
    (lambda: train(steps=3, batch_size=3, init=trained()), f"{SAME} batch_size."),
    (lambda: train(steps=3, momentum=0.1, init=trained()), f"{SAME} momentum."),
    (lambda: train(steps=3, optimizer="adam", init=trained()), f"{SAME} optimizer."),
    (lambda: train(steps=3, context_length=9, init=trained()), f"{SAME} context_length."),
    (lambda: train(rates=both, steps=3, init=trained()), f"{SAME} rates."),
    (lambda: train(rates=sso.LearningRates(1, 2), steps=3, init=trained()), f"{SAME} rates."),
    (lambda: train(sso.syn_medium(2), steps=3, init=trained()), f"{SAME} source."),
    (lambda: train(steps=3, optimizer=optax.trace(0.9), init=train(optimizer=optax.identity())),
     f"{SAME} optimizer."),
    (lambda: batches(None), "tokens must be a 3-D array, was of shape ()."),
    (lambda: batches(RAGGED), "tokens must be a rectangular array, was ragged."),
    (lambda: batches(TOKENS[0]), "tokens must be a 3-D array, was of shape (2, 3)."),
    (lambda: batches(TOKENS * 1.0), "tokens must be integer token ids, was of type float64."),
    (lambda: batches(TOKENS[:, :, :1]),
     "tokens must have shape (steps, B, T) with T of at least 2, was (1, 2, 1)."),
    (lambda: batches(TOKENS[:0]),
     "tokens must have shape (steps, B, T) with T of at least 2, was (0, 2, 3)."),
    (lambda: batches(-TOKENS), "tokens must lie in [0, 2), held -2."),
    (lambda: batches(TOKENS * 2**40), "tokens must fit 32-bit integers, went up to 2199023255552."),
    (lambda: batches(TOKENS * 10**8),
     "vocab_size must be an integer of at most 10000000, was 200000001."),
    (lambda: batches(next_token=[0, 1]), "next_token must be a 2-D array, was of shape (2,)."),
    (lambda: batches(next_token=[[0]]), "next_token must have shape (1, 2), was (1, 1)."),
    (lambda: batches(next_token=[["a", "b"]]),
     "next_token must be integer token ids, was of type <U1."),
    (lambda: batches(next_token=[[0, 3]], vocab_size=3), "next_token must lie in [0, 3), held 3."),
    (lambda: batches(vocab_size=2.0), "vocab_size must be an integer of at least 2, was 2.0."),
    (lambda: batches(0 * TOKENS, [[0, 0]]), "vocab_size must be an integer of at least 2, was 1."),
    # -------------------------------------------------------------------------------- budget
    (lambda: budget(None), "source must be SequenceClasses or Windows, was None."),
    (lambda: budget(fixed),
     "source must be SequenceClasses or Windows, was FixedBatches(1 steps of 2 windows of T = 3,"),
    (lambda: budget(rates=1.0), "rates must be LearningRates, was 1.0."),
    (lambda: budget(rates=both), "rates must be two numbers for a budget, had the shape (2,)."),
    (lambda: budget(ts=[]), f"{WHOLE} []."),
    (lambda: budget(ts=5), f"{WHOLE} 5."),
    (lambda: budget(ts=[0, 1.5]), f"{WHOLE} [0, 1.5]."),
    (lambda: budget(ts=[0, NAN]), f"{WHOLE} [0, nan]."),
    (lambda: budget(ts=[0, INF]), f"{WHOLE} [0, inf]."),
    (lambda: budget(ts="12"), "ts must be real numbers, was '12'."),
    (lambda: budget(ts=RAGGED), "ts must be a rectangular array, was ragged."),
    (lambda: budget(ts=[2, 1]), f"{RISING} [2, 1]."),
    (lambda: budget(ts=[-1, 1]), f"{RISING} [-1, 1]."),
    (lambda: budget(ts=[0]), f"{RISING} [0]."),
    (lambda: budget(ts=[0, 2**40]),
     "ts must be at most 2147483647 steps, went up to 1.09951e+12."),
    (lambda: budget(ts=[1e300]), "ts must be at most 2147483647 steps, went up to 1e+300."),
    (lambda: budget(levels="SGD"), f"{LEVELS} 'SGD'."),
    (lambda: budget(levels=["SGD"]), f"{LEVELS} ['SGD']."),
    (lambda: budget(levels=["SGD", "SGD"]), f"{LEVELS} ['SGD', 'SGD']."),
    (lambda: budget(levels=["SGD", "window flow"]), f"{LEVELS} ['SGD', 'window flow']."),
    (lambda: budget(levels=[["SGD"], "class flow"]), f"{LEVELS} [['SGD'], 'class flow']."),
    (lambda: budget(levels=2), f"{LEVELS} 2."),
    (lambda: budget(num_seeds=0), "num_seeds must be an integer of at least 1, was 0."),
    (lambda: budget(seed=-1), "seed must be an integer of at least 0, was -1."),
    (lambda: budget(batch_size=0), "batch_size must be an integer of at least 1, was 0."),
    (lambda: budget(context_length=1), "context_length must be an integer of at least 2, was 1."),
    (lambda: budget(windows, context_length=9),
     "context_length must be that of the windows, 8, or None, was 9."),
    (lambda: budget(momentum=1.0), f"{MOMENTUM} 1.0."),
    (lambda: budget(on_level="print"), "on_level must be a function or None, was 'print'."),
    (lambda: budgeted().distance("SGD", "theory"),
     "level must be among ['SGD', 'gradient descent', 'class flow'], was 'theory'."),
    (lambda: budgeted().loss("sgd"),
     "level must be among ['SGD', 'gradient descent', 'class flow'], was 'sgd'."),
    (lambda: budgeted().distance("class flow", "SGD"),
     "below must be a level that assumes more than class flow, was SGD."),
    (lambda: budgeted().bias("theory"),
     "level must be among ['SGD', 'gradient descent', 'class flow'], was 'theory'."),
    (lambda: budget(tolerance=0), "tolerance must be positive and finite, was 0."),
    (lambda: budget(tolerance=[0.1, 0.2]), "tolerance must be one number, was of shape (2,)."),
    (lambda: budget(solver_error=1), "solver_error must be bool, was 1."),
    (lambda: budget(levels=["SGD", "slow attention"], source=twins),
     "levels must leave two or more that apply to the source. slow attention: classes must have "
     "linearly independent class vectors"),
    # ---------------------------------------------------------------------------- trajectory
    (lambda: solved(True).at(2), "index must lie within the axes of the runs, (2,), was (2,)."),
    (lambda: solved(True).at(-3), "index must lie within the axes of the runs, (2,), was (-3,)."),
    (lambda: solved(True).at((0, 0)),
     "index must lie within the axes of the runs, (2,), was (0, 0)."),
    (lambda: solved().at(0), "index must lie within the axes of the runs, (), was (0,)."),
    (lambda: solved().attention_on(None), "classes must be SequenceClasses, was None."),
    (lambda: solved().attention_on(windows),
     "classes must be SequenceClasses, was Windows of letters"),
    (lambda: solved().attention_on(classes()),
     "classes must hold only tokens of this run, query 3 is not among its 2."),
    (lambda: solved().attention_on(sparse([[0, 33]] * 2, query=[30, 30], vocab_size=34)),
     "classes must hold only tokens of this run, support token 33 is not among its 30."),
    (lambda: solved().loss_on("ab"), "classes must be SequenceClasses, was 'ab'."),
    (lambda: solved().loss_on(classes()),
     "classes must have the query_tokens of this run, had others."),
    (lambda: long_run().attention,
     "attention would be a dense 400 x 2,000 x 2,000 array (1,600,000,000 numbers); at most"),
    (lambda: solved().to_xarray("loss"),
     "observables must be a list of ('attention', 'entropy', 'loss'), was 'loss'."),
    (lambda: solved().to_xarray(["snap"]),
     "observables must be a list of ('attention', 'entropy', 'loss'), was ['snap']."),
    (lambda: solved().save(None), "path must be a path, was None."),
    (lambda: unrecorded().plot(),
     "the Trajectory must hold recorded values to be drawn, had none."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    assert type(caught.value) is ValueError
    assert str(caught.value).startswith(message), str(caught.value)


def test_right_arguments_are_taken():
    """The helpers above are right where nothing is wrong, and lists and ints do as arguments."""
    assert classes(PROBS.tolist(), [3, 3], [4, 5], weights=[1, 0]).num_classes == 2
    assert sparse().vocab_size == 6
    assert sso.LearningRates(1, [1, 2]).shape == (2,)
    assert integrate(ts=[1, 2], rtol=1, atol=np.array(1)).ts.tolist() == [1, 2]
    assert train(seed=2**32 - 1, num_seeds=np.int64(1), batch_size=None).ts.tolist() == [0, 1, 2]
    options = {"batch_size": np.int64(2), "context_length": np.int64(5)}
    assert train(steps=np.int64(1), seed=np.uint8(1), **options).about["batch_size"] == 2
    assert integrate(max_steps=np.int64(50)).status == 0
    assert batches().num_steps == 1
    assert single().num_classes == 2
    assert list(budgeted().runs) == ["SGD", "gradient descent", "class flow"]


@pytest.mark.parametrize("option", ["rtol", "atol"])
def test_a_budget_checks_its_flows_before_it_trains(monkeypatch, option):
    monkeypatch.setattr("scan_snap_ode.budget.run.train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ValueError, match=f"{option} must be positive and finite, was 0"):
        budget(**{option: 0})


@pytest.mark.parametrize(
    "options",
    [{"record_at": [9]}, {"momentum": 2.0}, {"checkpoint": HERE / "x"}, {"init": "ones"}],
)
def test_training_checks_all_before_its_first_step(monkeypatch, options):
    monkeypatch.setattr(
        "scan_snap_ode.training.train.segments", lambda *_, **__: pytest.fail("trained")
    )
    with pytest.raises(ValueError, match="must"):
        train(**options)


def test_a_huge_vocabulary_costs_nothing():
    """M enters as a number alone, where no token of the upper part is in any support."""
    huge = sparse(vocab_size=2**31 - 1)
    assert "vocabulary M   2,147,483,647" in repr(huge)
    assert huge.common_tokens.tolist() == [0]
    assert huge.distinct_tokens(1).tolist() == [2]
    run = integrate(sso.JointFlow(huge))
    assert run.decoder_tokens.tolist() == [4, 5, -1]
    assert np.allclose(run.loss[0], np.log(2**31 - 1), atol=1)


def test_seeds_beyond_32_bits_would_repeat_in_single_precision(single_precision):
    """Why they are refused."""
    seeds = [jax.random.key_data(jax.random.key(s, impl="threefry2x32")) for s in (1, 2**32 + 1)]
    assert (seeds[0] == seeds[1]).all()


def test_a_figure_of_traced_values_is_refused():
    @jax.jit
    def draw(ts):
        plot_trajectory(integrate(ts=ts))
        return ts

    with pytest.raises(ValueError, match="the Trajectory must hold recorded values to be drawn"):
        draw(jnp.array([1.0]))


def test_a_run_of_another_precision_is_not_continued(single_precision):
    halves = sso.syn_small()
    train_halves = functools.partial(sso.train, halves, sso.LearningRates(1.0, 1.0))
    flow = sso.JointFlow(halves)
    run, solve = train_halves(2), integrate(flow, sso.LearningRates(1.0, 1.0))
    jax.config.update("jax_enable_x64", True)
    with pytest.raises(ValueError, match=f"{SAME} precision."):
        train(steps=3, batch_size=128, init=run)
    with pytest.raises(ValueError, match="init must be of type float64, as the flow, was float32"):
        integrate(ts=[3.0], init=solve)


@pytest.mark.parametrize("rate", [1e308, 1e-60])
def test_a_rate_that_single_precision_cannot_hold(rate):
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match=r"in single .* was (inf|0)"),
    ):
        sso.LearningRates(rate)
