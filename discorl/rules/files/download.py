"""The download of a file whose size and hash are known, by pooch."""

import time
from collections.abc import Callable
from pathlib import Path

from discorl.types import UserError

Progress = Callable[[int, int], None]  # bytes so far, bytes in all

_ATTEMPTS = 4  # connections that one call may spend on a file
_TIMEOUT = 30.0  # seconds of silence
_CHUNK = 1 << 12
_PATIENCE = 60.0  # seconds after which a server must have kept up this pace
_LEAST_PACE = 1 << 12  # bytes a second


def download(
    address: str,
    destination: Path,
    *,
    size: int,
    sha256: str,
    otherwise: str,
    progress: Progress | None = None,
) -> None:
    """Downloads a file; it appears under its name only once it is complete and correct.

    If it fails, the message says what the user can do otherwise.
    """
    import pooch  # here, since a fetch is rare and its import is not free
    from requests import exceptions

    meter = _Meter(size, progress)
    downloader = pooch.HTTPDownloader(progressbar=meter, chunk_size=_CHUNK, timeout=_TIMEOUT)
    for _ in range(_ATTEMPTS):
        meter.reset()
        try:
            pooch.retrieve(
                address,
                known_hash=f"sha256:{sha256}",
                fname=destination.name,
                path=destination.parent,
                downloader=downloader,
            )
            destination.chmod(0o644)  # pooch's temporary files are private to the user
            return
        except exceptions.ChunkedEncodingError:  # the only failure that another try may mend
            reason = f"broke off after {meter.done:,} of {size:,} bytes, {_ATTEMPTS} times"
            continue
        except exceptions.HTTPError as error:
            reason = f"answered {error}"
        except exceptions.RequestException as error:
            reason = f"cannot be reached ({error})"
        except TimeoutError:
            reason = f"sends less than {_LEAST_PACE:,} bytes a second"
        except ValueError:
            reason = f"holds another file; expected {size:,} bytes of sha256 {sha256}"
        break
    raise UserError(f"{address} {reason}; or {otherwise}")


class _Meter:
    """What pooch takes for a progress bar; it also stops an answer that does not end."""

    def __init__(self, size: int, progress: Progress | None) -> None:
        self.total = 0  # set by pooch
        self.done = 0
        self._size, self._progress = size, progress
        self._start = time.monotonic()

    def update(self, count: int) -> None:
        """Counts bytes; pooch counts whole chunks, the last one included."""
        self.done += count
        if self.done >= self._size + _CHUNK:
            raise ValueError("the answer is longer than the file")
        waited = time.monotonic() - self._start
        if waited > _PATIENCE and self.done < _LEAST_PACE * waited:
            raise TimeoutError
        if self._progress is not None:
            self._progress(min(self.done, self._size), self._size)

    def reset(self) -> None:
        self.done = 0
        self._start = time.monotonic()

    def close(self) -> None:
        """Holds nothing."""
