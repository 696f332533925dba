"""Files: written whole or not at all, labelled, and read back without loss."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scan_snap_ode import checks
from scan_snap_ode.problem.classes import Layout, SequenceClasses
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.trajectory import Trajectory

if TYPE_CHECKING:
    import xarray as xr

    from scan_snap_ode.budget import ErrorBudget

FORMAT = "scan-snap-ode trajectory 1"
OBSERVABLES = ("attention", "entropy", "loss")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends well, else removed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def writable_folder(name: str, path: Path) -> Path:
    """`path` as an existing folder that can be written to.

    Raises:
        ValueError: when it is not.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{name} must be a folder to write to, was {path}: {reason}.") from error
    return path


def writable_file(name: str, value: Any) -> Path:
    """`value` as the path of a file that can be written; its folder is made where missing.

    Raises:
        ValueError: when it is not.
    """
    path = checks.file(name, value)
    if path.is_dir():
        raise ValueError(f"{name} must be a file to write, was a folder: {path}.")
    writable_folder(f"the folder of {name}", path.parent)
    return path


def save_json(path: Path, data: Any) -> Path:
    """Write indented JSON, whole or not at all; numbers that are not finite become null."""
    with whole(path) as temporary:
        temporary.write_text(
            json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
            encoding="utf-8",
        )
    return path


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    from scan_snap_ode import __version__

    names = ("jax", "jaxlib", "diffrax", "equinox", "optax", "numpy")
    ours = {"python": platform.python_version(), "scan_snap_ode": __version__}
    return ours | {name: version(name) for name in names}


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
    about |= {f"version_{k}": v for k, v in versions().items()}
    return xr.Dataset(variables, _coordinates(run, observables), {"format": FORMAT, **about})


def _lead(run: Trajectory) -> tuple[str, ...]:
    num_lead = run.decoder.ndim - 3
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
        coordinates["seed"] = first + np.arange(run.decoder.shape[0])
    if {"attention", "entropy"} & set(observables):
        coordinates["class_query"] = ("class", classes.query)
        coordinates["class_next"] = ("class", classes.next_token)
        coordinates["class_weight"] = ("class", np.asarray(classes.weights))
    if classes.words is not None:
        for axis, tokens in (("query", run.query_tokens), ("token", run.support_tokens)):
            names = [_text(classes.name(t)) for t in tokens]
            coordinates[f"{axis}_word"] = (axis, np.array(names, dtype=object))
    return coordinates


def save_trajectory(
    run: Trajectory, path: str | Path, observables: Sequence[str] = OBSERVABLES
) -> Path:
    """See `Trajectory.save`."""
    path = writable_file("path", path)
    dataset = to_dataset(run, observables)
    with whole(path) as temporary:
        dataset.to_netcdf(temporary, engine="h5netcdf")
        _append(temporary, "classes", _classes_dataset(run.classes))
        if run.classes.pooled is not None:
            _append(temporary, "pooled", _classes_dataset(run.classes.pooled))
        _append(temporary, "state", _state_dataset(run))
    return path


def save_budget(budget: ErrorBudget, path: Path) -> Path:
    """A NetCDF file with the budget at its root and every level's run as a group."""
    import xarray as xr

    runs = dict(budget.runs)
    if budget.unfinished is not None:
        runs["unfinished"] = budget.unfinished
    with whole(path) as temporary:
        dataset = budget.to_xarray() if budget.runs else xr.Dataset()
        dataset.to_netcdf(temporary, engine="h5netcdf")
        for name, run in runs.items():
            observables = ("entropy",) if len(run.ts) else ()
            _append(temporary, name.replace(" ", "_"), to_dataset(run, observables))
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
    except (OSError, KeyError, ValueError, RuntimeError) as error:
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


def _append(path: Path, group: str, dataset: xr.Dataset) -> None:
    dataset.to_netcdf(path, mode="a", group=group, engine="h5netcdf")


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
    return xr.Dataset(leaves, attrs={"about": json.dumps(_plain(run.about))})


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


def _plain(data: Any) -> Any:
    """Data as JSON knows it."""
    if isinstance(data, Mapping):
        return {str(k): _plain(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(v) for v in data]
    if isinstance(data, (np.ndarray, jax.Array)):
        return _plain(np.asarray(data).tolist())
    if isinstance(data, (float, np.floating)):
        return float(data) if np.isfinite(data) else None
    if isinstance(data, (np.integer, np.bool_)):
        return data.item()
    return _text(str(data)) if isinstance(data, (str, Path)) else data


def _text(text: str) -> str:
    """Text that any file can hold: a file name may hold bytes that are none, a word a NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")
