"""The first Python code of the frozen file: find the archive, install one importer for it, run the entry module.

It is compiled into the executable, so it must not import anything that is not compiled into it as well: no `os`, no
`importlib`, no `struct`. Each line runs on every CNI call.

Sources: PyInstaller's manual, "CArchive" and "ZlibArchive" under "Advanced topics", and the format notes in its
`PyInstaller/archive/readers.py`; importlib's manual for what a finder and a loader owe; memfd_create(2), open(2) on
O_TMPFILE, sendfile(2).
"""

import _imp
import gc
import marshal
import posix
import sys
import zlib

# The class behind importlib.machinery.ModuleSpec; importing importlib itself costs a millisecond.
from _frozen_importlib import ModuleSpec

import _ovn_k8s_cni_syscalls as syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, ModuleType

COOKIE_MAGIC = b"MEI\x0c\x0b\x0a\x0b\x0e"
COOKIE_LENGTH = 8 + 4 * 4 + 64
# The cookie ends the section that objcopy added; behind it stand only the section names and the section headers.
TAIL_LENGTH = 8192
PYZ_PACKAGE = 1
PYZ_NAMESPACE_PACKAGE = 3
# Where an unnamed file may be made when memfd_create() is refused (a seccomp filter, a sysctl).
SCRATCH_DIRECTORIES = ("/run", "/dev/shm", "/tmp", "/var/tmp")  # noqa: S108 - with O_TMPFILE no name appears there


class Archive:
    """PyInstaller's CArchive at the end of this executable, as a meta path finder and as the loader of its Python code.

    The file stays open: the executable may be replaced or removed while a call runs.
    """

    def __init__(self) -> None:
        self.file = posix.open("/proc/self/exe", posix.O_RDONLY | posix.O_CLOEXEC)
        tail_offset = max(posix.fstat(self.file).st_size - TAIL_LENGTH, 0)
        tail = posix.pread(self.file, TAIL_LENGTH, tail_offset)
        cookie = tail.rfind(COOKIE_MAGIC)
        if cookie < 0:
            raise ImportError("no PyInstaller archive at the end of this executable")
        self.start = tail_offset + cookie + COOKIE_LENGTH - number(tail, cookie + 8)
        # module name -> (kind, offset in the PYZ, length)
        self.modules: dict[str, tuple[int, int, int]] = {}
        self.pyz_start = 0
        # extension module or shared library name -> (offset, length)
        self.binaries: dict[str, tuple[int, int]] = {}
        # extension module name -> the shared libraries that it needs, in the order in which they can be loaded
        self.requirements: dict[str, list[str]] = {}
        self.loaded: set[str] = set()
        self._read_toc(posix.pread(self.file, number(tail, cookie + 16), self.start + number(tail, cookie + 12)))

    def _read_toc(self, toc: bytes) -> None:
        at = 0
        while at < len(toc):
            entry_length, offset, length = number(toc, at), self.start + number(toc, at + 4), number(toc, at + 8)
            kind, name = toc[at + 17], toc[at + 18 : at + entry_length].rstrip(b"\0").decode()
            if kind == ord("z"):
                self._read_pyz_toc(offset, length)
            elif kind == ord("b"):
                self.binaries[name] = (offset, length)
            elif kind == ord("o"):
                # An option; the spec file uses them to say what an extension module needs.
                word, *names = name.split(" ")
                if word == "requires":
                    self.requirements[names[0]] = names[1:]
            at += entry_length

    def _read_pyz_toc(self, start: int, length: int) -> None:
        toc_offset = number(posix.pread(self.file, 12, start), 8)
        self.modules = dict(marshal.loads(posix.pread(self.file, length - toc_offset, start + toc_offset)))
        self.pyz_start = start

    def find_spec(
        self, name: str, _path: "Sequence[str] | None" = None, _target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        if name in self.modules:
            return ModuleSpec(name, self, is_package=self.is_package(name))  # type: ignore[arg-type]
        if name in self.binaries:
            return ModuleSpec(name, ExtensionLoader(self))  # type: ignore[arg-type]
        return None

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: "ModuleType") -> None:
        code = self.get_code(module.__name__)
        if code is not None:
            exec(code, module.__dict__)  # noqa: S102 - what a loader is for

    def get_code(self, name: str) -> "CodeType | None":
        kind, offset, length = self.modules[name]
        if kind == PYZ_NAMESPACE_PACKAGE:
            return None
        code: CodeType = marshal.loads(zlib.decompress(posix.pread(self.file, length, self.pyz_start + offset)))
        return code

    def get_source(self, _name: str) -> None:
        """There is no source in the file; `linecache` asks."""

    def is_package(self, name: str) -> bool:
        return self.modules[name][0] in (PYZ_PACKAGE, PYZ_NAMESPACE_PACKAGE)

    def load(self, name: str, load: "Callable[[str], None]") -> None:
        """Give `load` a path under which the dynamic linker finds the shared object `name`, for as long as it runs."""
        offset, length = self.binaries[name]
        file = unnamed_file(name)
        try:
            while length > 0:
                sent = posix.sendfile(file, self.file, offset, length)
                if sent == 0:
                    raise ImportError(f"{name}: this executable ends too early")
                offset += sent
                length -= sent
            # The linker takes two equal paths for the same library without looking, and descriptor numbers come back.
            distinct = "./" * len(self.loaded)
            load(f"/proc/self/fd/{distinct}{file}")
            self.loaded.add(name)
        finally:
            posix.close(file)


class ExtensionLoader:
    """An extension module that Debian has only as a shared object: loaded from a file that has no name."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive

    def create_module(self, spec: ModuleSpec) -> "ModuleType":
        for library in self.archive.requirements.get(spec.name, ()):
            if library not in self.archive.loaded:
                self.archive.load(library, syscalls.load_library)
        created: list[ModuleType] = []

        def load(path: str) -> None:
            spec.origin = path
            created.append(_imp.create_dynamic(spec))

        self.archive.load(spec.name, load)
        spec.origin = sys.executable
        return created[0]

    def exec_module(self, module: "ModuleType") -> None:
        _imp.exec_dynamic(module)


def number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")


def unnamed_file(name: str) -> int:
    """Open a file in memory, or one on disk that has no name; neither outlives the process."""
    try:
        return posix.memfd_create(name)
    except OSError as error:
        refusal = error
    for directory in SCRATCH_DIRECTORIES:
        try:
            return posix.open(directory, posix.O_TMPFILE | posix.O_RDWR | posix.O_CLOEXEC, 0o700)
        except OSError:
            continue
    raise ImportError(
        f"{name}: memfd_create is refused ({refusal}), and so are unnamed files in {', '.join(SCRATCH_DIRECTORIES)}"
    )


def run() -> int:
    """Call the entry module's `main` and return the exit status of the process."""
    try:
        from ovn_k8s_cni import __main__ as entry  # noqa: PLC0415 - the importer has only just been installed

        sys.modules["__main__"] = entry
        return entry.main()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{leaving.code}\n")
    except BaseException:
        sys.excepthook(*sys.exc_info())
    return 1


def leave(status: int) -> None:
    """End without finalizing the interpreter, which would take milliseconds to free what the kernel frees anyway."""
    try:
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = status or 1
    posix._exit(status & 0xFF)


# A process that lives for one request makes little garbage; looking for it while an ADD imports costs a millisecond.
gc.set_threshold(100_000)
sys.frozen = True  # type: ignore[attr-defined]
sys.meta_path.insert(0, Archive())
leave(run())
