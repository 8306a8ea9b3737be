"""The viewer in a browser: its list, a filter, a link to a response, and texts that run nothing and reach nothing.

It needs an installed Chromium.
"""

import functools
import http.server
import threading

import pytest
from click.testing import CliRunner

from tasks.commands.view import view
from tasks.view import environment
from tests.browser import chromium
from tests.view.synthetic import write_run, write_training


@pytest.fixture
def address(tmp_path):
    """A file server with a bundle."""
    if not environment.is_made(environment.environment_folder()):
        pytest.skip("the viewer's environment is not made: rlvr view makes it")
    run = write_run(tmp_path / "results", write_training(tmp_path / "rollouts"))
    done = CliRunner().invoke(view, [str(run), "--bundle", str(tmp_path / "bundle")], catch_exceptions=False)
    assert done.exit_code == 0
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "bundle"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.long
def test_responses_are_listed_filtered_linked_and_inert(address):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        asked, ran = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: (ran.append(dialog.message), dialog.dismiss()))
        page.on("pageerror", lambda error: ran.append(str(error)))

        page.goto(f"{address}#/tasks")
        page.get_by_text("15 items").wait_for()
        page.get_by_text("step 00003 trained").first.wait_for()

        page.goto(f"{address}#/logs/evaluation/heldout-after.eval")
        page.get_by_text("8 Samples").wait_for()
        page.locator(".cm-content").first.click()
        page.keyboard.type("score > 0.5")
        page.get_by_text("4 / 8 Samples").wait_for()

        page.goto(f"{address}#/logs/evaluation/heldout-after.eval/samples/sample/p3/1/messages")
        page.get_by_text("<script>alert(1)</script>").first.wait_for()
        for tab in ("Scoring", "Info", "JSON"):
            page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(500)
        assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
        assert ran == []
