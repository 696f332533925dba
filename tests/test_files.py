"""Files: nothing is lost in them, they explain themselves, and they are whole or not there."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

import scan_snap_ode as sso
from scan_snap_ode import files, netcdf

WORDS = ("the", "Übermut", "数学", "naïve", "🙂", "a b\n", "", "nul\0byte", "lone \ud800 surrogate")


def rates(*decoder):
    return sso.LearningRates(np.array(decoder) if len(decoder) > 1 else sum(decoder), 0.3)


def text_windows():
    ids = np.random.default_rng(0).integers(0, len(WORDS), 600).astype(np.int32)
    stream = sso.TokenStream(ids, WORDS, "Erzählung.txt", "0123456789abcdef")
    return sso.windows(stream, 6, query=2, next_token=3)


def solve(decoder=(1.0,), ts=(0.0, 1.0, 5.0), classes=None, **options):
    flow = sso.JointFlow(sso.syn_small() if classes is None else classes)
    return sso.integrate(flow, rates(*decoder), ts, **options)


def train(source=None, decoder=(1.0,), steps=3, **options):
    source = sso.syn_small() if source is None else source
    options.setdefault("batch_size", 4)
    return sso.train(source, rates(*decoder), steps, **options)


def interrupted_at_once():
    """What is left of a run that ctrl-C ended before its first record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scan_snap_ode.training.loop.Stepper.advance", _interrupt)
        with pytest.raises(sso.Interrupted) as caught:
            train(record_at=[3])
    return caught.value.partial


def _interrupt(*_):
    raise KeyboardInterrupt


def uneven():
    """A start that keeps all columns of Y."""
    size = sso.syn_small().vocab_size
    return np.random.default_rng(1).normal(size=(2, size, size))


def batches():
    rng = np.random.default_rng(2)
    return sso.FixedBatches(rng.integers(0, 9, (3, 4, 5)), rng.integers(0, 9, (3, 4)))


RUNS = {
    "flow": solve,
    "flow of a batch of rates": lambda: solve((1.0, 2.0)),
    "flow that failed": lambda: solve((1e-3, 9.0), ts=[1e-3, 50.0], max_steps=12, throw=False),
    "flow of windows": lambda: solve(classes=text_windows().as_classes()),
    "flow with all columns": lambda: solve(init=uneven()),
    "SGD": lambda: train(momentum=0.9),
    "SGD that diverged": lambda: train(None, (1e308,), optimizer=optax.scale(1e308)),
    "SGD with no record": interrupted_at_once,
    "SGD on windows": lambda: train(text_windows(), (0.5, 1.0), num_seeds=2, seed=7),
    "SGD on fixed batches": lambda: train(batches(), seed=2**32 - 1),
    "gradient descent": lambda: train(batch_size=None),
    "Adam": lambda: train(optimizer="adam", init="uniform", num_seeds=2),
    "optax": lambda: train(
        optimizer=optax.chain(
            optax.add_noise(0.1, 0.5, jax.random.key(0)),
            optax.apply_if_finite(optax.scale_by_adam(mu_dtype=jnp.bfloat16), 2),
        )
    ),
}


@functools.cache
def made(name):
    with jax.numpy_dtype_promotion("standard"):  # Optax's moments rely on it
        return RUNS[name]()


@pytest.fixture(scope="module")
def run():
    return made("flow of a batch of rates")


def bits(leaf):
    """Everything of an array but where it lies."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes()
    return str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert [bits(x) for x in jax.tree.leaves(a)] == [bits(x) for x in jax.tree.leaves(b)]


# ------------------------------------------------------------------------------------ no loss


def assert_lossless(saved, path):
    loaded = sso.load(str(saved.save(path, observables=())))
    assert_same(saved, loaded)
    assert repr(saved) == repr(loaded)
    assert saved.about == loaded.about
    assert loaded.classes.words == saved.classes.words
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(loaded))


@pytest.mark.parametrize("name", RUNS)
def test_load_gives_back_what_was_saved(tmp_path, name):
    assert_lossless(made(name), tmp_path / "run.nc")


@pytest.mark.parametrize("name", ["flow", "SGD on windows"])
def test_load_gives_back_single_precision(tmp_path, single_precision, name):
    saved = RUNS[name]()
    assert saved.decoder.dtype == np.float32
    assert_lossless(saved, tmp_path / "run.nc")


def test_runs_hold_what_their_names_say():
    """So that the table above tests what it says."""
    assert np.isnan(made("flow that failed").decoder).any()
    assert made("SGD that diverged").status == sso.Status.NOT_FINITE
    assert made("SGD with no record").ts.shape == (0,)
    assert made("flow with all columns").decoder.shape[-1] == 34
    assert made("SGD on windows").classes.pooled is not None
    kinds = {str(leaf.dtype) for leaf in made("optax").state}
    assert {"key<fry>", "bfloat16", "bool", "int32", "float64"} <= kinds


def test_double_precision_survives_a_session_in_single(tmp_path, run):
    path = run.save(tmp_path / "double.nc")
    jax.config.update("jax_enable_x64", False)
    try:
        loaded = sso.load(path)
        leaves = jax.tree.leaves(loaded)
        assert [bits(x) for x in leaves] == [bits(x) for x in jax.tree.leaves(run)]
        assert {type(x) for x in leaves if x.dtype.itemsize == 8} == {np.ndarray}
        assert loaded.entropy.dtype == np.float32
        assert repr(loaded) == repr(run)
        assert loaded.at(1).decoder.dtype == np.float64
        loaded.plot()
        loaded.save(tmp_path / "again.nc")
    finally:
        jax.config.update("jax_enable_x64", True)
    assert_same(sso.load(tmp_path / "again.nc"), run)


def test_single_precision_survives_a_session_in_double(tmp_path, single_precision):
    saved = solve()
    saved.save(tmp_path / "single.nc")
    jax.config.update("jax_enable_x64", True)
    assert_same(sso.load(tmp_path / "single.nc"), saved)


def test_a_loaded_run_goes_on_like_the_one_that_was_saved(tmp_path):
    saved = made("flow")
    loaded = sso.load(saved.save(tmp_path / "run.nc"))
    later = [6.0, 7.0, 9.0]
    assert_same(solve(ts=later, init=saved), solve(ts=later, init=loaded))


# ------------------------------------------------------------------------- it explains itself


def test_a_file_is_labelled_data(tmp_path):
    windows, saved = text_windows(), made("SGD on windows")
    with xr.open_dataset(saved.save(tmp_path / "run.nc")) as data:
        assert data.attention.dims == ("seed", "rates_0", "time", "class", "token")
        assert data.decoder.dims == ("seed", "rates_0", "time", "token", "decoder_token")
        assert data.time.attrs["units"] == "steps"
        assert {data[name].attrs["units"] for name in ("entropy", "loss", "batch_loss")} == {"nats"}
        assert data.attention.attrs["units"] == "1"
        assert data.rate_decoder.attrs["units"] == "per step"
        assert data.rate_decoder.values.tolist() == [0.5, 1.0]
        assert data.rate_attention.values.tolist() == [0.3, 0.3]
        assert data.seed.values.tolist() == [7, 8]
        assert (data.attrs["seed"], data.attrs["num_seeds"]) == (7, 2)
        assert (data.attrs["method"], data.attrs["optimizer"]) == ("SGD", "sgd")
        assert data.attrs["source"] == windows.origin
        assert "Erzählung.txt" in windows.origin
        assert "0123456789abcdef" in windows.origin
        for name, version in files.versions().items():
            assert data.attrs[f"version_{name}"] == version
        readable = {"nul\0byte": "nul?byte", "lone \ud800 surrogate": "lone ? surrogate"}
        words = [saved.classes.name(token) for token in saved.support_tokens]
        assert set(words) == set(WORDS)
        words = [readable.get(word, word) for word in words]
        assert data.token_word.values.tolist() == words
        assert np.array_equal(data.entropy, saved.entropy)
        assert np.allclose(data.attention.sum("token"), 1)
    with xr.open_datatree(tmp_path / "run.nc") as tree:
        assert {"classes", "pooled", "state"} == set(tree.children)


def test_versions_are_those_of_what_computes():
    versions = files.versions()
    assert versions["scan_snap_ode"] == sso.__version__
    assert versions["jax"] == jax.__version__
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))


def test_observables_are_optional(tmp_path, run):
    with xr.open_dataset(run.save(tmp_path / "run.nc", ["entropy"])) as data:
        assert "entropy" in data
        assert not {"attention", "loss"} & set(data)


# --------------------------------------------------------------------- whole, or not there


@pytest.fixture
def fails_midway(monkeypatch):
    """A write that stops when half of the file is there."""

    def stop(error):
        to_netcdf = xr.Dataset.to_netcdf

        def fail(data, *arguments, **options):
            if options["group"] == "state":
                raise error
            return to_netcdf(data, *arguments, **options)

        monkeypatch.setattr(xr.Dataset, "to_netcdf", fail)

    return stop


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
def test_a_write_that_stops_leaves_what_was_there(tmp_path, run, fails_midway, error):
    old = run.save(tmp_path / "old.nc").read_bytes()
    fails_midway(error)
    for name in ("old.nc", "new.nc"):
        with pytest.raises(type(error)):
            run.save(tmp_path / name)
    assert (tmp_path / "old.nc").read_bytes() == old
    assert os.listdir(tmp_path) == ["old.nc"]


_SAVES = """
import itertools, sys, scan_snap_ode as sso
*sources, target = sys.argv[1:]
runs = [sso.load(source) for source in sources]
for n in itertools.count():
    runs[n % 2].save(target, observables=())
    if n == 1:
        print("ready", flush=True)
"""


def test_a_killed_process_leaves_a_whole_file(tmp_path):
    """SIGKILL at any moment of saving one run over another: the target is one of the two."""
    runs = solve((1.0, 2.0)), solve((3.0, 4.0))
    sources = [run.save(tmp_path / f"{k}.nc", ()) for k, run in enumerate(runs)]
    for pause in (0.0, 0.013, 0.031):
        with subprocess.Popen(
            [sys.executable, "-c", _SAVES, *sources, tmp_path / "target.nc"],
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(pause)
            process.send_signal(signal.SIGKILL)
        loaded = sso.load(tmp_path / "target.nc")
        assert_same(loaded, runs[0] if loaded.rates.decoder[0] == 1 else runs[1])


def test_files_have_the_usual_permissions(tmp_path, run):
    mask = os.umask(0o027)
    try:
        assert run.save(tmp_path / "run.nc").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(mask)


def test_folders_are_made(tmp_path, run, monkeypatch):
    assert run.save(tmp_path / "a" / "b" / "run.nc").is_file()
    monkeypatch.chdir(tmp_path)
    assert run.save("run.nc") == Path("run.nc")
    assert Path("run.nc").is_file()


def test_where_nothing_can_be_written_is_said(tmp_path, run):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="path must be a file to write, was a folder: "):
        run.save(tmp_path)
    with pytest.raises(ValueError, match=r"the folder of path must be a folder .*: File exists\."):
        run.save(tmp_path / "file" / "run.nc")
    with pytest.raises(
        ValueError, match=r"the folder of path must be a folder .*: Not a directory"
    ):
        run.save(tmp_path / "file" / "deeper" / "run.nc")


# ----------------------------------------------------------------------------- no such file


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    return run.save(tmp_path_factory.mktemp("saved") / "run.nc").read_bytes()


def test_a_truncated_file_is_no_trajectory(tmp_path, saved):
    path = tmp_path / "run.nc"
    for length in [0, 1, 8, 100, *range(2000, len(saved), len(saved) // 20), len(saved) - 1]:
        path.write_bytes(saved[:length])
        with pytest.raises(
            ValueError, match=r"path must be a saved Trajectory, .*run\.nc was not: "
        ):
            sso.load(path)


def foreign(path: Path, kind: str) -> None:
    """A file of another kind at `path`."""
    empty = xr.Dataset({"x": ("t", [1.0])})
    if kind == "text":
        path.write_text("Once upon a time\n")
    elif kind == "json":
        path.write_text("{}")
    elif kind == "npy":
        with path.open("wb") as file:
            np.save(file, np.arange(9))
    elif kind == "netcdf":
        empty.to_netcdf(path, engine="h5netcdf")
    elif kind == "netcdf of the year 1990":
        empty.to_netcdf(path, engine="scipy")
    elif kind == "a later format":
        empty.assign_attrs(format="scan-snap-ode trajectory 2").to_netcdf(path, engine="h5netcdf")
    elif kind == "half of the format":
        empty.assign_attrs(format=netcdf.FORMAT).to_netcdf(path, engine="h5netcdf")
    elif kind == "a budget":
        netcdf.save_budget(sso.ErrorBudget(sso.syn_small()), path)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("text", "file signature not found"),
        ("json", "file signature not found"),
        ("npy", "file signature not found"),
        ("netcdf", "its format is None, not 'scan-snap-ode trajectory 1'."),
        ("netcdf of the year 1990", "file signature not found"),
        ("a later format", "its format is 'scan-snap-ode trajectory 2', not 'scan-snap-ode traj"),
        ("half of the format", "group"),
        ("a budget", "its format is None, not"),
    ],
)
def test_another_file_is_no_trajectory(tmp_path, kind, reason):
    foreign(tmp_path / "run.nc", kind)
    with pytest.raises(
        ValueError, match=r"path must be a saved Trajectory, .*run\.nc was not: "
    ) as e:
        sso.load(tmp_path / "run.nc")
    assert reason in str(e.value)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"path must be a saved Trajectory, .* was not found\."):
        sso.load(tmp_path / "run.nc")
    with pytest.raises(ValueError, match=r"path must be a saved Trajectory, .* was not found\."):
        sso.load(tmp_path)
    with pytest.raises(ValueError, match=r"path must be a path, was None\."):
        sso.load(None)  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------------------------- JSON


def test_json_holds_plain_data_and_null(tmp_path):
    data = {
        "nan": float("nan"),
        "numbers": np.array([1.0, np.inf, -np.inf]),
        "jax": jnp.arange(2),
        "scalars": [np.float32(0.5), np.int64(3), np.bool_(True), True, None],
        "path": Path("a") / "b",
        "bytes in a name": "caf\udce9.txt",
        "word": "Übermut",
        7: (1, 2),
    }
    path = files.save_json(tmp_path / "x.json", data)

    def fail(constant):
        pytest.fail(f"{constant} is no JSON")

    assert json.loads(path.read_text("utf-8"), parse_constant=fail) == {
        "nan": None,
        "numbers": [1.0, None, None],
        "jax": [0, 1],
        "scalars": [0.5, 3, True, True, None],
        "path": "a/b",
        "bytes in a name": "caf?.txt",
        "word": "Übermut",
        "7": [1, 2],
    }
    assert "Übermut" in path.read_text("utf-8")


def test_json_that_cannot_be_written_leaves_the_old(tmp_path):
    path = files.save_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(TypeError):
        files.save_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_budget_with_words_that_are_no_text(tmp_path):
    levels = ["gradient descent", "class flow"]
    budget = sso.error_budget(text_windows(), rates(1.0), [0, 3], levels=levels)
    path = netcdf.save_budget(budget, tmp_path / "budget.nc")
    with xr.open_datatree(path) as opened:
        assert set(opened.children) == {"gradient_descent", "class_flow"}
        assert "nul?byte" in list(np.asarray(opened["token_word"]))


@pytest.mark.parametrize("error", [AttributeError("no id"), TypeError("no len"), KeyError("x")])
def test_a_damaged_file_is_refused_whatever_its_reader_raises(tmp_path, monkeypatch, error):
    path = solve().save(tmp_path / "run.nc")

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(xr, "open_dataset", fail)
    with pytest.raises(ValueError, match=r"path must be a saved Trajectory, .* was not: "):
        sso.load(path)
