"""Fixtures that several tests share; and no test touches the user's own cache folder.

What imports JAX is imported within the fixtures: the settings of the session come first.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SHARED = TESTS.parent.parent / "shared"
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
    session = Path(os.environ["DISCORL_TEST_SESSION"])
    os.environ["DISCORL_CACHE"] = str(session / "discorl")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(session / "programs")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["MPLBACKEND"] = "Agg"
    if "long" not in config.option.markexpr.replace("not long", ""):
        # Programs run for moments here, and most of the time goes into compiling them.
        os.environ.setdefault("XLA_FLAGS", QUICK_TO_COMPILE)


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
    """File of the published rule, where it lies beside the repository."""
    return _beside("weights/disco_103.npz")


@pytest.fixture(scope="session")
def golden103() -> Path:
    """Folder of the golden cases of the published rule, where it lies beside the repository."""
    return _beside("golden/disco103")


def _beside(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path.name} is not beside the repository")
    return path
