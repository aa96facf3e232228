"""What may stand in the environment and in the configuration."""

import ipaddress
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdma_cni.cni import checks

# How long an example takes says nothing on a machine that others share.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

GOOD: list[tuple[Callable[[str], str], str, str]] = [
    (checks.identifier, "a", "a"),
    (checks.identifier, "0a_.-Z", "0a_.-Z"),
    (checks.identifier, "x" * 255, "x" * 255),
    (checks.interface_name, "net1", "net1"),
    (checks.interface_name, "enp1s0f0v0-x", "enp1s0f0v0-x"),
    (checks.interface_name, "abcdefghijklmno", "abcdefghijklmno"),
    (checks.interface_name, "é", "é"),
    (checks.device_id, "", ""),
    (checks.device_id, "0000:03:00.2", "0000:03:00.2"),
    (checks.device_id, "0000:AF:0A.2", "0000:af:0a.2"),
    (checks.device_id, "0002:03:00.2", "0002:03:00.2"),
    (checks.device_id, "10000:01:00.0", "10000:01:00.0"),
    (checks.device_id, "mlx5_core.sf.4", "mlx5_core.sf.4"),
    (checks.device_id, "ice.sf.12", "ice.sf.12"),
    (checks.address, "10.0.0.1", "10.0.0.1"),
    (checks.address, "FD00:0:0::1", "fd00::1"),
    (checks.cidr, "10.0.0.1/24", "10.0.0.1/24"),
    (checks.cidr, "fd00::1/064", "fd00::1/64"),
    (checks.mac, "02:AA:bb:00:03:01", "02:aa:bb:00:03:01"),
    (checks.mac, "", ""),
    (checks.rdma_name, "mlx5_0", "mlx5_0"),
    (checks.plugin_name, "host-local", "host-local"),
    (checks.absolute_path, "/var/log/rdma.log", "/var/log/rdma.log"),
]

BAD: list[tuple[Callable[[str], str], str]] = [
    *((checks.identifier, text) for text in ("", "-a", ".a", "a/b", "a b", "a\0", "é", "x" * 256, "a\n")),
    *(
        (checks.interface_name, text)
        for text in ("", ".", "..", "a/b", "a:b", "a b", "a\tb", "x" * 16, "é" * 8, "a\udcff")
    ),
    *(
        (checks.device_id, text)
        for text in (
            "..",
            "../x",
            "0000:03:00.8",
            "000:03:00.2",
            "0000:3:00.2",
            "0000:03:00",
            "0000:03:00.22",
            "0000:03:0g.2",
            "0000:03:00.2/",
            "0000:03:00.2\n",
            "000000000:03:00.2",
            "mlx5_core.sf",
            "mlx5_core.sf.x",
            "mlx5_core..4",
            "mlx5_core.sf./4",
            "a" * 60 + ".sf.4",
            "٣000:03:00.2",
        )
    ),
    *((checks.address, text) for text in ("", "10.0.0", "10.0.0.256", "10.0.0.1/24", "::g", "1.2.3.4\0", "010.0.0.1")),
    *(
        (checks.cidr, text)
        for text in ("10.0.0.1", "10.0.0.1/33", "::1/129", "10.0.0.1/", "10.0.0.1/-1", "/24", "1.2.3.4/2٣")
    ),
    *(
        (checks.mac, text)
        for text in ("02:00", "01:00:00:00:00:01", "00:00:00:00:00:00", "02-00-00-00-00-01", "0g:0:0:0:0:0")
    ),
    *((checks.rdma_name, text) for text in ("", "a/b", "a b", "x" * 64, "%s", ".a")),
    *((checks.plugin_name, text) for text in ("", "a/b", "..", ".", "a\0")),
    *((checks.absolute_path, text) for text in ("a", "./a", "/a\0")),
]


@pytest.mark.parametrize(("check", "text", "canonical"), GOOD)
def test_what_is_good_comes_out_in_its_canonical_form(check: Callable[[str], str], text: str, canonical: str) -> None:
    assert check(text) == canonical


@pytest.mark.parametrize(("check", "text"), BAD)
def test_what_is_bad_is_told_what_was_expected(check: Callable[[str], str], text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        check(text)


@given(st.ip_addresses())
def test_addresses_are_written_as_the_standard_library_writes_them(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    text = checks.address(str(address))
    assert ipaddress.ip_address(text) == address


@given(st.text())
def test_no_text_that_passes_for_a_device_id_leads_out_of_its_directory(text: str) -> None:
    try:
        found = checks.device_id(text)
    except ValueError:
        return
    assert "/" not in found
    assert found not in (".", "..")
