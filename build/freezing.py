"""What the spec file asks about the program that PyInstaller has analysed.

Sources: PyInstaller's `building/build_main.py` and `depend/analysis.py` (the module graph behind `Analysis`), and its
manual on TOC entries; the ELF specification on DT_NEEDED.
"""

import _imp
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

# (name in the archive, source file, PyInstaller's type code)
Entry = tuple[str, str, str]

# What every glibc system has; anything else that a shared object needs must travel in the archive.
SYSTEM_LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux[-\w]*)\.so\.\d+")


def modules_of_package(root: pathlib.Path, package: str) -> list[str]:
    """Name every module of `package`, also those that nothing imports at the top of a file."""
    paths = (path.relative_to(root).with_suffix("") for path in sorted((root / package).rglob("*.py")))
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def in_package(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


class Program:
    """The modules that `package` reaches.

    `also` names modules that are reached by name at run time. `Analysis.pure` is no use: PyInstaller adds what its own
    loader needs, and puts a part into base_library.zip.
    """

    def __init__(self, analysis: Any, package: str, leave_out: Callable[[str], bool], also: Iterable[str] = ()) -> None:
        self.collected = {pathlib.Path(name).name: source for name, source, _ in analysis.binaries}
        graph = analysis.graph
        found: dict[str, Any] = {}
        waiting = [node for node in graph.iter_graph() if in_package(str(node.identifier), package)]
        waiting += [graph.find_node(name) for name in also]
        while waiting:
            node = waiting.pop()
            name = str(node.identifier)
            if name in found or kind(node) == "Script" or leave_out(name):
                continue
            found[name] = node
            # Importing a module imports the packages around it.
            parent = graph.find_node(name.rpartition(".")[0]) if "." in name else None
            waiting.extend(graph.outgoing(node))
            if parent is not None:
                waiting.append(parent)
        self.nodes = [found[name] for name in sorted(found)]

    def python_modules(self, optimize: int) -> list[Entry]:
        """List what goes into the PYZ: not what is frozen into libpython anyway, which costs no reading."""
        return [
            (str(node.identifier), node.filename or "-", f"PYMODULE-{optimize}")
            for node in self.nodes
            if kind(node) in {"SourceModule", "Package", "NamespacePackage"} and not _imp.is_frozen(node.identifier)
        ]

    def extension_modules(self) -> list[Entry]:
        """List extension modules under their module names, the shared libraries that they need, and who needs which."""
        entries: list[Entry] = []
        libraries: dict[str, str] = {}
        for node in self.nodes:
            if kind(node) != "Extension":
                continue
            entries.append((node.identifier, node.filename, "EXTENSION"))
            needed = list(dict.fromkeys(self._needed(node.filename)))
            libraries.update({name: self.collected[name] for name in needed})
            if needed:
                entries.append((" ".join(["requires", node.identifier, *needed]), "", "OPTION"))
        return entries + [(name, source, "BINARY") for name, source in sorted(libraries.items())]

    def _needed(self, path: str) -> Iterator[str]:
        """Name the libraries that the shared object at `path` needs from the archive, each after those it needs."""
        with pathlib.Path(path).open("rb") as file:
            needed = needed_libraries(file)
        for library in needed:
            if SYSTEM_LIBRARIES.fullmatch(library):
                continue
            if library not in self.collected:
                sys.exit(f"{path} needs {library}, which PyInstaller has not collected")
            yield from self._needed(self.collected[library])
            yield library

    def refuse_builtins_outside(self, builtin: Iterable[str]) -> None:
        """Fail when the program needs a module that the build's interpreter has built in and the bootloader has not."""
        needed = {str(node.identifier) for node in self.nodes if kind(node) == "BuiltinModule"}
        if lacking := needed - set(builtin):
            sys.exit(f"the bootloader lacks these built-in modules: {', '.join(sorted(lacking))}")


def kind(node: Any) -> str:
    return type(node).__name__


def needed_libraries(file: IO[bytes]) -> list[str]:
    return [
        str(tag.needed)  # type: ignore[attr-defined]
        for section in ELFFile(file).iter_sections()
        if isinstance(section, DynamicSection)
        for tag in section.iter_tags("DT_NEEDED")
    ]
