"""What the theory assumes of classes, rates and windows, and whether it holds: with numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from scan_snap_ode import checks
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.overlap import class_gram, least_eigenvalue, rank_deficiency
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.theory.concentration import hoeffding_radius

# What "≫" means here. The paper gives no number; its own example, K = 10 classes over M = 1000
# tokens (Figure 3), just satisfies M ≫ K² and M ≫ 100 at this one.
MUCH = 10
# Counts of all tokens of a class stay within the sampling radius with probability 1 - DELTA.
DELTA = 0.05
# Eigenvalues of more classes than this take minutes.
MOST_CLASSES = 2_000

_CLASS_FLOWS = ("joint", "modified", "adiabatic", "slow attention", "common token")
_WIDTH = 100


@dataclass(frozen=True)
class Assumption:
    """One assumption of the theory, and whether it holds.

    Attributes:
        name: by which `Assumptions` finds it.
        statement: what is assumed, and where the paper says so.
        symbol: the quantity that decides.
        value: of it; None where it is not known.
        asked: how it must compare with what.
        threshold: the number that this comes to.
        met: None where there is no verdict.
        why: with a verdict, what it costs to violate this and what then helps; without, why none.
        needed_by: the flows and theorems that assume it.
    """

    name: str
    statement: str
    symbol: str
    value: float | None
    asked: str
    threshold: float
    met: bool | None
    why: str
    needed_by: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The attributes, as plain data."""
        return asdict(self) | {"needed_by": list(self.needed_by)}

    def _cells(self) -> tuple[str, ...]:
        value = self.symbol if self.value is None else f"{self.symbol} = {_number(self.value)}"
        number = _number(self.threshold)
        asked = self.asked if self.asked.endswith(f" {number}") else f"{self.asked} = {number}"
        verdict = self.why if self.met is None else "met" if self.met else "NOT met"
        return self.name, value, asked, verdict


@dataclass(frozen=True, repr=False)
class Assumptions:
    """A report of what the theory assumes: a table when printed, otherwise data.

    Iterates over its lines, in the paper's order, and finds one by its name: `report[name]`.

    Attributes:
        lines: the assumptions.
    """

    lines: tuple[Assumption, ...]

    @property
    def all_met(self) -> bool:
        """Whether no line is violated; lines without a verdict do not count."""
        return all(line.met is not False for line in self.lines)

    @property
    def violated(self) -> tuple[Assumption, ...]:
        """The lines that are not met."""
        return tuple(line for line in self.lines if line.met is False)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a line, as plain data: for JSON or a data frame."""
        return [line.to_dict() for line in self.lines]

    def __iter__(self) -> Iterator[Assumption]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, name: str) -> Assumption:
        """The line of that name, else KeyError."""
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(f"name must be among {[line.name for line in self.lines]}, was {name!r}.")

    def __repr__(self) -> str:
        rows = [("assumption", "value", "asked", "verdict")]
        rows += [line._cells() for line in self.lines]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"Assumptions of the theory (≫: at least {MUCH} times)"]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append(f"  {'  '.join(cells)}".rstrip())
        remarks: dict[tuple[str, str], list[str]] = {}
        for line in self.violated:
            remarks.setdefault((", ".join(line.needed_by), line.why), []).append(line.name)
        for (needed_by, why), names in remarks.items():
            text = f"{' and '.join(names)} (needed by {needed_by}): {why}"
            lines += textwrap.wrap(
                text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
            )
        return "\n".join(lines)


def check_assumptions(
    classes: SequenceClasses,
    rates: LearningRates | None = None,
    context_length: int | None = None,
) -> Assumptions:
    """What the theory assumes of these classes, whether it holds, and who needs it.

    The long-sequence and slow-attention limits (paper, Assumption 1), weak correlation (Assumption
    2), the conditions of Theorem 1, and full column rank of F, which every G⁻¹ needs. Here K is the
    number of classes N, in the paper one for each next token. At least 10 times counts as "≫". The
    overlap E = G − I is that of the initial class vectors, Z = 0.

    Args:
        classes: concrete.
        rates: per step; of arrays the worst entry counts. None: no verdict on the rates.
        context_length: T >= 2, the query counted. None: no verdict on long sequences. The radius
            is Hoeffding's, at 95 %, for independent contextual tokens (Lemma 10), of all tokens
            that the widest class holds.

    Raises:
        ValueError: for an argument that is not as above.

    Above 2,000 classes no eigenvalues are computed, and their lines give no verdict.

    >>> import scan_snap_ode as sso
    >>> report = sso.syn_small().check_assumptions(sso.LearningRates(1.0, 0.1))
    >>> line = report["weak correlation"]
    >>> line.symbol, round(line.value, 3), line.asked, line.threshold, line.met
    ('|λ1(E)|', 0.722, '< 1/K', 0.5, False)
    >>> report["slow attention"].met, report["long sequences"].met
    (True, None)
    """
    checks.kind("classes", classes, SequenceClasses)
    checks.kind("rates", rates, LearningRates, type(None))
    for name, value in (("classes", classes), ("rates", rates)):
        if not checks.is_concrete(value):
            raise ValueError(
                f"{name} must be concrete to check assumptions, was traced by a transformation."
            )
    if context_length is not None:
        checks.integer("context_length", context_length, 2)
    lines = [_long_sequences(classes, context_length), *_of_ratio(rates)]
    lines += _of_sizes(classes)
    lines += _of_overlap(classes)
    lines += _of_decoder_rate(classes, rates)
    lines += _of_visits(classes)
    return Assumptions(tuple(lines))


def _line(
    name: str,
    statement: str,
    symbol: str,
    value: float | None,
    asked: str,
    threshold: float,
    why: str,
    needed_by: tuple[str, ...],
) -> Assumption:
    """With the verdict; without a value, `why` says why there is none."""
    met = None if value is None else _compare(value, asked[0], threshold)
    value = None if value is None else float(value)
    return Assumption(name, statement, symbol, value, asked, float(threshold), met, why, needed_by)


def _compare(value: float, relation: str, threshold: float) -> bool:
    if relation in "<>":
        return bool(value < threshold if relation == "<" else value > threshold)
    slack = 1e-6 * abs(threshold)  # rates and weights may have been rounded to single precision
    return bool(value <= threshold + slack if relation == "≤" else value >= threshold - slack)


def _long_sequences(classes: SequenceClasses, context_length: int | None) -> Assumption:
    radius, why = None, "context_length not given"
    widest = int(classes.layout.mask.sum(1).max())
    smallest = float(np.asarray(classes.support_probs)[classes.layout.mask].min())
    if context_length is not None:
        with jax.ensure_compile_time_eval():
            radius = float(hoeffding_radius(context_length, DELTA, widest))
        why = (
            f"in windows of T = {context_length:,} a token's share strays this far from its "
            "probability; FiniteContext corrects the flows to first order, the window flow needs "
            "no such limit."
        )
    return _line(
        "long sequences",
        "A window holds every token in proportion to its probability (Assumption 1b).",
        "sampling radius",
        radius,
        f"≤ min P/{MUCH}",
        smallest / MUCH,
        why,
        _CLASS_FLOWS,
    )


def _of_ratio(rates: LearningRates | None) -> list[Assumption]:
    ratio = None
    if rates is not None:
        with np.errstate(over="ignore"):
            ratio = np.min(_host(rates.decoder) / _host(rates.attention))
    return [
        _line(
            "slow attention",
            "The decoder learns much faster than attention: η_Y ≫ η_Z (Assumption 1c).",
            "η_Y/η_Z",
            ratio,
            f"≥ {MUCH}",
            MUCH,
            "rates not given"
            if ratio is None
            else "the error grows as η_Z/η_Y; the joint flow needs no such limit.",
            ("adiabatic", "slow attention", "common token"),
        )
    ]


def _of_sizes(classes: SequenceClasses) -> list[Assumption]:
    N, M = classes.num_classes, classes.vocab_size
    why = "terms that Theorem 1 drops are not small; the flows keep them."
    return [
        _line(
            "many tokens a class",
            "The vocabulary is much larger than the square of the number of classes: M ≫ K² "
            "(Assumption 2).",
            "M",
            M,
            f"≥ {MUCH} K²",
            MUCH * N**2,
            why,
            ("Theorem 1", "Theorem 2"),
        ),
        _line(
            "large vocabulary",
            "M ≫ 100 (Theorem 1).",
            "M",
            M,
            f"≥ {MUCH * 100:,}",
            MUCH * 100,
            why,
            ("Theorem 1", "Theorem 2"),
        ),
    ]


def _of_overlap(classes: SequenceClasses) -> list[Assumption]:
    N, M, S = classes.num_classes, classes.vocab_size, len(classes.support_tokens)
    dtype = classes.support_probs.dtype
    largest = weakest = of_gram = None
    why = why_rank = f"not computed: {N:,} classes"
    if N > S:
        of_gram, why_rank = 0.0, f"{N:,} classes hold only {S:,} token{'s' * (S > 1)}"
    if N <= MOST_CLASSES:
        gram = class_gram(classes)
        values = np.linalg.eigvalsh(gram)
        largest, weakest = np.abs(values - 1).max(), np.abs(values - 1).min()
        if N <= S:
            of_gram = max(values[0], 0.0)
            # Judged in the precision in which a flow would invert it.
            deficient = rank_deficiency(gram.astype(dtype))
            condition = values[-1] / of_gram if of_gram else np.inf
            why_rank = deficient or f"the condition number of G is {_number(condition)}."
    if of_gram is not None and not why_rank.endswith("."):
        why_rank += "; JointFlow and AdiabaticFlow do without, or merge or drop classes."
    if largest is not None:
        why = "the gain ξ of distinct tokens may be negative, where Theorem 2 has it positive."
    lines = [
        _line(
            "weak correlation",
            "The classes overlap little: |λ1(E)| < 1/K (Assumption 2).",
            "|λ1(E)|",
            largest,
            "< 1/K",
            1 / N,
            why,
            ("Theorem 1", "Theorem 2"),
        )
    ]
    for name, bound, threshold, source in (
        ("regular overlap in proof", "√(6/M)", np.sqrt(6 / M), "as its proof needs"),
        ("regular overlap in print", "6/√M", 6 / np.sqrt(M), "as printed"),
    ):
        lines.append(
            _line(
                name,
                f"No eigenvalue of E is small: min |λ(E)| ≥ {bound} (Assumption 2, {source}).",
                "min |λ(E)|",
                weakest,
                f"≥ {bound}",
                threshold,
                why,
                ("Theorem 1", "Theorem 2"),
            )
        )
    lines.append(
        _line(
            "independent classes",
            "The class vectors are linearly independent: F has full column rank.",
            "min λ(G)",
            of_gram,
            "> 100 N ε",
            least_eigenvalue(N, dtype),
            why_rank,
            ("modified", "slow attention"),
        )
    )
    return lines


def _of_decoder_rate(classes: SequenceClasses, rates: LearningRates | None) -> list[Assumption]:
    eta = None if rates is None else _host(rates.decoder)
    why = "rates not given"
    needed_by = ("Theorem 1",)
    return [
        _line(
            "decoder not too slow",
            "η_Y ≫ M^-0.99 (Theorem 1).",
            "η_Y",
            None if eta is None else eta.min(),
            f"≥ {MUCH} M^-0.99",
            MUCH * classes.vocab_size**-0.99,
            why if eta is None else "its bounds on γ are not proven for so slow a decoder.",
            needed_by,
        ),
        _line(
            "decoder not too fast",
            "η_Y < 1 (Theorem 1).",
            "η_Y",
            None if eta is None else eta.max(),
            "< 1",
            1,
            why
            if eta is None
            else "its bounds on γ are not proven for so fast a decoder; FiniteStep corrects the "
            "flows for finite steps to first order.",
            needed_by,
        ),
    ]


def _of_visits(classes: SequenceClasses) -> list[Assumption]:
    N = classes.num_classes
    deviation = np.abs(_host(classes.weights) * N - 1).max()
    sharing = np.unique(classes.next_token, return_counts=True)[1].max()
    theorems = ("Theorem 1", "Theorem 2", "common token")
    late = Assumption(
        "late times",
        "Every class has been visited often: t ≫ K² (Theorem 1).",
        "K²",
        float(N**2),
        f"t ≥ {MUCH} K²",
        float(MUCH * N**2),
        None,
        "depends on t",
        ("Theorem 1",),
    )
    return [
        late,
        _line(
            "uniform classes",
            "All classes are equally frequent: w_i = 1/K (Theorem 1).",
            "max |K w - 1|",
            deviation,
            f"≤ {1 / MUCH:g}",
            1 / MUCH,
            "each class has its own clock, as the flows have it; decoder_clock knows only one.",
            theorems,
        ),
        _line(
            "distinct next tokens",
            "Each next token has one class (Assumption 2 and Theorem 2).",
            "classes per next token",
            sharing,
            "≤ 1",
            1,
            "between two classes of one next token the signs of Theorem 2 are reversed.",
            theorems,
        ),
    ]


def _host(values: Any) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)


def _number(value: float) -> str:
    whole = float(value).is_integer() and abs(value) < 1e12
    return f"{value:,.0f}" if whole else f"{value:.3g}"
