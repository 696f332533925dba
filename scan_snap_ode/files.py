"""Files written whole or not at all."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from scan_snap_ode import checks


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


def reserve(folder: Path, size: int) -> None:
    """OSError where `size` bytes are not to be had; HDF5 would end the process on a full disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise OSError(
                    error.errno, f"{os.strerror(error.errno or 0)}: {size:,} bytes", str(folder)
                ) from error


def save_json(path: Path, data: Any) -> Path:
    """Write indented JSON, whole or not at all; numbers that are not finite become null."""
    with whole(path) as temporary:
        temporary.write_text(
            json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
            encoding="utf-8",
        )
    return path


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    from scan_snap_ode import __version__

    names = ("jax", "jaxlib", "diffrax", "equinox", "optax", "numpy")
    ours = {"python": platform.python_version(), "scan_snap_ode": __version__}
    return ours | {name: version(name) for name in names}


def plain(data: Any) -> Any:
    """Data as JSON knows it."""
    if isinstance(data, Mapping):
        return {str(k): plain(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(v) for v in data]
    if isinstance(data, (np.ndarray, jax.Array)):
        return plain(np.asarray(data).tolist())
    if isinstance(data, (float, np.floating)):
        return float(data) if np.isfinite(data) else None
    if isinstance(data, (np.integer, np.bool_)):
        return data.item()
    return text(str(data)) if isinstance(data, (str, Path)) else data


def text(value: str) -> str:
    """Text that any file can hold: a file name may hold bytes that are none, a word a NUL."""
    return value.encode("utf-8", "replace").decode().replace("\0", "?")
