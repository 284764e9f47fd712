"""System calls that Python 3.11 does not wrap.

The frozen file has them built in; from the source tree they go through ctypes, which costs 3 ms to import.
"""

from __future__ import annotations

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1

try:
    from _ovn_k8s_cni_syscalls import address_of, set_parent_death_signal, setns
except ImportError:
    import ctypes as _ctypes
    import os as _os

    _libc = _ctypes.CDLL(None, use_errno=True)

    def _checked(status: int) -> None:
        if status < 0:
            number = _ctypes.get_errno()
            raise OSError(number, _os.strerror(number))

    def setns(fd: int, nstype: int) -> None:
        """Move this thread into the namespace of `fd` (setns(2)); raise OSError."""
        _checked(_libc.setns(fd, nstype))

    def set_parent_death_signal(signal: int) -> None:
        """Have the kernel send `signal` to this process when its parent ends (prctl(2)); raise OSError."""
        _checked(_libc.prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0))

    def address_of(buffer: bytearray) -> int:
        """Return where a buffer lies, for structs that point; the caller keeps it alive and does not resize it."""
        return _ctypes.addressof(_ctypes.c_char.from_buffer(buffer))


__all__ = ["CLONE_NEWNET", "address_of", "set_parent_death_signal", "setns"]
