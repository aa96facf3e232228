"""DCB netlink: a netdev's priority flow control, and which priorities of a packet its port trusts.

Names and numbers are those of the kernel's linux/dcbnl.h.
"""

from dataclasses import dataclass

from rdma_cni.link import Links
from rdma_cni.netlink import NetlinkError, attributes, text

_RTM_GETDCB = 78
_AF_UNSPEC = 0
_CMD_IEEE_GET = 21
_ATTR_IFNAME, _ATTR_IEEE = 1, 13
_IEEE_PFC, _IEEE_APP_TABLE, _APP_TRUST_TABLE = 2, 3, 11
_APP, _TRUST_APP = 1, 2
_SEL_DSCP = 5


@dataclass(frozen=True)
class Dcb:
    """What the driver tells; None is what it does not. `pfc` are the priorities, 0 to 7, with flow control."""

    pfc: tuple[int, ...] | None
    dscp_trusted: bool | None


def of(links: Links, ifname: str) -> Dcb | None:
    """A netdev's DCB settings; None when its driver knows none."""
    try:
        answers = links.request(_RTM_GETDCB, 0, bytes([_AF_UNSPEC, _CMD_IEEE_GET, 0, 0]) + text(_ATTR_IFNAME, ifname))
    except NetlinkError:
        return None
    for answer in answers:
        for kind, value in attributes(answer[4:]):
            if kind == _ATTR_IEEE:
                return _settings(dict(attributes(value)))
    return None


def _settings(fields: dict[int, bytes]) -> Dcb | None:
    pfc = trusted = None
    if _IEEE_PFC in fields:
        # struct ieee_pfc: u8 pfc_cap, u8 pfc_en, ...
        enabled = fields[_IEEE_PFC][1]
        pfc = tuple(priority for priority in range(8) if enabled & 1 << priority)
    # Where the driver has no table of what it trusts, a map of DSCP to priority is what makes it trust DSCP.
    selectors = [value[0] for kind, value in attributes(fields.get(_IEEE_APP_TABLE, b"")) if kind == _APP and value]
    if _APP_TRUST_TABLE in fields:
        table = fields[_APP_TRUST_TABLE]
        trusted = any(value[:1] == bytes([_SEL_DSCP]) for _, value in attributes(table))
    elif pfc is not None:
        trusted = _SEL_DSCP in selectors
    return Dcb(pfc, trusted) if pfc is not None or trusted is not None else None
