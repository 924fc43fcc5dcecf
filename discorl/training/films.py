"""Films of episodes: GIF and MP4 files."""

import contextlib
import importlib.util
import io
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from discorl.runs.files import require_regular, write_bytes, write_errors_reported
from discorl.types import UserError

ENDINGS = (".gif", ".mp4")
FRAME_MILLISECONDS = 120
LAST_FRAME_MILLISECONDS = 900
LEAST_SIDE = 256  # pixels of the longer side; smaller frames are magnified


def check(path: Path, name: str = "film", endings: Sequence[str] = ENDINGS) -> Path:
    """Rejects a file that cannot be written, or whose ending is not in `endings`."""
    if path.suffix.lower() not in endings:
        raise UserError(f"{name} is {path}; expected a file ending in {' or '.join(endings)}")
    if path.suffix.lower() == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UserError(f'{name} is {path}; MP4 needs `pip install "discorl[mp4]"`')
    absent = FileNotFoundError, NotADirectoryError  # not an error before the film is written
    with write_errors_reported(path), contextlib.suppress(*absent):
        require_regular(path, path.lstat())
    return path


def write(path: Path, frames: list[np.ndarray]) -> Path:
    """Writes frames, [H, W, 3] uint8, as GIF or MP4, by the file's ending."""
    large = [magnified(frame) for frame in frames]
    content = _gif(large) if check(path).suffix.lower() == ".gif" else _mp4(large)
    with write_errors_reported(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    return path


def magnified(frame: np.ndarray) -> np.ndarray:
    """Scales a frame up to at least `LEAST_SIDE` pixels, with even sides for MP4."""
    factor = -(-LEAST_SIDE // max(frame.shape[:2]))
    large = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.pad(large, [(0, large.shape[0] % 2), (0, large.shape[1] % 2), (0, 0)], mode="edge")


def _gif(frames: list[np.ndarray]) -> bytes:
    from PIL import Image  # imported late: few commands draw

    first, *rest = (Image.fromarray(frame) for frame in frames)
    durations = [FRAME_MILLISECONDS] * len(rest) + [LAST_FRAME_MILLISECONDS]
    content = io.BytesIO()
    first.save(content, "GIF", save_all=True, append_images=rest, duration=durations, loop=0)
    return content.getvalue()


def _mp4(frames: list[np.ndarray]) -> bytes:
    import imageio_ffmpeg

    held = LAST_FRAME_MILLISECONDS // FRAME_MILLISECONDS  # all frames of an MP4 last equally long
    height, width = frames[0].shape[:2]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # JAX warns of forks, but this one execs ffmpeg immediately.
        warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
        file = Path(folder, "film.mp4")
        writer = imageio_ffmpeg.write_frames(
            str(file), (width, height), fps=1000 / FRAME_MILLISECONDS, macro_block_size=2
        )
        writer.send(None)
        for frame in [*frames, *frames[-1:] * (held - 1)]:
            writer.send(np.ascontiguousarray(frame))
        writer.close()
        return file.read_bytes()
