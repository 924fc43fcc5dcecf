"""The download of a file whose size and hash are known, which a broken connection only delays."""

import contextlib
import dataclasses
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from discorl.runs.files import sha256_of
from discorl.types import UserError

Progress = Callable[[int, int], None]  # bytes so far, bytes in all

_ATTEMPTS = 4  # connections that one call may spend on a file
_TIMEOUT = 30.0  # seconds of silence
_CHUNK = 1 << 16


@dataclasses.dataclass(frozen=True)
class Download:
    """One file on its way: `part` grows until it is the one expected."""

    address: str  # http or https
    destination: Path
    size: int  # bytes expected
    sha256: str  # expected
    otherwise: str  # what the user can do if it fails
    progress: Progress | None = None

    @property
    def part(self) -> Path:
        """What has come so far; it stays if the connection breaks, for a later try to resume."""
        return self.destination.with_name(f"{self.destination.name}.part")

    def run(self) -> None:
        """Connects until `part` is complete and correct, then puts it in place.

        Raises:
            UserError: the address cannot be reached, breaks off, or holds another file.
        """
        for _ in range(_ATTEMPTS):
            start = _size(self.part)
            if start > self.size:
                self.part.unlink()
                start = 0
            if start < self.size:
                self._connect(start)
            if _size(self.part) < self.size:
                continue  # cut, or refused to resume
            if sha256_of(self.part) == self.sha256:
                self.part.replace(self.destination)
                return
            self.part.unlink()
            if start == 0:  # so the fault is not in what was kept from before
                raise self._failure(f"holds another file; expected sha256 {self.sha256}")
        raise self._failure(
            f"broke off after {_size(self.part):,} of {self.size:,} bytes, "
            f"{_ATTEMPTS} times; run again to resume"
        )

    def _connect(self, start: int) -> None:
        """Makes one connection, and takes from it what it gives."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        try:
            request = urllib.request.Request(self.address, headers=headers)
            response = _opener().open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
                self.part.unlink()
                return
            raise self._failure(f"answered {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise self._failure(f"cannot be reached ({reason})") from error
        except ValueError as error:
            raise self._failure(f"is not a valid address ({error})") from error
        with response:
            self._receive(response, start)

    def _receive(self, response: http.client.HTTPResponse, start: int) -> None:
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            resumed = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        else:
            resumed, start = True, 0  # the server sends everything again
        length = response.length  # None: the server does not say
        fits = length is None or start + length == self.size
        if start and not (resumed and fits):
            self.part.unlink()
            return
        if not fits:
            raise self._failure(f"holds a file of {length} bytes; expected {self.size}")
        with self.part.open("ab" if start else "wb") as file:
            for chunk in _chunks(response):
                file.write(chunk)
                if self.progress is not None:
                    self.progress(file.tell(), self.size)
                if file.tell() > self.size:
                    break  # a server that never stops must not fill the disk

    def _failure(self, reason: str) -> UserError:
        return UserError(f"{self.address} {reason}; or {self.otherwise}")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body as far as it comes; a broken connection simply ends it."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while chunk := response.read(_CHUNK):
            yield chunk


def _opener() -> urllib.request.OpenerDirector:
    """An opener for http and https alone: no redirect leads to a local file or to ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener
