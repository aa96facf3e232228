"""What may stand in a CNI environment variable or configuration: plain functions, no imports.

Each takes the text and returns it, or its canonical form, or raises ValueError with what was
expected. They are used by the models of the configuration and by the environment's reader.
"""

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = "0123456789"
_HEX = frozenset("0123456789abcdefABCDEF")
_FIRST = frozenset(_LETTERS + _DIGITS)
_NAME = frozenset(_LETTERS + _DIGITS + "_.-")

# NAME_MAX: a container ID becomes a file's name in many a runtime and plugin.
_ID_BYTES = 255
# IFNAMSIZ - 1 of linux/if.h.
_IFNAME_BYTES = 15
_MAX_NAMES = 64


def identifier(text: str) -> str:
    """A network's name or a container's ID (CNI spec, "Parameters")."""
    if not text or text[0] not in _FIRST or not _NAME.issuperset(text):
        raise ValueError("a letter or digit, then letters, digits, '_', '.' and '-'")
    if len(text) > _ID_BYTES:
        raise ValueError(f"at most {_ID_BYTES} bytes, not {len(text)}")
    return text


def interface_name(text: str) -> str:
    """A network interface's name, as `dev_valid_name` of the kernel's net/core/dev.c has it."""
    size = len(text.encode(errors="surrogateescape"))
    if not 0 < size <= _IFNAME_BYTES:
        raise ValueError(f"1 to {_IFNAME_BYTES} bytes, not {size}")
    if text in (".", ".."):
        raise ValueError("a name that is neither '.' nor '..'")
    if set("/:% ") & set(text) or not text.isprintable():
        raise ValueError("no '/', ':', '%', blank or control character")
    if text in ("all", "default"):
        # Beside them lie the interfaces' directories in /proc/sys/net.
        raise ValueError("neither 'all' nor 'default'")
    return text


def names(value: object) -> list[str]:
    """A name, or a list of names; in either case the list."""
    found = value if isinstance(value, list) else [value]
    names = [name for name in found if isinstance(name, str) and name]
    if not names or len(names) != len(found) or len(names) > _MAX_NAMES:
        raise ValueError(f'a name such as "ens1f0", or a list of names, {_MAX_NAMES} at the most')
    return names


def plugin_name(text: str) -> str:
    """A plugin's `type`: the name of a file in CNI_PATH, never a path."""
    if not text or "/" in text or "\0" in text or text in (".", ".."):
        raise ValueError("the file name of a plugin in CNI_PATH, without '/'")
    return text


def device_id(text: str) -> str:
    """A PCI address (canonical: lower case) or an auxiliary device's name; "" stays "".

    Domains have four digits, or more behind Intel VMD (10000:01:00.0). An auxiliary device is
    named MODULE.NAME.ID (Documentation/driver-api/auxiliary_bus.rst).
    """
    if not text:
        return text
    domain, _, rest = text.partition(":")
    bus, _, slot = rest.partition(":")
    if (
        4 <= len(domain) <= 8
        and len(bus) == 2
        and len(slot) == 4
        and slot[2] == "."
        and slot[3] in "01234567"
        and _HEX.issuperset(domain + bus + slot[:2])
    ):
        return text.lower()
    parts = text.split(".")
    if len(parts) >= 3 and all(parts) and _NAME.issuperset(text) and parts[-1].isdecimal() and len(text) <= 64:
        return text
    raise ValueError("a PCI address such as 0000:03:00.2, or an auxiliary device such as mlx5_core.sf.4")


def address(text: str) -> str:
    """An IPv4 or IPv6 address, in its canonical form."""
    family = AF_INET6 if ":" in text else AF_INET
    try:
        return inet_ntop(family, inet_pton(family, text))
    except (OSError, ValueError):
        raise ValueError("an IPv4 or IPv6 address") from None


def cidr(text: str) -> str:
    """An address with a prefix length, such as 10.56.3.2/24, in its canonical form."""
    head, slash, length = text.partition("/")
    if slash and length.isascii() and length.isdecimal() and len(length) <= 3:
        try:
            head = address(head)
        except ValueError:
            slash = ""
        if slash and int(length) <= (128 if ":" in head else 32):
            return f"{head}/{int(length)}"
    raise ValueError("an address with a prefix length, such as 10.56.3.2/24")


def mac(text: str) -> str:
    """A unicast Ethernet address of six bytes, in lower case; "" stays ""."""
    if not text:
        return text
    parts = text.split(":")
    if len(parts) != 6 or not all(len(part) == 2 and _HEX.issuperset(part) for part in parts):
        raise ValueError("six bytes such as 02:00:00:00:03:01")
    if int(parts[0], 16) & 1:
        raise ValueError("a unicast address: the first byte is even")
    if set(text) <= {"0", ":"}:
        raise ValueError("an address that is not all zero")
    return text.lower()


def rdma_name(text: str) -> str:
    """An RDMA device's name: IB_DEVICE_NAME_MAX - 1 bytes, usable as a file name."""
    if not text or len(text) > 63 or text[0] not in _FIRST or not _NAME.issuperset(text):
        raise ValueError("1 to 63 letters, digits, '_', '.' and '-', the first a letter or digit")
    return text


def absolute_path(text: str) -> str:
    """A file's absolute path; "" stays ""."""
    if text and (not text.startswith("/") or "\0" in text):
        raise ValueError("an absolute path")
    return text
