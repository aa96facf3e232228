"""The configuration of `rdma`, for pydantic; see `rdma_cni.cni.models` for how it is used."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rdma_cni.cni import checks
from rdma_cni.cni.models import Bool, Int, Model, Result, Str

DeviceID = Annotated[Str, AfterValidator(checks.device_id)]
Mac = Annotated[Str, AfterValidator(checks.mac)]


class CniArgs(Model):
    """`args.cni`."""

    debug: Bool | None = None
    rdmaDeviceName: Annotated[Str, AfterValidator(checks.rdma_name)] | None = None  # noqa: N815


class Args(Model):
    """`args`, by convention where a user's arguments are put."""

    cni: CniArgs | None = None


class RuntimeConfig(Model):
    """`runtimeConfig`: what the runtime adds for the capabilities that the configuration names."""

    deviceID: DeviceID | None = None  # noqa: N815
    mac: Mac | None = None
    CNIDeviceInfoFile: Annotated[Str, AfterValidator(checks.absolute_path)] | None = None


class Ipam(Model):
    """`ipam`: the rest of it is for the plugin that `type` names."""

    type: Annotated[Str, AfterValidator(checks.plugin_name)] | None = None


class NetConf(Model):
    """A network configuration for `rdma`."""

    cniVersion: Str  # noqa: N815
    name: Str
    type: Str | None = None
    deviceID: DeviceID | None = None  # noqa: N815
    pciBusID: DeviceID | None = None  # noqa: N815
    pf: Annotated[Any, AfterValidator(checks.names)] | None = None
    ifName: Annotated[Str, AfterValidator(checks.interface_name)] | None = None  # noqa: N815
    ipam: Ipam | None = None
    mac: Mac | None = None
    mtu: Annotated[Int, Field(ge=68, le=65535)] | None = None
    args: Args | None = None
    runtimeConfig: RuntimeConfig | None = None  # noqa: N815
    logLevel: Literal["error", "warning", "info", "debug"] | None = None  # noqa: N815
    logFile: Annotated[Str, AfterValidator(checks.absolute_path)] | None = None  # noqa: N815
    prevResult: Result | None = None  # noqa: N815
