"""Which node this is, and which subnets of the pools are its own."""

import posix
from _stat import S_ISREG

from ipam.pool import Pool, Range, listed, parts, pools, require_own
from rdma_cni.cni import jsontext, validate
from rdma_cni.cni.database import DIRECTORY
from rdma_cni.cni.errors import INVALID_CONFIG, TRY_AGAIN, CniError
from rdma_cni.cni.typecast import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipam import models

NODE_FILE = f"{DIRECTORY}/node.json"
_MAX_NODE_FILE = 1 << 20


class Share:
    """This node's part of one pool: its subnets there, in the order in which they are used."""

    __slots__ = ("pool", "ranges")

    def __init__(self, pool: Pool, ranges: list[Range]) -> None:
        self.pool = pool
        self.ranges = ranges

    def __str__(self) -> str:
        return ", ".join(str(one.subnet) for one in self.ranges)


def shares(conf: "models.NodeSubnet") -> list[Share]:
    """This node's part of each pool. Raises CniError 7, or 11 when it has none.

    The node's name is `nodeName`, else that of node.json, else the hostname. Its subnets are those
    of `nodes`, else those of node.json, which is read anew each time: whoever writes it may replace
    it at any moment.
    """
    all_pools = pools(conf)
    file = _node_file()
    name = conf.nodeName or (file and file.nodeName) or posix.uname().nodename
    own = parts(conf, all_pools, name)
    if own is not None:
        searched = "its list in `ipam.nodes` has none there, expected one"
    else:
        # The file is about the node: it has the subnets of all networks' pools.
        own = listed((file and file.subnets) or [], all_pools, f"{NODE_FILE}: subnets", others=True)
        require_own(conf, own, f"{NODE_FILE}: subnets")
        lacks = "has no subnet in that pool" if file else "is not there"
        searched = (
            f"it is not among the {len(conf.nodes or {})} nodes of `ipam.nodes`, and {NODE_FILE} {lacks}; expected one "
            "of the two to name it"
        )
    found = [Share(pool, [Range(pool, one) for in_pool, one in own if in_pool is pool]) for pool in all_pools]
    for share in found:
        if not share.ranges:
            raise CniError(TRY_AGAIN, f"node {name!r}: found no subnet of the pool {share.pool.subnet}: {searched}")
    return found


def _node_file() -> "models.NodeFile | None":
    try:
        fd = posix.open(NODE_FILE, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CniError(INVALID_CONFIG, f"{NODE_FILE}: cannot be read: {error.strerror}; see who writes it") from None
    try:
        status = posix.fstat(fd)
        # Whoever can write it chooses this node's addresses.
        if not S_ISREG(status.st_mode) or status.st_uid != posix.geteuid() or status.st_mode & 0o022:
            raise ValueError(
                f"mode {status.st_mode:o} and user {status.st_uid}, not a plain file that only root writes"
            )
        data = posix.read(fd, _MAX_NODE_FILE + 1)
        if len(data) > _MAX_NODE_FILE:
            raise ValueError(f"more than {_MAX_NODE_FILE} bytes")
        value = jsontext.parse(data)
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError) as error:
        raise CniError(
            INVALID_CONFIG,
            f'{NODE_FILE}: found {error}, expected {{"nodeName": "...", "subnets": ["10.56.7.0/24"]}}: '
            "see who writes it",
        ) from None
    finally:
        posix.close(fd)
    return cast("models.NodeFile", validate.check("NODE_FILE", value, prefix=f"{NODE_FILE}: "))
