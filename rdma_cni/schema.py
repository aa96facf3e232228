"""Which models' checks go into the bundle."""

from pydantic import BaseModel

from ipam.models import NodeFile, NodeSubnet
from rdma_cni.cni import models as cni_models
from rdma_cni.cni import schema
from rdma_cni.models import NetConf

MODELS: dict[str, type[BaseModel]] = {
    "NETCONF": NetConf,
    "RESULT": cni_models.Result,
    "NODE_SUBNET": NodeSubnet,
    "NODE_FILE": NodeFile,
}


def write(path: str) -> None:
    """Write the module `rdma_cni_schema` to `path`."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(schema.source(MODELS))
