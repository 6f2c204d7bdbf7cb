"""Fixtures and settings of all tests: the real data sets, single-threaded libraries, caches and shared runs."""

from __future__ import annotations

import dataclasses
import functools
import gc
import hashlib
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hypothesis import HealthCheck, settings
from omegaconf import DictConfig, OmegaConf, flag_override

from tests.of_papers import PAPERS
from tests.tiny import TINY, TINY_IMAGES

if TYPE_CHECKING:
    from tests.runs import RunRecord

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a look-up would retry for half a minute where there is no network
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tests are about the same engine on every machine; those of hardware=auto ask for it.
os.environ.setdefault("KNOT_HARDWARE", "cpu")
# Only tests marked real_data see the real data sets; processes of pytest-xdist inherit the second name.
os.environ.setdefault("KNOT_TEST_DATA", os.environ.pop("KNOT_DATA", ""))
os.environ.pop("KNOT_DATA", None)
# With one thread, the suite takes half as long. Set before torch and numpy are imported; started processes inherit it.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

settings.register_profile("suite", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # for runs that tests interrupt

#: Modules whose tests start processes and wait for them, in two parts of equal time (the first with ``sweep/``).
LONG_BESIDE_SWEEPS = {"test_guides", "test_distance_runs", "test_execute"}
LONG = {"test_federated", "test_coreset_runs", "test_matrix_runs", "test_presets", "test_cli",
        "test_check", "test_methods", "test_killed_methods", "test_matrix", "test_without_a_paper"}  # fmt: skip


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the real data sets: ``KNOT_DATA``, or ``../shared/data`` beside the checkout."""
    root = Path(os.environ["KNOT_TEST_DATA"] or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not (root / "meld").is_dir():
        pytest.skip("the real data sets are not here; KNOT_DATA=DIR says where they are")
    return root


@pytest.fixture(autouse=True)
def only_real_data_tests_see_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set ``KNOT_DATA`` for tests marked ``real_data``, and for no other."""
    if request.node.get_closest_marker("real_data") and os.environ["KNOT_TEST_DATA"]:
        monkeypatch.setenv("KNOT_DATA", os.environ["KNOT_TEST_DATA"])


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Reset the number of threads that other tests may have set; another order of sums changes the last digits."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def plugins_recorded() -> Iterator[Callable[[], None]]:
    """Yield a function that removes the plug-ins loaded since its last call, and their entries of tables."""
    from knot_runner.config import plugins

    entries: list[tuple[plugins.Table[object], str]] = []
    modules: list[str] = []
    add, load = plugins.Table.__setitem__, plugins._load

    def add_entry(table: plugins.Table[object], key: str, entry: object) -> None:
        add(table, key, entry)
        frames = (frame for frame, _ in traceback.walk_stack(None) if frame.f_code.co_name == "<module>")
        if not any(frame.f_globals["__name__"].startswith("knot_runner.") for frame in frames):
            entries.append((table, key))  # the package adds its own entries while one of its modules is imported

    def load_module(plugin: str) -> None:
        modules.append(Path(plugin).stem if plugin.endswith(".py") else plugin)
        load(plugin)

    def remove() -> None:
        for table, key in entries:
            for content in (table.data, table._owners, table._settings):
                content.pop(key, None)
        for name in modules:
            sys.modules.pop(name, None)
        entries.clear()
        modules.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins.Table, "__setitem__", add_entry)
        patch.setattr(plugins, "_load", load_module)
        yield remove


@pytest.fixture(autouse=True)
def plugins_removed(plugins_recorded: Callable[[], None]) -> Iterator[None]:
    """Let each test load its plug-ins anew."""
    yield
    plugins_recorded()


@pytest.fixture(scope="session", autouse=True)
def printed_resolution() -> Iterator[int]:
    """Draw with a quarter of the usual resolution, which is quicker; yield the usual one for tests that need it."""
    from knot_runner.report.figures import style as figure_style

    printed = figure_style.DPI
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_style, "DPI", printed // 4)
        yield printed


def pytest_configure(config: pytest.Config) -> None:
    """Leave out thorough tests if the command selects no tests (``pytest tests`` runs all)."""
    named = config.args_source is config.ArgsSource.ARGS or config.option.keyword or config.option.markexpr
    if not named:
        config.option.markexpr = "not thorough"


def pytest_sessionstart() -> None:
    """Let Hydra read each file of ``conf/`` and of Hydra itself once per process; files of other folders may change."""
    from knot_runner.util.config_yaml import config_folder

    parsed: dict[tuple[str, str], bytes] = {}

    def load(real: Callable[..., ConfigResult], source: ConfigSource, config_path: str) -> ConfigResult:
        folder = source.full_path()
        if folder.startswith("file://") and folder != f"file://{config_folder()}":
            return real(source, config_path)
        if (folder, config_path) not in parsed:
            parsed[folder, config_path] = pickle.dumps(real(source, config_path))
        return pickle.loads(parsed[folder, config_path])

    for kind in Plugins.instance().discover(ConfigSource):
        kind.load_config = functools.partialmethod(functools.partial(load, kind.load_config))

    interpolation_map = defaults_list._create_interpolation_map

    def map_if_read(overrides: object, entries: list[object], self_added: bool) -> DictConfig | None:
        """Hydra makes this map for every file, in a third of the time of a composition, and seldom reads it."""
        needed = any("${" in str(vars(entry)) for entry in entries)
        return interpolation_map(overrides, entries, self_added) if needed else None

    def embedded(loaded: ConfigResult, package: str | None) -> ConfigResult:
        """As Hydra's own, with a pickled copy of the content in place of a deep one."""
        package = loaded.header["package"] if package is None else package
        if not package:
            return loaded
        config = OmegaConf.create()
        with flag_override(config, "no_deepcopy_set_nodes", True):
            OmegaConf.update(config, package, pickle.loads(pickle.dumps(loaded.config)), merge=False)
        return dataclasses.replace(loaded, config=config)

    defaults_list._create_interpolation_map = map_if_read
    ConfigLoaderImpl._embed_result_config = staticmethod(embedded)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked ``paper`` without the folder of that paper. Sort the others: tests that start processes
    come first in each half, where workers of pytest-xdist begin, so that only short tests are left at the end."""
    assert sum(item.get_closest_marker("thorough") is not None for item in items) <= 30, "make tests faster instead"
    needed = {item: {name for mark in item.iter_markers("paper") for name in mark.args} for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not needed[item] <= PAPERS])
    items[:] = [item for item in items if needed[item] <= PAPERS]
    sweeps = [item for item in items if item.path.parent.name == "sweep" or item.path.stem in LONG_BESIDE_SWEEPS]
    others = [item for item in items if item.path.stem in LONG]
    long = {*sweeps, *others}
    short = [item for item in items if item not in long]
    half = max(len(items) // 2 - len(sweeps), 0)
    items[:] = [*sweeps, *short[:half], *others, *short[half:]]


@pytest.fixture(scope="session", autouse=True)
def process_server() -> Iterator[None]:
    """Fork jobs, workers and runs from one server, which has imported the modules that they need."""
    from tests.forked import PRELOADED

    real = forkserver.set_forkserver_preload
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "set_forkserver_preload", lambda names: real([*names, *PRELOADED]))
        yield


@pytest.fixture(scope="session", autouse=True)
def disks_not_waited_for() -> Iterator[None]:
    """Replace ``os.fsync``: no test cuts the power. Tests of what is synced put their own function in its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)  # a wrong one is still an error
        yield


def pytest_collection_finish() -> None:
    """Let the garbage collector, which takes a tenth of the time, ignore collected tests and run less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def composed_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compose each choice of files once, by one worker of pytest-xdist for all: Hydra takes a tenth of a second for
    each of the thousands of configs that tests compose. Changed files of ``--config-dir`` are composed again."""
    from knot_runner.composing import hydra_compose

    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    kept: dict[tuple[str, ...], bytes] = {}  # unpickling takes a fifth of the time of copy.deepcopy

    def once(real: Callable[..., DictConfig], what: list[str] | str, config_dir: str | None) -> DictConfig:
        files = sorted(Path(config_dir).rglob("*.yaml")) if config_dir else []
        content = hashlib.sha256(repr([(path, path.read_bytes()) for path in files]).encode()).hexdigest()
        key = (real.__name__, os.environ.get("KNOT_HARDWARE", ""), str(config_dir), content, *what)
        if key not in kept:
            path = shared / f"composed-{hashlib.sha256(repr(key).encode()).hexdigest()}"
            if not path.exists():
                unfinished = path.with_suffix(f".{os.getpid()}")
                unfinished.write_bytes(pickle.dumps(real(what, config_dir)))
                unfinished.replace(path)  # another worker reads all of it or nothing
            kept[key] = path.read_bytes()
        return pickle.loads(kept[key])

    with pytest.MonkeyPatch.context() as patch:
        for real in (hydra_compose.hydra_config, hydra_compose.choice_config):
            patch.setattr(hydra_compose, real.__name__, functools.partial(once, real))
        yield


@pytest.fixture(scope="session")
def fedavg_run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """The smallest FedAvg run, which tests only read."""
    from tests.runs import run

    return run(tmp_path_factory.mktemp("fedavg"), *TINY_IMAGES, "method=fedavg", "training.lr=0.1")


@pytest.fixture(scope="session")
def knot_run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """The smallest KNOT run on texts, which tests only read."""
    from tests.runs import run

    return run(tmp_path_factory.mktemp("knot"), *TINY)


@pytest.fixture(scope="session")
def sweep_runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    """FedAvg and FedProx with two seeds each, in one folder (``[0].folder.parents[2]``), which tests only read."""
    import knot_runner as kr
    from tests.runs import RunRecord

    words = [*TINY_IMAGES, "method=fedavg,fedprox", "seed=0,1", "training.lr=0.1"]
    return [RunRecord(run.folder) for run in kr.sweep([*words, f"paths.output_dir={tmp_path_factory.mktemp('sweep')}"])]


@pytest.fixture
def offline(monkeypatch):
    """Fail if the code connects to another machine."""

    def refuse(*where, **_):
        raise AssertionError(f"the network was asked for: {where}")

    connect = socket.socket.connect

    def local(self, address):
        return connect(self, address) if self.family == socket.AF_UNIX else refuse(address)

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", local)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
