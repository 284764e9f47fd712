"""The CNI error object (CNI spec 1.1.0, section 5, "Error") and its codes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Codes of the specification.
INCOMPATIBLE_VERSION = 1
UNSUPPORTED_FIELD = 2
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODING_FAILURE = 6
INVALID_CONFIG = 7
TRY_AGAIN_LATER = 11
NOT_AVAILABLE = 50
LIMITED_CONNECTIVITY = 51

# Ours (the specification leaves 100 and above to plugins); the README lists them.
INTERNAL = 100
KERNEL = 101
OVSDB = 102
NOT_FORWARDING = 103
DELEGATE = 104
NO_LEASE = 105
BAD_LEASE = 106
CHECK_FAILED = 107
ALREADY_ATTACHED = 108
GC_INCOMPLETE = 109


class CniError(Exception):
    """A failure for the person on call.

    `msg` says what failed and for whom, `details` what was found and what to check next.
    """

    def __init__(self, code: int, msg: str, details: str = "") -> None:
        super().__init__(code, msg, details)
        self.code = code
        self.msg = msg
        self.details = details

    def __str__(self) -> str:
        return f"{self.msg}; {self.details}" if self.details else self.msg

    def to_object(self, cni_version: str) -> dict[str, Any]:
        """Return the error object that goes to stdout."""
        found: dict[str, Any] = {"cniVersion": cni_version, "code": self.code, "msg": self.msg}
        if self.details:
            found["details"] = self.details
        return found
