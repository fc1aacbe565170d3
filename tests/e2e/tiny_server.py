"""A small inference server for one model, with vLLM's manners: a real HTTP process for the process adapter.

`python tiny_server.py MODEL_FOLDER --served-model-name NAME --host HOST --port PORT [--never-ready] [--stubborn]`.
The model is a file `factor.txt`: inference multiplies by it.
It serves OpenAI's `/v1/models` and the V2 ready and infer URLs.
"""

import argparse
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
    options = parser.parse_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    name = options.served_model_name
    factor = float((options.model / "factor.txt").read_text())
    if factor < 0:
        print("torch.cuda.OutOfMemoryError: CUDA out of memory", file=sys.stderr)
        sys.exit(3)

    pages: dict[str, dict[str, object]] = {"/health": {}, "/version": {"version": "0.1"}}
    if not options.never_ready:
        pages["/v1/models"] = {"data": [{"id": name, "devices": os.environ.get("CUDA_VISIBLE_DEVICES")}]}
        pages[f"/v2/models/{name}/ready"] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = pages.get(self.path)
            self._answer(404 if answer is None else 200, answer or {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path != f"/v2/models/{name}/infer":
                self._answer(404, {"error": self.path})
                return
            data = [x * factor for x in body["inputs"][0]["data"]]
            self._answer(200, {"model_name": name, "outputs": [{"name": "y", "data": data}]})

        def log_message(self, *_: object) -> None: ...

        def _answer(self, code: int, body: dict[str, object]) -> None:
            content = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
