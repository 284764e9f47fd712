"""Network namespaces: sockets are made inside the pod's, everything else happens outside."""

from __future__ import annotations

import posix

from ovn_k8s_cni.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_OWN = "/proc/self/ns/net"


class Netns:
    """An open network namespace; `with ns.entered():` runs a block inside it.

    A socket belongs for life to the namespace it was made in, so blocks are short: make the sockets and leave.
    """

    def __init__(self, path: str) -> None:
        """Open the namespace at `path`; raise OSError (EINVAL when it is something else)."""
        self.path = path
        # Not to be kept waiting by a FIFO in its place.
        self.fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
        self._home = -1
        try:
            self._home = posix.open(_OWN, posix.O_RDONLY | posix.O_CLOEXEC)
            self._identity = _identity(self.fd)
            with self.entered():
                pass
        except OSError:
            self.close()
            raise

    def is_own(self) -> bool:
        """Tell whether it is the namespace this process runs in."""
        return self._identity == _identity(self._home)

    def entered(self) -> _Entered:
        """Return a context manager whose block runs inside the namespace."""
        return _Entered(self.fd, self._home)

    def close(self) -> None:
        """Let go of the namespace."""
        for fd in (self.fd, self._home):
            if fd >= 0:
                posix.close(fd)
        self.fd = self._home = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Entered:
    def __init__(self, inside: int, home: int) -> None:
        self._inside = inside
        self._home = home

    def __enter__(self) -> None:
        syscalls.setns(self._inside, syscalls.CLONE_NEWNET)

    def __exit__(self, *_: object) -> None:
        syscalls.setns(self._home, syscalls.CLONE_NEWNET)


def _identity(fd: int) -> tuple[int, int]:
    status = posix.fstat(fd)
    return status.st_dev, status.st_ino
