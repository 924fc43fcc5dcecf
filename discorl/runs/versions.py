"""The software and the device that a run was made with."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import jax


def versions() -> dict[str, str | None]:
    """Versions of the packages that matter, the platform, the device and the source's commit."""
    packages = ("discorl", "jax", "jaxlib", "numpy", "optax")
    return {package: _package_version(package) for package in packages} | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "commit": _source_commit(),
    }


def _package_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return None


def _source_commit() -> str | None:
    """The commit of discorl's source tree, "-dirty" if edited since; None outside a checkout."""
    source = Path(__file__).resolve().parent.parent
    if not (source / ".git").exists():  # installed, perhaps inside of another project's checkout
        return None
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        # Without optional locks git leaves the index alone, which someone may be working with.
        command = ["git", "--no-optional-locks", "-C", str(source), *describe]
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
