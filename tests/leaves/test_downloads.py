"""Downloads over TLS from a server of this machine, whose certificate the tests trust."""

import http.server
import shutil
import ssl
import subprocess
import threading
import time

import pytest

from bertscore_tm import BERTScore
from bertscore_tm.utilities import downloads
from bertscore_tm.utilities.downloads import download
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")

TABLE = b"LAYER,P,R,F\n" + b"".join(b"%d,0.25,0.25,0.25\n" % layer for layer in range(7))


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path."""

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path.startswith("/to-"):
            self.send_response(302)
            self.send_header("Location", self.server.targets[self.path])
            self.end_headers()
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path == "/silent":
            self.server.stopped.wait(60)
            return
        self.send_response(200)
        self.end_headers()
        if self.path == "/drip":
            while not self.server.stopped.wait(0.05):
                self.wfile.write(b"x")
        else:
            self.wfile.write({"/table.csv": TABLE, "/large": b"x" * (2**20 + 1), "/most": b"x" * 2**20}[self.path])

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    names = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, *subject]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def server(certificate, monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    monkeypatch.setattr(downloads, "_SECONDS", 2.0)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads, server.asked, server.stopped = True, [], threading.Event()
        server.url = f"https://127.0.0.1:{server.server_address[1]}"
        server.targets = {
            "/to-table": f"{server.url}/table.csv",
            "/to-file": "file:///etc/hostname",
            "/to-http": f"http://127.0.0.1:{server.server_address[1]}/table.csv",
        }
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.stopped.set()
        server.shutdown()


@pytest.mark.parametrize(("path", "content"), [("/table.csv", TABLE), ("/to-table", TABLE), ("/most", b"x" * 2**20)])
def test_a_small_file(server, path, content):
    assert download(server.url + path) == content


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/large", "the file is larger than 1048576 bytes"),
        ("/missing", "404"),
        ("/silent", "timed out"),
        ("/drip", "timed out"),
        ("/to-file", "file"),
        ("/to-http", "unknown url type: http"),
    ],
)
def test_what_is_refused(server, path, message):
    started = time.monotonic()
    with pytest.raises(OSError, match=rf"could not download {server.url}{path}: .*{message}"):
        download(server.url + path)
    assert time.monotonic() - started < 30
    assert set(server.asked) == {path}


@pytest.mark.parametrize("url", ["file:///etc/hostname", "http://127.0.0.1/a", "ftp://127.0.0.1/a", "/etc/hostname"])
def test_other_schemes(url):
    with pytest.raises(ValueError, match="a URL must start with https://, got "):
        download(url)


def test_a_server_that_nobody_vouches_for(server, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(OSError, match="certificate verify failed"):
        download(f"{server.url}/table.csv")


def test_ten_seconds():
    assert downloads._SECONDS == 10


def make_metrics(rank, model, url, folder):
    """Make two metrics on each rank, and download a second file on the last rank alone."""
    import os

    os.environ["SSL_CERT_FILE"] = f"{folder}/cert.pem"
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        os.environ.pop(name, None)
    for _ in range(2):
        metric = BERTScore(model, 1, rescale_with_baseline=True, baseline_url=f"{url}/table.csv")
    alone = len(download(f"{url}/most")) if rank == 1 else 0
    try:
        download(f"{url}/missing")
    except OSError as error:
        return str(metric._baseline), alone, str(error)


@pytest.mark.distributed
def test_one_rank_downloads(server, certificate, minilm):
    first, second = run_ranks(make_metrics, 2, minilm, server.url, str(certificate))
    assert sorted(server.asked) == ["/missing", "/most", "/table.csv"]
    assert first[0] == second[0]
    assert first[0].startswith("table.csv#")
    assert (first[1], second[1]) == (0, 2**20)
    assert "404" in first[2]
    assert first[2] == second[2]
