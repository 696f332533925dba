"""What a figure of the paper is: a setting, data computed from it, a picture, and how far its
numbers are from what they were to be."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import matplotlib.figure
import numpy as np

from scan_snap_ode import files

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Agreement:
    """One number of ours beside the one that it was to be near; met where deviation ≤ bound.

    Attributes:
        what: the number, in words.
        ours: its value here.
        reference: what it was to be near; NaN where only a bound was asked.
        deviation: how far it is off, in `unit`.
        bound: the largest deviation that was asked for.
        unit: of deviation and bound, in words.
    """

    what: str
    ours: float
    reference: float
    deviation: float
    bound: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether it is as near as was asked."""
        return bool(self.deviation <= self.bound)

    @classmethod
    def of_means(
        cls,
        what: str,
        ours: np.ndarray,
        published: tuple[float, float],
        seeds: int,
        bound: float = 3,
    ) -> Agreement:
        """Our seeds against a published mean and sample standard deviation over `seeds`, in
        combined standard errors."""
        mean, std = published
        spread = np.std(ours, ddof=1) if len(ours) > 1 else 0.0  # one seed shows none
        error = np.hypot(std / np.sqrt(seeds), spread / np.sqrt(len(ours)))
        own = float(np.mean(ours))
        return cls(what, own, mean, abs(own - mean) / error, bound, "combined standard errors")


@dataclass(frozen=True)
class PaperFigure(ABC):
    """A figure of the paper and its setting, whose defaults are the paper's.

    Class attributes: `number`; `title`; `minutes` that the full figure takes on two cores;
    `chosen`, what the paper does not say and was chosen here, or is done otherwise; `precision`,
    in which the command computes it ("single" where training is, as the authors' was).
    """

    number: ClassVar[int]
    title: ClassVar[str]
    minutes: ClassVar[float]
    chosen: ClassVar[tuple[str, ...]] = ()
    precision: ClassVar[str] = "double"

    @classmethod
    def fast(cls, **given: Any) -> Self:
        """A small version, under a minute on two cores."""
        return cls(**given)

    @property
    def expected_minutes(self) -> float:
        """How long it takes on two cores."""
        return self.minutes

    def prepare(self) -> None:
        """Read what the figure needs, so that missing data are noticed first."""
        return

    @abstractmethod
    def compute(self, progress: bool, checkpoints: Path | None) -> xr.Dataset:
        """All numbers of the figure."""

    @abstractmethod
    def draw(self, data: xr.Dataset) -> matplotlib.figure.Figure:
        """The picture of `compute`'s numbers."""

    def compare(self, data: xr.Dataset) -> list[Agreement]:
        """Our numbers against published or exact ones."""
        return []

    @property
    def setting(self) -> dict[str, Any]:
        """What the numbers depend on, by name."""
        shown = [f.name for f in fields(self) if f.repr]
        given = {name: getattr(self, name) for name in shown}
        return {"figure": self.number, **given, "precision": precision_now()}


@dataclass(frozen=True)
class Reproduction:
    """A figure that was computed.

    Attributes:
        figure: which, and its setting.
        data: its numbers, labelled.
        agreements: how near they are to published or exact ones.
        seconds: how long it took.
    """

    figure: PaperFigure
    data: xr.Dataset
    agreements: list[Agreement]
    seconds: float

    def draw(self) -> matplotlib.figure.Figure:
        """The picture."""
        return self.figure.draw(self.data)

    def record(self) -> dict[str, Any]:
        """The setting, versions, and the comparison, as figure_N.json holds them."""
        return {
            "figure": self.figure.number,
            "title": self.figure.title,
            "setting": self.figure.setting,
            "chosen_here": list(self.figure.chosen),
            "versions": files.versions(),
            "seconds": self.seconds,
            "agreements": [
                {f.name: getattr(a, f.name) for f in fields(a)} | {"met": a.met}
                for a in self.agreements
            ],
        }

    def save(self, folder: Path) -> list[Path]:
        """Write figure_N.nc, .png, .pdf and last .json, each whole or not at all."""
        from scan_snap_ode import netcdf
        from scan_snap_ode.figures import style

        stem = f"figure_{self.figure.number}"
        netcdf.save_dataset(self.data, folder / f"{stem}.nc")
        picture = self.draw()
        for kind in ("png", "pdf"):
            style.save(picture, folder / f"{stem}.{kind}")
        files.save_json(folder / f"{stem}.json", self.record())
        return [folder / f"{stem}.{kind}" for kind in ("png", "pdf", "nc", "json")]


def reproduce(
    figure: PaperFigure, *, progress: bool = False, checkpoints: Path | None = None
) -> Reproduction:
    """Compute a figure of the paper and compare it.

    Args:
        figure: which, with its setting: `FIGURES[4]()`, or `FIGURES[4].fast()`.
        progress: whether to show bars.
        checkpoints: a folder for half-done training of Figures 7 and 10; None = keep none.

    >>> from scan_snap_ode.paper import FIGURES, reproduce
    >>> found = reproduce(FIGURES[9]())
    >>> all(agreement.met for agreement in found.agreements)
    True
    """
    began = time.monotonic()
    data = figure.compute(progress, checkpoints)
    data.attrs |= {"title": f"Figure {figure.number}: {figure.title}"} | {
        k: str(v) for k, v in (figure.setting | files.versions()).items()
    }
    return Reproduction(figure, data, figure.compare(data), time.monotonic() - began)


def precision_now() -> str:
    """The floating-point type that JAX computes in."""
    return "double" if jax.config.jax_enable_x64 else "single"  # pyright: ignore
