"""Runs the Python of docs/guide.md and docs/errors.md as it stands there: pages.py HOST:PORT

The address of the pages gives way to that of the broker. The topics that the guide has made by then are made here.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

import grpc

from duewheel.v1 import admin_pb2, admin_pb2_grpc

DOCS = Path(__file__).resolve().parents[2] / "docs"
ADDRESS = "127.0.0.1:7383"


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def run(code, name, scope):
    """What the code prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), scope)
    return printed.getvalue()


def main(address):
    with grpc.insecure_channel(address) as channel:
        admin_pb2_grpc.AdminServiceStub(channel).CreateTopic(admin_pb2.CreateTopicRequest(name="bank-a"), timeout=30)
    (guide,) = blocks("guide.md")
    assert ADDRESS in guide
    scope = {"__name__": "guide"}
    printed = run(guide.replace(ADDRESS, address), "guide.md", scope)
    steps = ["is due at", "A-2001 attempt 1 of 8", "nacked", "A-2001 attempt 2 of 8", "acked"]
    assert re.search(".*".join(steps), printed, re.DOTALL), printed
    print("ok guide.md")

    (errors,) = blocks("errors.md")
    printed = run(errors, "errors.md", scope)
    assert "NOT_FOUND TOPIC_NOT_FOUND not_done" in printed, printed
    print("ok errors.md")


if __name__ == "__main__":
    main(sys.argv[1])
