"""The library of learned rules: where their files are found by name, and fetched from.

A name is looked for in the path that the caller gives, in the path that the environment variable
`DISCORL_RULES` gives (each a folder or a file), among the rules bundled with the package, and in
the user's cache folder. A published rule counts as found only if its file is the published one.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path

from discorl.rules.files import checks, weights
from discorl.rules.files.download import Progress, download
from discorl.runs import npz
from discorl.runs.files import (
    cache_root,
    lock,
    naming,
    read_bytes,
    require_regular,
    sha256_of,
    write_bytes,
    write_errors_reported,
)
from discorl.types import UserError, specs

_BUNDLED = Path(__file__).parent / "bundled"


@dataclasses.dataclass(frozen=True)
class PublishedRule:
    """A rule that others have published, known by its hash."""

    address: str
    sha256: str
    size: int  # bytes
    licence: str
    description: str

    @property
    def file_name(self) -> str:
        """The name of the file at its source."""
        return self.address.rsplit("/", 1)[-1]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A rule that the library knows of, and whether it can be used at once."""

    name: str
    state: str  # "bundled", "present", "damaged" or "not fetched"
    path: Path | None  # None: not fetched


PUBLISHED = {
    "disco103": PublishedRule(
        address="https://raw.githubusercontent.com/google-deepmind/disco_rl/main/disco_rl/"
        "update_rules/weights/disco_103.npz",
        sha256="dac840a15b81e8805326363458c33979626172618f620d9e6e170315388530aa",
        size=2_803_507,
        licence="Apache-2.0",
        description="Disco103, discovered on 103 environments (Oh et al., Nature 2025).",
    ),
}


def cache_folder() -> Path:
    """The user's folder of rules; it may not exist yet."""
    return cache_root() / "rules"


def find(name_or_file: str | os.PathLike[str], rules_path: str | Path | None = None) -> Path:
    """The existing file of a rule; that of a published name is the published one, byte for byte.

    What has a folder in it or ends in `.npz` is a path, anything else a name in the library.
    `rules_path` is where to look first: a folder, or the very file to use for the name.
    """
    if is_path(name_or_file):
        path = Path(name_or_file).expanduser()
        if path.is_dir():
            raise UserError(f"{path} is a directory; expected the file of a rule{_files_in(path)}")
        if not path.is_file():
            raise UserError(f"{path}: there is no such rule file")
        return path
    name = os.fspath(name_or_file)
    given = None if rules_path is None else _existing(rules_path, "--rules-path")
    # A file that the caller points at is the one to use, whatever it is called.
    found = given if given and given.is_file() else _found(given).get(name)
    if found is None:
        raise UserError(_advice(name, names(given)))
    if name in PUBLISHED and not _is_intact(found, PUBLISHED[name]):
        raise UserError(
            f"{found}: is not the published rule {name!r} (sha256 {sha256_of(found)}; expected "
            f"{PUBLISHED[name].sha256}); remove it and run `discorl rules fetch {name}`, or, to "
            f"use it anyway, give its path instead of the name"
        )
    return found


def read(file: str | os.PathLike[str]) -> npz.Archive:
    """A rule file, checked as far as that takes none of the rule's code."""
    archive = npz.read(file)
    with naming(file):
        if "kind" not in archive.metadata:
            weights.checked(archive.arrays)
        for name, array in archive.arrays.items():
            checks.check_values(name, array, array.dtype)
    return archive


def available(rules_path: str | Path | None = None) -> list[Entry]:
    """Every rule file that `find` knows by name, and the published ones not yet fetched."""
    found = dict.fromkeys(PUBLISHED) | _found(rules_path)
    return [Entry(name, _state(name, path), path) for name, path in sorted(found.items())]


def names(rules_path: str | Path | None = None) -> list[str]:
    """The names of the rules that `available` lists, in the order of the alphabet."""
    return sorted({*PUBLISHED, *_found(rules_path)})


def require_name(name: str) -> None:
    """Refuses a name that no file in the cache folder may have."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name) or name.endswith(".npz"):
        raise UserError(
            f"name {name!r}: expected letters, digits, '_', '-' and '.', without the ending .npz"
        )
    if (_BUNDLED / f"{name}.npz").is_file():
        raise UserError(f"name {name!r} is that of a rule in the package: choose another name")


def install(file: Path, name: str, force: bool = False) -> Path:
    """Copies a rule file into the user's cache folder, to be found by name from then on.

    With `force`, it replaces a different rule of that name. Returns the copy.
    """
    require_name(name)
    sha256 = read(file).sha256
    if name in PUBLISHED and sha256 != PUBLISHED[name].sha256:
        raise UserError(
            f"name {name!r} is reserved for the published rule, and {file} is another "
            f"(sha256 {sha256}; expected {PUBLISHED[name].sha256}): choose another name"
        )
    destination = cache_folder() / f"{name}.npz"
    if destination.is_file():
        if sha256_of(destination) == sha256:
            return destination
        # What stands under a published name and differs can only be damaged.
        if not force and name not in PUBLISHED:
            raise UserError(f"{destination}: holds a different rule; --force replaces it")
    _make_folder(destination.parent)
    content = read_bytes(file, npz.MAX_BYTES)
    with write_errors_reported(destination):
        write_bytes(destination, content)
    return destination


def fetch(name: str, address: str | None = None, progress: Progress | None = None) -> Path:
    """Downloads a published rule into the user's cache folder, unless it is there already.

    A download that breaks off is tried again. Several processes may fetch at once: one downloads,
    the others wait for it. An http or https address takes the place of the rule's source. The
    file is returned once its hash is checked.
    """
    if name not in PUBLISHED:
        raise UserError(
            f"rule {name!r} has no published file; expected {' or '.join(sorted(PUBLISHED))}"
        )
    rule = PUBLISHED[name]
    address = address or rule.address
    if not re.match(r"https?://", address, re.IGNORECASE):
        raise UserError(f"address {address!r}: expected one that starts with http:// or https://")
    destination = cache_folder() / f"{name}.npz"
    if _is_intact(destination, rule):
        return destination
    _make_folder(destination.parent)
    with contextlib.suppress(FileNotFoundError):
        require_regular(destination, destination.lstat())
    with (
        write_errors_reported(destination),
        lock(destination.with_suffix(".lock"), wait=True),
    ):
        if not _is_intact(destination, rule):  # another process may have brought it
            what = "it" if address == rule.address else rule.address
            by_hand = _by_hand(what, rule, destination)
            download(
                address,
                destination,
                size=rule.size,
                sha256=rule.sha256,
                otherwise=by_hand,
                progress=progress,
            )
    return destination


# ---- finding ----


def is_path(name_or_file: str | os.PathLike[str]) -> bool:
    """Whether a rule is given by the path of its file and not by its name."""
    text = os.fspath(name_or_file)
    return not isinstance(name_or_file, str) or Path(text).name != text or text.endswith(".npz")


def _places(rules_path: str | Path | None) -> Iterator[Path]:
    """Folders and files to look in, in order."""
    if rules_path is not None:
        yield _existing(rules_path, "--rules-path")
    if os.environ.get("DISCORL_RULES"):
        yield _existing(os.environ["DISCORL_RULES"], "DISCORL_RULES")
    yield _BUNDLED
    yield cache_folder()


def _existing(place: str | Path, option: str) -> Path:
    path = Path(place).expanduser()
    if not path.exists():
        raise UserError(f"{option} is {path}, which does not exist; expected a folder or a file")
    return path


def _contents(place: Path) -> dict[str, Path]:
    """The rules in a folder, or the one that a file is, by name."""
    if place.is_file():
        for name, rule in PUBLISHED.items():
            if _is_intact(place, rule):
                return {name: place}
        return {_name_of(place): place}
    # In reverse, so that of two files of one name the first in the alphabet stays.
    return {_name_of(file): file for file in sorted(place.glob("*.npz"), reverse=True)}


def _name_of(file: Path) -> str:
    """The name by which a file is known; a published one may keep the name of its source."""
    for name, rule in PUBLISHED.items():
        if file.name == rule.file_name:
            return name
    return file.stem


def _found(rules_path: str | Path | None) -> dict[str, Path]:
    """The file of every name that there is a file for."""
    found: dict[str, Path] = {}
    for place in _places(rules_path):
        found = _contents(place) | found  # the earlier place wins
    return found


def _state(name: str, path: Path | None) -> str:
    if path is None:
        return "not fetched"
    if name in PUBLISHED and not _is_intact(path, PUBLISHED[name]):
        return "damaged"
    return "bundled" if path.parent == _BUNDLED else "present"


def _files_in(folder: Path) -> str:
    """The rules that a run keeps in its folder, as the end of a message."""
    files = [folder / name for name in ("best.npz", "rule.npz") if (folder / name).is_file()]
    return f", such as {' or '.join(map(str, files))}" if files else ""


def _advice(name: str, known: list[str]) -> str:
    if name in PUBLISHED:
        rule, destination = PUBLISHED[name], cache_folder() / f"{name}.npz"
        return (
            f"rule {name!r} is not on this machine: run `discorl rules fetch {name}`, or "
            f"{_by_hand(rule.address, rule, destination)}"
        )
    return f"no rule {name!r}; {specs.nearest(name, known)}"


def _by_hand(what: str, rule: PublishedRule, destination: Path) -> str:
    return f"download {what} by hand and save it as {destination} (sha256 {rule.sha256})"


def _is_intact(file: Path, rule: PublishedRule) -> bool:
    has_size = file.exists() and file.stat().st_size == rule.size
    return has_size and sha256_of(file) == rule.sha256


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be created ({error.strerror}); "
            f"set DISCORL_CACHE to a folder that can be written to"
        ) from error
