"""What people are sent by a real Alertmanager with the shipped files: how many messages, and their texts."""

from __future__ import annotations

import re
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any

import msgspec
import pytest
import yaml

from tests.dashboards.alert_links import ALERTS
from tests.stack.alerts.alertmanager import (
    SHIPPED,
    Webhook,
    run_alertmanager,
    run_webhook,
    shipped_config,
    wait_until_sent,
)

pytestmark = pytest.mark.stack

NODES = [f"node{number}:9464" for number in range(1, 51)]
LATER = {"labels": {"alertname": "Later", "component": "other", "severity": "warning"}}


def _alert(name: str, **labels: str) -> dict[str, Any]:
    """An alert of ours as Prometheus sends it."""
    alert = ALERTS[name]
    own = {"alertname": name, **msgspec.structs.asdict(alert.labels), "job": "observatory"}
    return {
        "labels": {**own, **labels},
        "annotations": {
            "summary": f"{name} at {labels['instance']}",
            "description": "What it means.",
            "runbook": f"observatory runbook {name}",
            "dashboard_url": f"http://grafana/d/{alert.dashboard}",
        },
    }


def _sent(alerts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What people are sent of alerts that fire at one moment."""
    with run_webhook() as webhook, run_alertmanager(shipped_config(webhook.url)) as alertmanager:
        alertmanager.add_at_once(alerts)
        names = {alert["labels"]["alertname"] for alert in alerts}
        until = time.monotonic() + 120
        while not webhook.sent:
            assert time.monotonic() < until, f"nothing was sent of {names}"
            time.sleep(0.1)
        # A later alert of another group is sent only after what was waiting then.
        alertmanager.add_at_once([LATER])
        wait_until_sent(webhook, "/warnings", ["Later"])
        return [message for _, message in webhook.sent if message["commonLabels"]["alertname"] != "Later"]


@pytest.mark.parametrize(
    ("alert", "more"),
    [("HostClockNotKept", {}), ("NodeAgentGone", {}), ("InfinibandPortDown", {"device": "mlx5_0", "port": "1"})],
)
def test_fifty_nodes_with_one_cause_send_one_message(alert: str, more: dict[str, str]) -> None:
    (message,) = _sent([_alert(alert, instance=node, **more) for node in NODES])
    assert {one["labels"]["instance"] for one in message["alerts"]} == set(NODES)


def test_a_dead_switch_sends_one_message_and_no_echo_of_it() -> None:
    """Its nodes are watched no more, and what they said last of their ports and clocks still fires."""
    echoes = ("InfinibandPortDown", "InfinibandErrors", "HostClockNotKept")
    of_port = {"device": "mlx5_0", "port": "1", "kind": "symbol_error"}
    (message,) = _sent(
        [
            *(_alert("NodeAgentGone", instance=node) for node in NODES),
            *(_alert(name, instance=node, **of_port) for node in NODES for name in echoes),
        ]
    )
    assert message["commonLabels"]["alertname"] == "NodeAgentGone"
    assert len(message["alerts"]) == len(NODES)


def test_an_xid_of_a_gpu_that_is_lost_is_sent_to_nobody() -> None:
    of_gpu = {"instance": NODES[0], "gpu": "3"}
    (message,) = _sent([_alert("GpuXidOfNode", xid="79", **of_gpu), _alert("GpuLost", **of_gpu)])
    assert [one["labels"]["alertname"] for one in message["alerts"]] == ["GpuLost"]


def test_a_group_waits_for_longer_than_from_one_evaluation_of_the_rules_to_the_next() -> None:
    """So that what happens at once on many nodes, of which each evaluation sees some, is one message."""
    route = yaml.safe_load(SHIPPED.read_text())["route"]
    seconds = {"m": 60, "s": 1}
    for one in (route, *route["routes"]):
        assert int(one["group_wait"][:-1]) * seconds[one["group_wait"][-1]] > 60


# Mail and chat.


@contextmanager
def _mailbox() -> Iterator[tuple[int, list[EmailMessage]]]:
    """A mail server on a free loopback port; yields the port, and the mails that come."""
    mails: list[EmailMessage] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 mailbox")
            while line := self.rfile.readline():
                word = line.split()[0].upper()
                if word == b"DATA":
                    self._say("354 go on")
                    lines = iter(self.rfile.readline, b".\r\n")
                    mails.append(message_from_bytes(b"".join(lines), EmailMessage, policy=default))
                self._say("221 bye" if word == b"QUIT" else "250 fine")
                if word == b"QUIT":
                    return

        def _say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1], mails
        finally:
            server.shutdown()
            thread.join(60)


def _with_mail_and_chat(mail_port: int, chat: Webhook) -> dict[str, Any]:
    """The shipped configuration with its example of mail and chat, whose marks of comments are taken away."""
    text = re.sub(r"^    # (?=  |email_configs|slack_configs)", "    ", SHIPPED.read_text(), flags=re.MULTILINE)
    config = {**shipped_config(chat.url), "receivers": yaml.safe_load(text)["receivers"]}
    for receiver in config["receivers"]:
        del receiver["webhook_configs"]
    warnings = config["receivers"][0]
    warnings["email_configs"][0]["smarthost"] = f"127.0.0.1:{mail_port}"
    warnings["slack_configs"][0]["api_url"] = f"{chat.url}/chat"
    return config


def test_mail_and_chat_say_what_where_since_when_and_what_to_do() -> None:
    with (
        _mailbox() as (port, mails),
        run_webhook() as chat,
        run_alertmanager(_with_mail_and_chat(port, chat)) as alertmanager,
    ):
        alertmanager.add_at_once([_alert("HostClockNotKept", instance=node) for node in NODES])
        until = time.monotonic() + 120
        while not (mails and chat.sent):
            assert time.monotonic() < until, (mails, chat.sent)
            time.sleep(0.1)
    subject = "warning: 50 alerts HostClockNotKept, first: HostClockNotKept at node10:9464"
    assert mails[0]["Subject"] == subject
    body = mails[0].get_body(("plain",))
    assert body is not None
    (shown,) = chat.sent[0][1]["attachments"]
    assert (shown["title"], shown["title_link"]) == (subject, "http://grafana/d/one-host")
    for text in (body.get_content().replace("\r\n", "\n"), shown["text"]):
        first = text.split("\n\n")[0].splitlines()
        assert first[:2] == ["HostClockNotKept at node10:9464", "What it means."]
        assert re.fullmatch(r"Since \d{4}-\d\d-\d\d \d\d:\d\d UTC\.", first[2])
        assert first[3:] == ["Look: http://grafana/d/one-host", "What to do: observatory runbook HostClockNotKept"]
        assert {f"HostClockNotKept at {node}" for node in NODES} <= set(text.splitlines())
        assert text.count("What it means.") == 3
