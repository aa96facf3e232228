"""A CNI result as the spec has it, for pydantic: what is read from prevResult and from IPAM plugins.

These classes are the one description of what is accepted. They are not imported by the plugin
itself, which would take it longer than all its work: `schema.py` writes down what their
validators check, and `validate.py` runs that with pydantic's compiled core alone.
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, StrictBool

from rdma_cni.cni import checks

Str = Annotated[str, Strict()]
Int = Annotated[int, Strict()]
Bool = StrictBool
Identifier = Annotated[Str, AfterValidator(checks.identifier)]
Address = Annotated[Str, AfterValidator(checks.address)]
Cidr = Annotated[Str, AfterValidator(checks.cidr)]
UInt32 = Annotated[Int, Field(ge=0, le=0xFFFFFFFF)]


class Model(BaseModel):
    """What all have in common: keys that are not known are ignored, as the field's plugins do."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Interface(Model):
    """An interface of a result. `sandbox` is the namespace's path, empty for one on the host."""

    name: Str
    mac: Str | None = None
    sandbox: Str | None = None
    pciID: Str | None = None  # noqa: N815 - the spec's key


class IP(Model):
    """An address of a result. `interface` is an index into the interfaces."""

    address: Cidr
    gateway: Address | None = None
    interface: Int | None = None


class Route(Model):
    """A route of a result; all but `dst` and `gw` are of spec 1.1."""

    dst: Cidr
    gw: Address | None = None
    mtu: UInt32 | None = None
    advmss: UInt32 | None = None
    priority: UInt32 | None = None
    table: UInt32 | None = None
    scope: Annotated[Int, Field(ge=0, le=255)] | None = None


class Result(Model):
    """The result of an ADD, of the version that was asked for; DNS is passed on unread."""

    interfaces: list[Interface] | None = None
    ips: list[IP] | None = None
    routes: list[Route] | None = None
