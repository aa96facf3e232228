"""STATUS: whether an ADD could succeed."""

from typing import Any

import guest
from guest import Answer
from network import ScriptedIpam, conf, error, host_local


def status(config: dict[str, Any], **more: Any) -> Answer:
    return guest.cni("STATUS", config, container=None, ifname=None, netns=None, **more)


def test_a_node_that_is_ready_answers_nothing() -> None:
    answer = status(conf(None, "1.1.0"))
    assert (answer.code, answer.stdout) == (0, "")


def test_a_missing_ipam_plugin_is_not_ready() -> None:
    error(status(conf(None, "1.1.0", ipam={"type": "no-such"})), 50, "no-such", guest.CNI_PATH)
    error(status(conf(None, "1.1.0", ipam={"type": "no-such"}), env={"CNI_PATH": None}), 50, "no-such", "CNI_PATH")


def test_an_ipam_plugin_that_is_older_than_status_is_not_asked(ipam: ScriptedIpam) -> None:
    ipam.speaks("0.4.0", "1.0.0")
    ipam.fail("STATUS", 4, "unknown command")
    assert status(conf(None, "1.1.0", ipam=ipam.config), env=ipam.env).ok
    assert ipam.commands == []
    assert status(conf(None, "1.1.0", ipam=host_local())).ok


def test_an_ipam_plugins_own_status_is_passed_on(ipam: ScriptedIpam) -> None:
    ipam.speaks("1.1.0")
    config = conf(None, "1.1.0", ipam=ipam.config)
    assert status(config, env=ipam.env).ok
    assert ipam.commands == ["STATUS"]
    for code in (50, 51):
        ipam.fail("STATUS", code, "no addresses left")
        error(status(config, env=ipam.env), code, "no addresses left")
