"""The configuration of `node-subnet`, for pydantic; see `rdma_cni.cni.models` for how it is used.

What needs more than one field to be judged is in `pool.py`: whether a subnet lies in its pool,
whether two nodes overlap.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ipam import checks
from rdma_cni.cni.models import Bool, Cidr, Int, Route, Str

Prefix = Annotated[Int, Field(ge=0, le=128)]
Addresses = Annotated[Str, AfterValidator(checks.address_or_subnet)]


class Strict(BaseModel):
    """A key that is not known is an error here: the section `ipam` is this plugin's alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OwnRoute(Route):
    """A route of the result."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Pool(Strict):
    """A range of addresses that the nodes share; see docs/ipam.md."""

    subnet: Cidr
    nodePrefix: Prefix | None = None  # noqa: N815 - the configuration's key
    mode: Literal["routed", "flat"] | None = None
    gateway: Str | None = None
    exclude: list[Addresses] | None = None
    poolRoute: Bool | None = None  # noqa: N815


class NodeSubnet(Strict):
    """The section `ipam`. `nodes` maps a node's name to an index or to a list of subnets."""

    type: Str
    nodeName: Str | None = None  # noqa: N815
    nodes: dict[Str, Annotated[Any, AfterValidator(checks.node)]] | None = None
    pools: list[Pool]
    routes: list[OwnRoute] | None = None
    poolRoute: Bool | None = None  # noqa: N815
    dns: dict[Str, Any] | None = None


class NodeFile(BaseModel):
    """/run/rdma-cni/node.json. Others may put more into it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    nodeName: Str | None = None  # noqa: N815
    subnets: list[Cidr] | None = None
