"""An S3 server in a process of its own: moto, taking one request at a time.

    python -m tests.support.moto_process PORT

Left to its threads, moto looks for an object and stores another one in two steps, so two writers can win.
"""

import io
import logging
import sys
from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class OneAtATime:
    def __init__(self, application: "WSGIApplication") -> None:
        self._application = application
        self._lock = Lock()

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """What comes slowly, the body, comes before the turn."""
        if "CONTENT_LENGTH" in environ:
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0)))
        with self._lock:
            return list(self._application(environ, start_response))


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)
