"""Labelled data and NetCDF files, read back without loss."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scan_snap_ode import checks, files
from scan_snap_ode.problem.classes import Layout, SequenceClasses
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.trajectory import Trajectory

if TYPE_CHECKING:
    import xarray as xr

    from scan_snap_ode.budget import ErrorBudget

FORMAT = "scan-snap-ode trajectory 1"
OBSERVABLES = ("attention", "entropy", "loss")
_HEADER = 2**16  # bytes of a group beside its arrays, at most


def to_dataset(run: Trajectory, observables: Sequence[str] = OBSERVABLES) -> xr.Dataset:
    """The labelled Dataset of a Trajectory; see `Trajectory.to_xarray`."""
    import xarray as xr

    if isinstance(observables, str) or not set(observables) <= set(OBSERVABLES):
        raise ValueError(f"observables must be a list of {OBSERVABLES}, was {observables!r}.")
    lead = _lead(run)
    axes = {
        "attention_logits": ("query", "token"),
        "decoder": ("token", "decoder_token"),
        "attention": ("class", "token"),
        "entropy": ("class",),
        "loss": (),
        "batch_loss": (),
    }
    units = {"entropy": "nats", "loss": "nats", "batch_loss": "nats"}
    names = ["attention_logits", "decoder", *observables]
    if run.batch_loss is not None:
        names.append("batch_loss")
    variables: dict[str, Any] = {
        name: (
            (*lead, "time", *axes[name]),
            np.asarray(getattr(run, name)),
            {"units": units.get(name, "1")},
        )
        for name in names
    }
    for name in ("decoder", "attention"):
        rate = np.asarray(getattr(run.rates, name))
        variables[f"rate_{name}"] = (lead[len(lead) - rate.ndim :], rate, {"units": "per step"})
    variables["status"] = (lead, np.asarray(run.status))
    for name, value in run.stats.items():
        variables[f"stats_{name}"] = (lead, np.asarray(value))
    about = {k: _attribute(v) for k, v in run.about.items()}
    about["source"] = run.classes.layout.origin
    about |= {f"version_{k}": v for k, v in files.versions().items()}
    return xr.Dataset(variables, _coordinates(run, observables), {"format": FORMAT, **about})


def _lead(run: Trajectory) -> tuple[str, ...]:
    num_lead = len(run.axes)
    rates = tuple(f"rates_{k}" for k in range(len(run.rates.shape)))
    return rates if num_lead == len(rates) else ("seed", *rates)


def _coordinates(run: Trajectory, observables: Sequence[str]) -> dict[str, Any]:
    classes = run.measured_classes
    coordinates: dict[str, Any] = {
        "time": ("time", np.asarray(run.ts), {"units": "steps"}),
        "query": run.query_tokens,
        "token": run.support_tokens,
        "decoder_token": run.decoder_tokens,
    }
    if "seed" in _lead(run):
        first = int(run.about.get("seed", 0))
        coordinates["seed"] = first + np.arange(run.axes[0])
    if {"attention", "entropy"} & set(observables):
        coordinates["class_query"] = ("class", classes.query)
        coordinates["class_next"] = ("class", classes.next_token)
        coordinates["class_weight"] = ("class", np.asarray(classes.weights))
    if classes.words is not None:
        for axis, tokens in (("query", run.query_tokens), ("token", run.support_tokens)):
            coordinates[f"{axis}_word"] = (axis, words(classes, tokens))
    return coordinates


def words(classes: SequenceClasses, tokens: Any) -> np.ndarray:
    """The tokens' words, as a file can hold them."""
    return np.array([files.text(classes.name(t)) for t in tokens], dtype=object)


def save_trajectory(
    run: Trajectory, path: str | Path, observables: Sequence[str] = OBSERVABLES
) -> Path:
    """See `Trajectory.save`."""
    path = files.writable_file("path", path)
    groups = {"/": to_dataset(run, observables), "classes": _classes_dataset(run.classes)}
    if run.classes.pooled is not None:
        groups["pooled"] = _classes_dataset(run.classes.pooled)
    return _write(path, groups | {"state": _state_dataset(run)})


def save_budget(budget: ErrorBudget, path: Path) -> Path:
    """A NetCDF file with the budget at its root and every level's run as a group."""
    import xarray as xr

    groups = {"/": budget.to_xarray() if budget.runs else xr.Dataset()}
    for name, run in budget.runs.items():
        groups[name.replace(" ", "_")] = to_dataset(run, ("entropy",))
    if budget.unfinished is not None:
        data = to_dataset(budget.unfinished, ("entropy",) if len(budget.unfinished.ts) else ())
        # It has fewer times than the root, whose axis groups inherit.
        groups["unfinished"] = data.rename(time="time_reached")
    return _write(path, groups)


def save_dataset(data: xr.Dataset, path: Path) -> Path:
    """A NetCDF file of one Dataset."""
    return _write(path, {"/": data})


def _write(path: Path, groups: dict[str, xr.Dataset]) -> Path:
    files.reserve(path.parent, sum(_HEADER + data.nbytes for data in groups.values()))
    with files.whole(path) as temporary:
        for k, (name, data) in enumerate(groups.items()):
            data.to_netcdf(temporary, "a" if k else "w", group=name, engine="h5netcdf")
    return path


def load(path: str | Path) -> Trajectory:
    """Read a Trajectory that `Trajectory.save` wrote, without loss: arrays keep their type, as
    NumPy arrays where JAX's present precision cannot hold it.

    Raises:
        ValueError: when the file is missing or no such file.
    """
    path = checks.file("path", path)
    if not path.is_file():
        raise ValueError(f"path must be a saved Trajectory, {path} was not found.")
    try:
        return _read_trajectory(path)
    except (OSError, LookupError, ValueError, RuntimeError, AttributeError, TypeError) as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise ValueError(f"path must be a saved Trajectory, {path} was not: {reason}.") from error


def _read_trajectory(path: Path) -> Trajectory:
    data = _open(path)
    if data.attrs.get("format") != FORMAT:
        raise ValueError(f"its format is {data.attrs.get('format')!r}, not {FORMAT!r}")
    state = _open(path, "state")
    return Trajectory(
        classes=_read_classes(path, "classes"),
        rates=_rates(_array(data["rate_decoder"]), _array(data["rate_attention"])),
        ts=_array(data["time"]),
        attention_logits=_array(data["attention_logits"]),
        decoder=_array(data["decoder"]),
        status=_array(data["status"]),
        stats={
            str(k).removeprefix("stats_"): _array(v)
            for k, v in data.data_vars.items()
            if str(k).startswith("stats_")
        },
        state=[_read_leaf(state[f"leaf_{k}"]) for k in range(len(state.data_vars))],
        batch_loss=_array(data["batch_loss"]) if "batch_loss" in data else None,
        about=json.loads(state.attrs["about"]),
    )


def _open(path: Path, group: str | None = None) -> xr.Dataset:
    import xarray as xr

    with xr.open_dataset(
        path, group=group, engine="h5netcdf", mask_and_scale=False, decode_times=False
    ) as opened:
        return opened.load()


def _classes_dataset(classes: SequenceClasses) -> xr.Dataset:
    import xarray as xr

    squeeze = {"zlib": True, "complevel": 4, "shuffle": True}
    variables: dict[str, Any] = {
        "ids": (("row", "slot"), classes.ids),
        "probs": (("row", "slot"), np.asarray(classes.support_probs)),
        "query": ("row", classes.query),
        "next_token": ("row", classes.next_token),
        "weights": ("row", np.asarray(classes.weights)),
        "words": ((), json.dumps(classes.words)),  # any string: NetCDF's cannot hold all
    }
    dataset = xr.Dataset(
        variables,
        attrs={
            "vocab_size": classes.vocab_size,
            "origin": classes.layout.origin,
            "has_pooled": int(classes.pooled is not None),
        },
    )
    for name in ("ids", "probs"):
        dataset[name].encoding = squeeze
    return dataset


def _read_classes(path: Path, group: str) -> SequenceClasses:
    data = _open(path, group)
    words = json.loads(str(data["words"].values))
    layout = Layout(
        data["ids"].values,
        data["query"].values,
        data["next_token"].values,
        int(data.attrs["vocab_size"]),
        None if words is None else tuple(words),
        str(data.attrs["origin"]),
    )
    return _module(
        SequenceClasses,
        layout=layout,
        support_probs=_array(data["probs"]),
        weights=_array(data["weights"]),
        pooled=_read_classes(path, "pooled") if data.attrs["has_pooled"] else None,
    )


def _rates(decoder: Any, attention: Any) -> LearningRates:
    return _module(LearningRates, decoder=decoder, attention=attention)


def _module(kind: type, **fields: Any) -> Any:
    """An Equinox module with exactly these fields: no check or conversion touches them."""
    module = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(module, name, value)
    return module


def _state_dataset(run: Trajectory) -> xr.Dataset:
    import xarray as xr

    leaves = {}
    for k, leaf in enumerate(run.state):
        host, facts = _leaf(leaf)
        leaves[f"leaf_{k}"] = (tuple(f"axis_{k}_{j}" for j in range(host.ndim)), host, facts)
    return xr.Dataset(leaves, attrs={"about": json.dumps(files.plain(run.about))})


def _leaf(leaf: Any) -> tuple[np.ndarray, dict[str, str]]:
    """Part of an optimizer's state as NetCDF can hold it, and what it was where that is more."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf)), {"key": str(jax.random.key_impl(leaf))}
    host = np.asarray(leaf)
    if host.dtype.kind in "biuf":
        return host, {}
    return host.view(f"u{host.dtype.itemsize}"), {"bits_of": host.dtype.name}  # bfloat16 and such


def _read_leaf(variable: xr.DataArray) -> Any:
    if "key" in variable.attrs:
        return jax.random.wrap_key_data(jnp.asarray(variable.values), impl=variable.attrs["key"])
    if "bits_of" in variable.attrs:
        return jnp.asarray(variable.values.view(jnp.dtype(variable.attrs["bits_of"])))
    return _array(variable)


def _array(variable: xr.DataArray) -> Any:
    host = variable.values
    keeps_type = jax.dtypes.canonicalize_dtype(host.dtype) == host.dtype
    return jnp.asarray(host) if keeps_type else host


def _attribute(value: Any) -> Any:
    return "" if value is None else int(value) if isinstance(value, bool) else value
