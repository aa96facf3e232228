"""What may stand in single fields of the configuration; see `rdma_cni.cni.checks`."""

from rdma_cni.cni import checks


def address_or_subnet(text: str) -> str:
    """An address, or a subnet in CIDR form."""
    try:
        return checks.cidr(text) if "/" in text else checks.address(text)
    except ValueError:
        raise ValueError("an address such as 10.56.3.9, or a subnet such as 10.56.3.64/28") from None


def node(value: object) -> object:
    """A node's part of the pools: an index, or a list of subnets."""
    expected = 'an index such as 3, or a list of subnets such as ["10.56.200.0/24"]'
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("an index of 0 or more")
        return value
    if not isinstance(value, list) or not value or not all(isinstance(entry, str) for entry in value):
        raise ValueError(expected)
    try:
        return [checks.cidr(entry) for entry in value]
    except ValueError:
        raise ValueError(expected) from None
