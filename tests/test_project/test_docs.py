"""README and docs: every command is taken by its tool, every file and link is there."""

import argparse
import ast
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from doc_commands import CASES, FENCE, INNER, PAGES, PLACEHOLDER, ROOT, TOOLS
from tool_files import load_tool

import mmkcr
from long_form import few
from mmkcr import registry
from mmkcr.apis.networks import is_named
from mmkcr.cli import console
from mmkcr.cli.command import COMMANDS
from mmkcr.engine.build import read_config

FILE = re.compile(r'(?<![\w./-])(?:tests|tools|mmkcr|configs|docs|requirements)/[\w./-]+'
                  r'\.(?:py|md|sh|yml|json|txt|png)\b')


class Parsed(BaseException):
    """The arguments were taken; nothing has run."""


def test_functions_that_the_walk_names_are_there():
    """Names between backticks in the page that follows the calls, files and keys left out."""
    source = '\n'.join(path.read_text() for path in (ROOT / 'mmkcr').rglob('*.py'))
    names = set(re.findall(r'`([a-zA-Z_]\w+)`', (ROOT / 'docs/architecture.md').read_text()))
    folders = {path.name for path in (ROOT / 'mmkcr').iterdir()}
    names -= {'mmkcr', 'loss_kcr', 'loss_price', *folders}
    assert len(names) > 20
    assert not [name for name in names if not re.search(rf'(def|class) {name}\b', source)]


def test_commands_were_found():
    assert len(CASES) > 120
    assert sum(line.startswith('mmkcr ') for line in CASES.values()) > 25
    with_example = {name.rpartition(':')[0] for name in CASES}
    assert not [path.name for path in TOOLS if str(path.relative_to(ROOT)) not in with_example]


@pytest.fixture
def parses(monkeypatch):
    """``parses(run, words)``: whether a command's parser takes the words."""
    parse_known_args = argparse.ArgumentParser.parse_known_args

    def stop(self, *args, **kwargs):
        parsed, rest = parse_known_args(self, *args, **kwargs)
        if rest:
            self.error(f'unrecognized arguments: {rest}')
        raise Parsed

    def parse(run, words):
        monkeypatch.setattr(argparse.ArgumentParser, 'parse_known_args', stop)
        monkeypatch.setattr(sys, 'argv', ['command', *words])
        with pytest.raises(Parsed):
            run()

    return parse


def split(line):
    """Words of a command, without variables before it, what follows `|` and optional parts."""
    line = INNER.sub('CONFIG CHECKPOINT', line)  # what `zoo --path` prints
    words = shlex.split(line.replace('...', ''), comments=True)
    while '=' in words[0]:
        words = words[1:]
    return words[:words.index('|')] if '|' in words else words


@pytest.mark.parametrize('case', CASES)
def test_command(parses, case):
    """The parser of the tool takes it; configs, scripts and hosts' configs that it names exist."""
    words = split(CASES[case])
    if words[0] == 'bash' and (ROOT / words[1]).with_suffix('.py').is_file():
        words[:2] = ['python', words[1].replace('.sh', '.py')]  # which it calls
    for word in words:
        if is_named(word):  # of timm, or a folder that `compress` wrote
            name = word.partition('::')[2]
            assert PLACEHOLDER.search(name) or name == 'slim' or timm.is_model(name)
        elif '::' in word and not PLACEHOLDER.search(word):
            assert read_config(word)
        for file in FILE.findall(word):
            assert PLACEHOLDER.search(file) or (ROOT / file).exists(), file
    if words[0] == 'make':
        assert re.search(rf'^{words[1]}:', (ROOT / 'Makefile').read_text(), re.MULTILINE)
    elif words[0] == 'pip' or words[:2] == ['python', '-m']:
        pinned = (ROOT / 'requirements/constraints.txt').read_text().split()
        assert not [word for word in words if '==' in word and word not in pinned]
    elif words[0] == 'mmkcr':
        if words[1].startswith('--'):
            assert words[1] in console.OPTIONS
        elif len(words) > 2:
            parses(lambda: console.main(words[1:]), words[1:])
        else:
            assert words[1] in COMMANDS
    elif words[0] == 'bash':
        script = Path(words[1]).name
        assert (ROOT / words[1]).is_file()
        own = dict(dist=2, slurm=4)[script.partition('_')[0]]  # arguments of the script
        tool = 'test' if 'test' in script else 'train'
        checkpoint = ['CHECKPOINT'] if tool == 'test' else []
        if script.startswith('dist'):
            config, rest = words[2], words[3 + len(checkpoint):]
            assert rest[0].isdigit()
            rest = rest[1:]
        else:
            config, rest = words[4], words[2 + own:]
        parses(lambda: load_tool(tool).main([config, *checkpoint, *rest]), [])
    else:
        name = words[1].removeprefix('tools/').removesuffix('.py')
        main = load_tool(name).main
        takes = inspect.signature(main).parameters
        parses(lambda: main(words[2:]) if takes else main(), words[2:])


def test_the_target_of_the_papers_goes_through_configs_and_checkpoints_that_fit(parses):
    """Parsers take its commands; a checkpoint is the last of the training that comes before."""
    shown = subprocess.run(['make', '--dry-run', 'quickstart-papers'], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.replace('\\\n', ' ')
    lines = re.findall(r'^\S+/mmkcr (.*)$', shown, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ['train', 'search', 'slim', 'train', 'test']
    trained = set()
    for words in map(str.split, lines):
        parses(lambda: console.main(words), words)  # noqa: B023
        config = read_config(ROOT / words[1])
        if words[0] in ('train', 'search'):
            trained.add(f'work_dirs/{Path(words[1]).stem}/epoch_{config.train_cfg.max_epochs}.pth')
        else:
            assert words[2] in trained


@pytest.mark.parametrize('path', TOOLS, ids=lambda path: str(path.relative_to(ROOT / 'tools')))
def test_help(path, monkeypatch, capsys):
    """Of every command: each option is explained with its default, and there is an example."""
    main = load_tool(str(path.relative_to(ROOT / 'tools').with_suffix(''))).main
    parsers = []
    print_help = argparse.ArgumentParser.print_help
    monkeypatch.setattr(argparse.ArgumentParser, 'print_help',
                        lambda self, file=None: (parsers.append(self), print_help(self, file)))
    monkeypatch.setattr(sys, 'argv', [str(path), '--help'])
    with pytest.raises(SystemExit):
        main()
    assert 'Example' in capsys.readouterr().out and len(parsers) == 1
    for action in parsers[0]._actions:
        assert action.help, action.dest
        if action.option_strings and action.nargs != 0 and not action.required:
            assert re.search(r'\(|\b[Dd]efault', action.help), action.option_strings


@pytest.mark.parametrize('path', few(TOOLS, ROOT / 'tools/benchmarks/real_truth.py',
                                     ROOT / 'tools/model_converters/efficientvit_timm.py'),
                         ids=lambda path: str(path.relative_to(ROOT / 'tools')))
def test_help_in_a_process_of_its_own(path):
    """Nothing has prepared the hosts before, as the other tests of this process have."""
    subprocess.run([sys.executable, path, '--help'], check=True, capture_output=True, cwd=ROOT)


def test_scripts_find_their_laboratory():
    """Also as `python tools/benchmarks/X.py`: the tests have tools/ on their path anyway."""
    below = [path for path in TOOLS if path.parent != ROOT / 'tools'
             and re.search(r'^from lab', path.read_text(), re.MULTILINE)]
    assert len(below) > 5
    assert not [path.name for path in below if 'sys.path.insert(0' not in path.read_text()]


# ---- Python -------------------------------------------------------------------------------------

BLOCKS = {f'{path.relative_to(ROOT)}:{number}': block for path in PAGES
          for number, (language, block) in enumerate(FENCE.findall(path.read_text()))
          if language == 'python'}


@pytest.mark.parametrize('case', BLOCKS)
def test_python(case):
    """Blocks compile; what they import of this package, and modules by name, are there."""
    source = re.sub(r'^(\s*)\.\.\.,?$', '', BLOCKS[case], flags=re.MULTILINE)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('mmkcr'):
            module = __import__(node.module, fromlist=['x'])
            assert all(hasattr(module, alias.name) for alias in node.names), node.module
    registries = [value for value in vars(registry).values()
                  if isinstance(value, registry.Registry)]
    for name in re.findall(r"type='mmkcr\.(\w+)'", source):
        assert any(found.get(f'mmkcr.{name}') for found in registries), name
    for name in re.findall(r"'(mm\w+::[^']+)'", source):
        assert read_config(name)


def block_with(page, text):
    """The Python block of a page that has some text."""
    found, = (block for case, block in BLOCKS.items() if case.startswith(page) and text in block)
    return found


@pytest.mark.parametrize('page', ['README.md', 'docs/your_model.md'])
def test_timm_block_runs(page, tmp_path, monkeypatch):
    """On a smaller model without its weights, on noise."""
    monkeypatch.chdir(tmp_path)
    block = block_with(page, 'pretrained=True')
    assert 'vit_small_patch16_224' in block
    smaller = "timm.create_model('test_vit', pretrained=False, img_size=224)"
    block = re.sub(r'timm\.create_model\(.*pretrained=True\)', smaller, block)
    images = torch.rand(10, 3, 224, 224)
    scope = dict(images=images)
    exec(block, scope)
    assert scope['result'].structure.macs['subnet'] <= 0.6 * scope['result'].structure.macs['dense']
    expected = scope['result'].model(images[:1])
    assert expected.shape == (1, 1000)
    if page == 'README.md':
        assert Path('structure.json').is_file()
        return
    torch.testing.assert_close(mmkcr.load('slim')(images[:1]), expected)
    exec(block_with(page, 'torch.export.load'), scope)
    torch.testing.assert_close(scope['outputs'][:1], expected, rtol=1e-4, atol=1e-4)


def test_transformers_block_runs(tmp_path, monkeypatch):
    """On a smaller model without its weights, on noise; it loads again as timm's does."""
    transformers = pytest.importorskip('transformers')
    import mmkcr
    monkeypatch.chdir(tmp_path)
    block = block_with('README.md', 'from transformers import')
    assert len([line for line in block.splitlines() if line]) == 5
    model = transformers.ViTForImageClassification
    monkeypatch.setattr(model, 'from_pretrained', lambda name: model(transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        num_labels=7)))
    images = torch.rand(10, 3, 224, 224)
    scope = dict(images=images)
    exec(block, scope)
    result = scope['result']
    assert result.structure.macs['subnet'] <= 0.6 * result.structure.macs['dense']
    assert type(result.model) is model
    again = mmkcr.load('slim')
    with torch.no_grad():
        assert torch.equal(again(images[:1]).logits, result.model(images[:1]).logits)


@pytest.mark.parametrize('kind', ['CLIP', 'Siglip'])
def test_block_of_a_vision_tower_runs(kind):
    """On a small LLaVA without weights; the last layer of its tower, which nothing reads, stays."""
    transformers = pytest.importorskip('transformers')
    torch.manual_seed(0)
    tower = getattr(transformers, f'{kind}VisionConfig')(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64,
        image_size=32, patch_size=8)
    text = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=64)
    vlm = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(
        vision_config=tower, text_config=text, image_token_index=63,
        vision_feature_select_strategy='default' if kind == 'CLIP' else 'full')).eval()
    images, words = torch.rand(12, 3, 32, 32), torch.tensor([[1, *[63] * 16, 2, 3]])
    scope = dict(vlm=vlm, images=images)
    with torch.no_grad():
        before = vlm(input_ids=words, pixel_values=images[:1]).logits
        exec(block_with('docs/your_model.md', 'vision_tower'), scope)
        after = vlm(input_ids=words, pixel_values=images[:1]).logits
    result = scope['result']
    assert vlm.model.vision_tower is result.model and after.shape == before.shape
    assert not torch.equal(after, before)
    macs, sites = result.structure.macs, result.structure.sites
    assert 0.55 * macs['dense'] < macs['subnet'] <= 0.6 * macs['dense']
    unread = result.structure.provenance['unread']
    assert unread == [name for name in sites if '.layers.3.' in f'.{name}' or 'head.mlp' in name]
    assert all(len(sites[name].kept) == sites[name].total for name in unread)
    assert str(result).count('no output depends on it') == len(unread)


def test_families_of_the_refusal_are_in_the_table():
    """They are named to whoever compresses a backbone without an adapter."""
    from mmkcr.closed_form.options import FAMILIES, HF_FAMILIES
    table = (ROOT / 'docs/coverage.md').read_text()
    for name in FAMILIES:
        row = rf'^\| (timm )?{name}[ (][^|]*\|.*✓'
        assert re.search(row, table, re.MULTILINE), name
    assert set(re.findall(r'^\| HF ([^ ]*).*✓', table, re.MULTILINE)) == {*HF_FAMILIES}


def test_slimming_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(block_with('docs/get_started.md', 'slim(supernet'), {})


def test_block_of_batch_norms_gives_the_mean_over_batches():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4),
                                torch.nn.Dropout(0.5), torch.nn.Conv2d(4, 2, 3)).eval()
    batches = torch.randn(3, 8, 3, 9, 9).unbind()
    exec(block_with('docs/refit.md', 'reset_running_stats'), dict(model=model, batches=batches))
    with torch.no_grad():
        expected = torch.stack([model[0](batch).mean((0, 2, 3)) for batch in batches]).mean(0)
    torch.testing.assert_close(model[1].running_mean, expected)
    assert not model.training and not model[1].training


def test_gate_block_is_a_gate():
    """The documented gate obeys the law: its supernet and the sliced network agree."""
    from mmkcr.apis import slim
    from mmkcr.methods.named import KCRVisionTransformer
    from mmkcr.models.tasks import search_space
    block = block_with('docs/add_method.md', 'class MyGate')
    block = block.replace('@MODELS.register_module()', '@MODELS.register_module(force=True)')
    exec(block, {})
    supernet = KCRVisionTransformer(
        arch=dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64), img_size=32,
        patch_size=8, gates=dict(type='mmkcr.MyGate')).double()
    supernet.eval()  # gives None
    for gate in search_space(supernet).gates().values():
        torch.nn.init.normal_(gate.alpha)
        assert gate.train().entropy().isfinite() and gate.expected_size().requires_grad
        gate.resample(torch.Generator())
        assert gate().shape == (32, ) and gate.eval()().sum() == len(gate.selection())
    subnet, _ = slim(supernet, input_shape=(3, 32, 32))
    image = torch.rand(1, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(subnet(image), supernet(image))


# ---- files and links ----------------------------------------------------------------------------


@pytest.mark.parametrize('page', PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    files = {file for file in FILE.findall(page.read_text()) if not PLACEHOLDER.search(file)}
    roots = (ROOT, page.parent)
    assert not [file for file in files if not any((root / file).exists() for root in roots)]


def test_each_tool_is_named_on_a_page():
    text = ''.join(page.read_text() for page in PAGES) + (ROOT / 'CONTRIBUTING.md').read_text()
    tools = [path for path in (ROOT / 'tools').rglob('*') if path.suffix in ('.py', '.sh')
             and not {'lab', 'trained'} & {*path.relative_to(ROOT).parts}]
    assert len(tools) > 30
    assert not [path.name for path in tools if not re.search(rf'\b{re.escape(path.name)}', text)]


def slug(heading):
    """The anchor of a heading, as Python-Markdown makes it."""
    text = re.sub(r'[`*]|\[([^\]]*)\]\([^)]*\)', r'\1', heading).lower()
    return re.sub(r'[-\s]+', '-', re.sub(r'[^\w\s-]', '', text)).strip('-')


@pytest.mark.parametrize('page', [*PAGES, ROOT / 'CHANGELOG.md'],
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_links(page):
    """Relative links, with their anchors, and pictures."""
    text = FENCE.sub('', page.read_text())
    for target in re.findall(r'\]\(([^)\s]+)\)', text):
        if '://' in target:
            continue
        name, _, anchor = target.partition('#')
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r'^#+ (.*)$', FENCE.sub('', file.read_text()), re.MULTILINE)
            assert anchor in map(slug, headings), target


def test_the_site_is_built_without_a_warning(tmp_path):
    """And names no host that pages would be fetched from, but for links of the text."""
    done = subprocess.run(
        [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--quiet', '--site-dir',
         str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
        env=dict(os.environ, NO_MKDOCS_2_WARNING='1'))
    assert done.returncode == 0 and 'WARNING' not in done.stderr, done.stderr[-2000:]
    assert (tmp_path / 'search/search_index.js').is_file()  # of pages that are opened from the disk
    pages = list(tmp_path.rglob('*.html'))
    assert len(pages) > len(list((ROOT / 'docs').rglob('*.md')))  # and a page of what is not found
    for page in pages:
        fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]+)"',
                             page.read_text())
        assert not fetched, page.name


@pytest.mark.parametrize('origin, address', [
    ('https://github.com/someone/mmkcr.git', 'https://github.com/someone/mmkcr'),
    ('https://name:secret@gitlab.com/group/sub/mmkcr', 'https://gitlab.com/group/sub/mmkcr'),
    ('git@github.com:someone/mmkcr.git', 'https://github.com/someone/mmkcr'),
    ('ssh://git@example.org/someone/mmkcr.git', 'https://example.org/someone/mmkcr'),
    ('/srv/mmkcr.git', ''), ('../mmkcr', ''), (None, '')])
def test_the_home_page_links_to_the_repository(tmp_path, origin, address):
    subprocess.run(['git', 'init', '--quiet'], cwd=tmp_path, check=True)
    if origin:
        subprocess.run(['git', 'remote', 'add', 'origin', origin], cwd=tmp_path, check=True)
    (tmp_path / 'docs').mkdir()
    page = SimpleNamespace(file=SimpleNamespace(src_uri='index.md'))
    spec = importlib.util.spec_from_file_location('hooks', ROOT / 'docs/hooks.py')
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    shown = hooks.on_page_markdown('# mmkcr\n', page, dict(docs_dir=str(tmp_path / 'docs')))
    assert re.findall(r'\]\((.*)\)', shown) == ([address] if address else [])


def test_api_page_has_the_public_names(tmp_path):
    text = (ROOT / 'docs/api.md').read_text()
    names = re.findall(r'^::: (\S+)$', text, re.MULTILINE)
    for name in names:
        module, _, attribute = name.rpartition('.')
        assert hasattr(__import__(module, fromlist=['x']), attribute), name
    import mmkcr.apis
    assert set(mmkcr.apis.__all__) <= {name.rpartition('.')[2] for name in names}
