"""Fixtures that several tests share; and no test touches the user's own cache folder.

What imports JAX is imported within the fixtures: the settings of the session come first.
"""

import collections
import os
import resource
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
BESIDE = TESTS.parent.parent / "shared" / "weights" / "disco_103.npz"  # of the repository
QUICK_TO_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
)


def pytest_configure(config):
    """Points every cache at one folder of this session, before JAX is imported by any test.

    Programs compiled by one test are found there by the next one, by the other workers of
    pytest-xdist and by the processes that tests start.
    """
    if "DISCORL_TEST_SESSION" not in os.environ:  # the first process of the session, not a worker
        folder = tempfile.TemporaryDirectory(prefix="discorl-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["DISCORL_TEST_SESSION"] = folder.name
        os.environ["DISCORL_TEST_USERS_CACHE"] = os.environ.get("DISCORL_CACHE", "")
    session = Path(os.environ["DISCORL_TEST_SESSION"])
    os.environ["DISCORL_CACHE"] = str(session / "discorl")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(session / "programs")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["MPLBACKEND"] = "Agg"
    if "long" not in config.option.markexpr.replace("not long", ""):
        # Programs run for moments here, and most of the time goes into compiling them.
        os.environ.setdefault("XLA_FLAGS", QUICK_TO_COMPILE)


# --- what a session says at its end ---------------------------------------------------------------

SLOWEST = 10  # files that are named
USAGE = pytest.StashKey[dict[str, dict]]()  # by worker: peak memory, and CPU seconds of files


def _memory() -> float:
    """Peak of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _cpu_time() -> float:
    """Of this process and of those it waited for, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    usage = item.config.stash.setdefault(USAGE, {}).setdefault("this process", {"files": {}})
    before = _cpu_time()
    result = yield
    files = usage["files"]
    files[item.path.name] = files.get(item.path.name, 0.0) + _cpu_time() - before
    usage["memory"] = _memory()
    return result


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # of pytest-xdist
        usage = session.config.stash.get(USAGE, {})
        session.config.workeroutput["usage"] = usage.get("this process")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    if usage := getattr(node, "workeroutput", {}).get("usage"):
        node.config.stash.setdefault(USAGE, {})[node.gateway.id] = usage


def pytest_terminal_summary(terminalreporter, config):
    """Why tests were skipped, and what the session cost."""
    reasons = collections.Counter(
        report.longrepr[-1].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in reasons.items():
        tests = "test" if count == 1 else "tests"
        terminalreporter.write_line(f"{count} {tests} skipped: {reason}")
    workers = config.stash.get(USAGE, {})
    if not workers:
        return
    peaks = ", ".join(f"{name} {usage['memory']:.1f} GB" for name, usage in sorted(workers.items()))
    files = collections.Counter()
    for usage in workers.values():
        files.update(usage["files"])
    slowest = ", ".join(f"{name} {seconds:.0f}" for name, seconds in files.most_common(SLOWEST))
    terminalreporter.write_line(f"peak memory: {peaks}")
    terminalreporter.write_line(f"CPU seconds: {files.total():.0f}, of which {slowest}")


# --- fixtures -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _no_programs_left() -> Iterator[None]:
    """Frees the programs that a module compiled; those of all modules would take gigabytes."""
    yield
    import jax

    jax.clear_caches()


@pytest.fixture(autouse=True)
def no_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are written as for a pipe, also in workers of pytest-xdist, which set a width."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def users_environment() -> dict[str, str]:
    """Environment for a process that compiles its programs as they are compiled for users."""
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """For modules whose time is compilation nearly all, of programs that run for an instant."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def float64() -> Iterator[None]:
    """Numbers in double precision, where they are compared to many digits."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture
def own_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rules are sought and kept in the test's own folder."""
    import rule_files

    rule_files.isolate(monkeypatch, tmp_path)


@pytest.fixture
def rule_cache(own_library: None, tmp_path: Path) -> Path:
    """The folder, already there, that rules are fetched and imported into."""
    folder = tmp_path / "cache" / "rules"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the golden cases of a tiny rule."""
    return TESTS / "golden" / "small"


@pytest.fixture(scope="session")
def disco103() -> Path:
    """File of the published rule, as the user has it."""
    from discorl.rules.files import library
    from discorl.types import UserError

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCORL_CACHE", os.environ["DISCORL_TEST_USERS_CACHE"])
        try:
            return library.find("disco103", BESIDE if BESIDE.exists() else None)
        except UserError:
            pytest.skip("Disco103 is missing; `discorl rules fetch disco103` gets it")


@pytest.fixture(scope="session")
def golden103() -> Path:
    """Folder of the golden cases of the published rule."""
    return TESTS / "golden" / "disco103"


@pytest.fixture
def rule_case(golden: Path, tmp_path: Path) -> Path:
    """A folder with a golden file of the rule's calls, and the rule's weights."""
    for name in ("rule_small.npz", "meta_network.npz"):
        shutil.copy(golden / name, tmp_path)
    return tmp_path


@pytest.fixture
def learner_case(golden: Path, tmp_path: Path) -> Path:
    """A folder with a golden file of an agent's updates, and the rule's weights."""
    for name in ("learner_steps.npz", "meta_network.npz"):
        shutil.copy(golden / name, tmp_path)
    return tmp_path


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Writes modules into a folder, which is then the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISCORL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    loaded = set(sys.modules)

    def write(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text))

    yield write
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
