"""The error that a CNI plugin reports, and its codes (CNI spec 1.1.0, "Error")."""

INCOMPATIBLE_VERSION = 1
UNKNOWN_CONTAINER = 3
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODING_FAILURE = 6
INVALID_CONFIG = 7
OWN_NAMESPACE = 8
"""Not in the spec: libcni's plugins answer it when CNI_NETNS is their own namespace."""
TRY_AGAIN = 11
NOT_AVAILABLE = 50

# From 100 up the codes are ours; docs/errors.md has a section for each.
SHARED_MODE = 100
NO_RDMA_DEVICE = 101
NO_SUCH_FUNCTION = 102
INTERFACE_NAME_TAKEN = 103
IPAM_MISSING = 104
IPAM_FAILED = 105
IPAM_NONSENSE = 106
IPAM_NO_ADDRESS = 107
KERNEL_REFUSED = 108
NO_RDMA_SUBSYSTEM = 109
ADDRESS_IN_USE = 110
CHECK_FAILED = 111
NO_PRIVILEGE = 112
NO_NETDEV = 113
REQUEST_REFUSED = 120
INTERNAL = 199


class CniError(Exception):
    """A failure as the caller is told of it.

    `code` is one of this module's, or another plugin's own; `message` says what was found, what
    was expected and what to do; `details` may add what only a closer look needs.
    """

    def __init__(self, code: int, message: str, details: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} (code {self.code})"
