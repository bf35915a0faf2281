"""``--pretrained`` against a hub of this machine, which speaks as the public one does."""

import hashlib
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from mmkcr.deploy.runtimes import open_onnx

timm = pytest.importorskip('timm')
pytest.importorskip('onnxruntime')


class Files(BaseHTTPRequestHandler):
    """Answers ``/OWNER/NAME/resolve/REVISION/FILE`` by the server's ``folder/OWNER/NAME/FILE``."""

    def do_HEAD(self):  # noqa: N802
        self.server.asked.append(self.path)
        name, _, rest = self.path.strip('/').partition('/resolve/')
        file = self.server.folder / name / rest.partition('/')[2]
        body = file.read_bytes() if file.is_file() else None
        self.send_response(404 if body is None else 200)
        if body is None:
            self.send_header('X-Error-Code', 'EntryNotFound')
        else:
            self.send_header('ETag', f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header('X-Repo-Commit', '0' * 40)
        self.send_header('Content-Length', str(len(body or b'')))
        self.end_headers()
        return body or b''

    def do_GET(self):  # noqa: N802
        self.wfile.write(self.do_HEAD())

    def log_message(self, *words):
        pass


@pytest.fixture
def hub(tmp_path):
    """``hub.folder`` of what it has, ``hub.asked`` for which paths, ``hub.run(words)``."""
    server = ThreadingHTTPServer(('127.0.0.1', 0), Files)
    server.folder, server.asked = tmp_path / 'hub', []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    # read when its client is imported: so each command is a process
    others = {name: value for name, value in os.environ.items()
              if not name.lower().endswith('_proxy')}
    environment = dict(others, HF_ENDPOINT=f'http://127.0.0.1:{server.server_port}',
                       HF_HOME=str(tmp_path / 'cache'), HF_HUB_OFFLINE='0')

    def run(words):
        return subprocess.run([sys.executable, '-m', 'mmkcr', *words.split()], cwd=tmp_path,
                              env=environment, capture_output=True, text=True, timeout=600)

    yield SimpleNamespace(folder=server.folder, asked=server.asked, run=run)
    server.shutdown()
    thread.join()
    server.server_close()


def timm_network(folder):
    model = timm.create_model('test_vit')
    (folder / 'timm/test_vit.r160_in1k').mkdir(parents=True)
    save_file(model.state_dict(), folder / 'timm/test_vit.r160_in1k/model.safetensors')
    return 'timm::test_vit.r160_in1k', model, (3, 160, 160)


def transformers_network(folder):
    transformers = pytest.importorskip('transformers')
    model = transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        image_size=32, patch_size=8, num_labels=4, initializer_range=0.3))
    model.save_pretrained(folder / 'own/vit')
    transformers.ViTImageProcessor(size=dict(height=32, width=32)).save_pretrained(
        folder / 'own/vit')
    return 'transformers::own/vit', model, (3, 32, 32)


@pytest.mark.parametrize('make', [timm_network, transformers_network])
def test_a_hub_is_asked_with_pretrained_alone_and_gives_the_weights(hub, make, tmp_path):
    torch.manual_seed(0)
    name, model, shape = make(hub.folder)
    refused = hub.run(f'export {name} --out file.onnx')
    assert refused.returncode == 1 and '`--pretrained`' in refused.stderr and not hub.asked
    done = hub.run(f'export {name} --pretrained --out file.onnx')
    assert done.returncode == 0, done.stderr
    assert any(path.endswith('/model.safetensors') for path in hub.asked)
    image = torch.randn(1, *shape)
    with torch.no_grad():
        expected = getattr(output := model.eval()(image), 'logits', output)
    found, = open_onnx(tmp_path / 'file.onnx')(image.numpy())
    assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)


def test_what_the_hub_has_not(hub):
    done = hub.run('export timm::test_vit2.r160_in1k --pretrained --out file.onnx')
    assert done.returncode == 1 and hub.asked
    error = done.stderr.strip().splitlines()[-1]
    assert error.startswith('error: expected to build and load `test_vit2.r160_in1k`, found')
