"""The software, the device and the command that a run was made with, and when."""

import datetime
import importlib.metadata
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import jax

from discorl.runs.schemas import Each, read_json

NAME = "versions.json"


def read_versions(folder: Path) -> dict[str, str | None]:
    """Reads the versions of a run."""
    return read_json(folder / NAME, Each((str, type(None))))


def versions() -> dict[str, str | None]:
    """Versions of packages, platform, device, the source's commit, the command and the time."""
    packages = ("discorl", "jax", "jaxlib", "numpy", "optax")
    return {package: _package_version(package) for package in packages} | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "commit": _source_commit(),
        "command": _command(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(),
    }


def _command() -> str:
    """The command line of this process, without the program's folder."""
    main = sys.modules["__main__"].__spec__
    if main is None:  # a script
        program = [Path(sys.argv[0]).name]
    else:
        program = ["python", "-m", main.name.removesuffix(".__main__")]
    return shlex.join([*program, *sys.argv[1:]])


def _package_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return None


def _source_commit() -> str | None:
    """The commit of discorl's source tree, "-dirty" if edited since; None outside a checkout."""
    source = Path(__file__).resolve().parents[2]
    if not (source / ".git").exists():  # installed, perhaps inside another project's checkout
        return None
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        # Without optional locks, git does not touch the index, which may be in use.
        command = ["git", "--no-optional-locks", "-C", str(source), *describe]
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
