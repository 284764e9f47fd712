"""Put a file into a directory by rename: install.py FILE DIRECTORY.

A runtime may start the plugin at any moment: it must find the old file or the new one, and a file that is being
executed cannot be written to (ETXTBSY). The data is on disk before the name is, so that a crash leaves no empty plugin.

Sources: rename(2), fsync(2), open(2).
"""

import os
import pathlib
import shutil
import sys
import tempfile


def install(source: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / source.name
    # A leading dot: a runtime that lists its plugin directory passes over it.
    with tempfile.NamedTemporaryFile(dir=directory, prefix=f".{source.name}.", delete=False) as copy:
        try:
            with source.open("rb") as original:
                shutil.copyfileobj(original, copy)
            copy.flush()
            os.fchmod(copy.fileno(), 0o755)
            os.fsync(copy.fileno())
        except BaseException:
            pathlib.Path(copy.name).unlink()
            raise
    pathlib.Path(copy.name).rename(target)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{install(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))}\n")
