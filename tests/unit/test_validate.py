"""The checks that go into the bundle are those of the pydantic models."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pydantic_core
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rdma_cni import schema
from rdma_cni.cni import validate
from rdma_cni.cni.errors import CniError
from rdma_cni.cni.schema import portable
from rdma_cni.models import NetConf

BASE: dict[str, Any] = {"cniVersion": "1.0.0", "name": "rail0", "type": "rdma"}

ACCEPTED: list[dict[str, Any]] = [
    {},
    {"unknown": {"what": "ever"}},
    {"deviceID": "0000:03:00.2"},
    {"deviceID": ""},
    {"args": {"cni": {"debug": True, "rdmaDeviceName": "rail0"}}},
    {"args": {"labels": [1]}},
    {"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/8"}]]}},
    {"ipam": {}},
    {"mac": "02:00:00:00:00:01", "mtu": 9000},
    {"logLevel": "debug", "logFile": "/tmp/x"},
    {"runtimeConfig": {"deviceID": "mlx5_core.sf.4", "mac": "02:00:00:00:00:01", "ips": ["10.0.0.1"]}},
    {
        "prevResult": {
            "interfaces": [{"name": "net1", "sandbox": "/run/netns/x", "mac": "02:00:00:00:00:01"}],
            "ips": [{"address": "10.0.0.1/24", "gateway": "10.0.0.254", "interface": 0, "version": "4"}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.254"}],
            "dns": {"nameservers": ["10.0.0.2"]},
        }
    },
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"deviceID": 3}, "deviceID: found 3, expected a string"),
    ({"deviceID": "../x"}, "deviceID: found "),
    ({"pciBusID": "0000:03:00.9"}, "pciBusID: found "),
    ({"ipam": "host-local"}, "ipam: found "),
    ({"ipam": {"type": "../x"}}, "ipam.type: found "),
    ({"ipam": {"type": 1}}, "ipam.type: found 1, expected a string"),
    ({"mac": "01:00:00:00:00:01"}, "mac: found "),
    ({"mtu": "9000"}, "mtu: found "),
    ({"mtu": 67}, "mtu: found 67"),
    ({"mtu": 65536}, "mtu: found 65536"),
    ({"mtu": True}, "mtu: found true, expected an integer"),
    ({"args": []}, "args: found [], expected an object"),
    ({"args": {"cni": {"debug": "yes"}}}, "args.cni.debug: found "),
    ({"args": {"cni": {"rdmaDeviceName": "a/b"}}}, "args.cni.rdmaDeviceName: found "),
    ({"logLevel": "loud"}, "logLevel: found "),
    ({"logFile": "relative"}, "logFile: found "),
    ({"runtimeConfig": {"mac": 1}}, "runtimeConfig.mac: found 1, expected a string"),
    ({"prevResult": []}, "prevResult: found [], expected an object"),
    ({"prevResult": {"ips": [{"address": "10.0.0.1"}]}}, "prevResult.ips[0].address: found "),
    ({"prevResult": {"ips": [{}]}}, "prevResult.ips[0].address: found nothing"),
    ({"prevResult": {"interfaces": [{"mac": "x"}]}}, "prevResult.interfaces[0].name: found nothing"),
    ({"prevResult": {"routes": [{"dst": "x"}]}}, "prevResult.routes[0].dst: found "),
    ({"prevResult": {"routes": [{"dst": "::/0", "gw": 4}]}}, "prevResult.routes[0].gw: found 4"),
]


@pytest.fixture(params=["source tree", "bundle"])
def as_in(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schemas made on the fly, and those written down as for the bundle."""
    monkeypatch.setattr(validate, "_validators", {})
    monkeypatch.delitem(sys.modules, "rdma_cni_schema", raising=False)
    if request.param == "bundle":
        schema.write(str(tmp_path / "rdma_cni_schema.py"))
        monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("as_in")
@pytest.mark.parametrize("keys", ACCEPTED)
def test_what_the_model_accepts_has_the_same_attributes_in_the_bundle(keys: dict[str, Any]) -> None:
    conf = BASE | keys
    record = validate.check("NETCONF", conf)

    def plain(value: object) -> object:
        if isinstance(value, validate.Record):
            return {name: plain(entry) for name, entry in vars(value).items()}
        return [plain(entry) for entry in value] if isinstance(value, list) else value

    assert plain(record) == NetConf.model_validate(conf).model_dump()
    # Without pydantic's core: it is not loaded for what is right.
    assert plain(validate.accept(portable(NetConf), conf)) == plain(record)


@pytest.mark.usefixtures("as_in")
@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_what_the_model_refuses_is_refused_in_the_bundle_with_the_fields_name(
    keys: dict[str, Any], message: str
) -> None:
    conf = BASE | keys
    with pytest.raises(ValidationError):
        NetConf.model_validate(conf)
    with pytest.raises(validate.NotPlainError):
        validate.accept(portable(NetConf), conf)
    with pytest.raises(CniError) as caught:
        validate.check("NETCONF", conf)
    assert caught.value.code == 7
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_a_lenient_check_leaves_out_what_is_wrong_and_tells(keys: dict[str, Any], message: str) -> None:
    problems: list[str] = []
    record = validate.check_leniently("NETCONF", BASE | keys | {"mac": "02:00:00:00:00:02"} | keys, problems)
    assert problems[0].startswith(message)
    assert getattr(record, next(iter(keys))) is None
    assert vars(record)["name"] == "rail0"


def test_the_bundles_schemas_import_nothing_but_plain_checks(tmp_path: Path) -> None:
    path = tmp_path / "written.py"
    schema.write(str(path))
    written = runpy.run_path(str(path))
    assert set(schema.MODELS) <= set(written)
    imports = [line for line in path.read_text().splitlines() if line.startswith("import ")]
    assert imports == ["import ipam.checks", "import rdma_cni.cni.checks", "import rdma_cni.cni.validate"]


# Values that are of the field's type or near it, and every other kind of JSON value.
_NEAR = st.sampled_from(
    [
        "0000:03:00.2",
        "mlx5_core.sf.4",
        "02:00:00:00:00:01",
        "10.0.0.1/24",
        "2001:db8::1",
        "fe80::1/64",
        "debug",
        "routed",
        "/run/x",
        "rail0",
        "\ud800",
        "h\u00f6st",
        "",
        0,
        1,
        68,
        65535,
        65536,
        2**32,
        -1,
        9000.0,
        True,
        False,
        None,
    ]
)
_JSON = st.recursive(
    _NEAR | st.text(max_size=5) | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _of(node: Any) -> st.SearchStrategy[Any]:
    """Values that a core schema may accept, and now and then another."""
    if node["type"] in ("default", "nullable", "function-after"):
        return _of(node["schema"])
    if node["type"] == "model":
        fields = {name: _of(field["schema"]) for name, field in node["schema"]["fields"].items()}
        return st.fixed_dictionaries({}, optional=fields | {"unknown": _NEAR}) | _JSON
    if node["type"] == "list":
        return st.lists(_of(node["items_schema"]), max_size=3) | _JSON
    if node["type"] == "dict":
        return st.dictionaries(_NEAR.filter(lambda key: isinstance(key, str)), _of(node["values_schema"]), max_size=3)
    return _NEAR | _JSON


@settings(derandomize=True, deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
@given(data=st.data(), name=st.sampled_from(sorted(schema.MODELS)))
def test_what_is_accepted_without_the_core_the_core_accepts_with_the_same_values(data: Any, name: str) -> None:
    written = portable(schema.MODELS[name])
    value = data.draw(_of(written))
    if isinstance(value, dict) and name == "NETCONF":
        value = BASE | value
    try:
        found = validate.accept(written, value)
    except validate.NotPlainError:
        return
    core = pydantic_core.SchemaValidator(written).validate_python(value)

    def plain(entry: object) -> object:
        if isinstance(entry, validate.Record):
            return {key: plain(inner) for key, inner in vars(entry).items()}
        if isinstance(entry, list):
            return [plain(inner) for inner in entry]
        return (type(entry), {key: plain(inner) for key, inner in entry.items()} if isinstance(entry, dict) else entry)

    assert plain(found) == plain(core)
