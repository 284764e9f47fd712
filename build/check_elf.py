"""Say which glibc a frozen file needs, over every ELF file inside: check_elf.py FILE.

Fails when that is newer than RHEL 9's, or when a library is needed that neither glibc nor the file itself brings.

Sources: the ELF gABI and the GNU symbol versioning extension (.gnu.version_r); PyInstaller's archive reader.
"""

import io
import pathlib
import re
import sys
from typing import NamedTuple

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from freezing import SYSTEM_LIBRARIES, needed_libraries
from PyInstaller.archive.readers import CArchiveReader

# RHEL 9 and its CoreOS, on which most OVN-Kubernetes nodes run.
FLOOR = (2, 34)


class Needs(NamedTuple):
    name: str
    glibc: tuple[int, ...]
    libraries: list[str]


def elf_files(path: pathlib.Path) -> dict[str, bytes]:
    """Map names to the file itself and each ELF file in its archive."""
    files = {path.name: path.read_bytes()}
    archive = CArchiveReader(str(path))
    for name, (*_, kind) in archive.toc.items():
        if kind == "b":
            files[name] = archive.extract(name)
    return {name: data for name, data in files.items() if data.startswith(b"\x7fELF")}


def needs_of(name: str, data: bytes) -> Needs:
    versions = {
        tuple(map(int, found[1].split(".")))
        for section in ELFFile(io.BytesIO(data)).iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, symbols in section.iter_versions()
        for symbol in symbols
        if (found := re.fullmatch(r"GLIBC_(\d[\d.]*)", symbol.name))
    }
    return Needs(name, max(versions, default=(0,)), needed_libraries(io.BytesIO(data)))


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def main() -> int:
    files = elf_files(pathlib.Path(sys.argv[1]))
    all_needs = [needs_of(name, data) for name, data in files.items()]
    problems = []
    for needs in all_needs:
        libraries = ", ".join(needs.libraries) or "no library"
        sys.stdout.write(f"{needs.name}: glibc {dotted(needs.glibc)}; needs {libraries}\n")
        if needs.glibc > FLOOR:
            problems.append(f"{needs.name} needs glibc {dotted(needs.glibc)}, newer than {dotted(FLOOR)}")
        problems += [
            f"{needs.name} needs {library}, which is not in the file"
            for library in needs.libraries
            if not SYSTEM_LIBRARIES.fullmatch(library) and library not in files
        ]
    sys.stdout.write(f"{len(files)} ELF files; lowest glibc: {dotted(max(needs.glibc for needs in all_needs))}\n")
    for problem in problems:
        sys.stderr.write(f"error: {problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
