"""Every command times every wrong input: one sentence, a status that is not 0, nothing written.

A row is a call that would run; one word of it after the other is replaced by wrong ones, by the
kind of file that it names, and the wrong values of options that the command offers are added. A
command without a row fails.
"""

import contextlib
import re
import resource
import signal
from pathlib import Path

import pytest
import torch

from long_form import LONG
from mmkcr.cli.command import Parser
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config

REPO = Path(__file__).parents[2]
SEGMENTOR = REPO / 'configs/kcr/segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py'
HEADS = REPO / 'configs/dwconv/digits/dwconv-dense_vit-octo_1xb64_digits.py'
SECONDS = 20  # of computing, whatever else the machine does
#: Calls by command, | between two; words in braces are files that are there, or places to write.
ROWS = {
    'analysis_tools/attention': '{dense} {weights} --out {out}',
    'analysis_tools/bimask_search': '{search} --structure {structure} --out {out} | '
                                    '{search} {gates} --out {out}',
    'analysis_tools/channel_masks': '{search} {gates} --out {out} | --structure {structure} '
                                    '--out {out}',
    'analysis_tools/get_flops': '{dense}',
    'analysis_tools/grad_cam': '{dense} {weights} --out {out}',
    'analysis_tools/information_bottleneck': '--run one {dense} {weights} --out {out}',
    'analysis_tools/kernel_complexity': '{dense} {weights} --out {out}',
    'analysis_tools/score_heads': '{heads} --out {out} | {heads} {weights} --out {out}',
    'benchmarks/latency': '{dense} {dense} --out {out}',
    'benchmarks/latency_table': '{dense} --out {file}',
    'benchmarks/real_network': '{images} {images} --out {out}',
    'benchmarks/real_truth': '{images} {images} --out {out}',
    'benchmarks/test_step': '{dense} {weights} --slim {dense} {weights} --out {file}',
    'compress': '{dense} {weights} --target-macs 60% --out {out}',
    'cross_validate': '{dense} --grid randomness.seed=0,1 --work-dir {out}',
    'dataset_converters/digits': '--out {out}',
    'distil': '{dense} {weights} {out} 2',
    'frontier': '{dense} {weights} --out {out}',
    'dataset_converters/digits_vqa': '--out {out}',
    'dataset_converters/vqa_answers': '{annotations} --out {file}',
    'dataset_converters/photographs': '--packages {images} --out {out}',
    'demo/before_after': '--dense {segmentor} {segments} --slim {segmentor} {segments} --images '
                         '{image} --out {out}',
    'deployment/export_onnx': '{dense} {weights} --out {file}',
    'analysis_tools/sensitivity': '{out}',
    'model_zoo/badges': '--out {out}',
    'model_zoo/release': '{out} --out {out}',
    'model_zoo/structures': '--only vit-small --out {out}',
    'init': '{dense} --out {file}',
    'model_converters/efficientvit_timm': '{weights} {file}',
    'model_converters/flava': '{flava} {file}',
    'model_converters/foundation_vit': '{foundation} {file}',
    'model_converters/img_focus': '{image} {out}',
    'model_zoo/kind_coverage': '--check --path {document}',
    'model_zoo/model_counts': '',
    'model_zoo/result_figures': '--out {out}',
    'model_zoo/result_tables': '',
    'model_zoo/words': '',
    'model_zoo/paper_sizes': '',
    'model_zoo/readme_tables': '',
    'publish': '{dense} {weights} --out {out}',
    'quickstart': '--work-dir {out}',
    'search': '{search} --work-dir {out}',
    'slim': '{search} {gates} --out {out}',
    'test': '{dense} {weights} --work-dir {out}',
    'train': '{dense} --work-dir {out}',
    'zoo': '',
}
#: Kinds of the words in braces.
KINDS = dict(dense='config', heads='config', segmentor='config', search='config',
             segments='checkpoint', weights='checkpoint', gates='checkpoint',
             structure='structure', image='image', images='images',
             document='document', flava='checkpoint', foundation='checkpoint',
             annotations='structure', out='place', file='file')
#: Values that no command takes of an option of that name.
OPTIONS = {
    '--batch-size': ['0', '-1', 'x'], '--count': ['0'], '--device': ['nothing', 'cuda:99'],
    '--divisor': ['0', '-8'], '--folds': ['1'],
    '--images': ['0', '-1'], '--interval': ['0'],
    '--latency-table': ['no/such.json'], '--repeats': ['-1', '1.5'], '--seed': ['-1'],
    '--shape': ['0', '-3', '1 2 3', '1000000000', '70000 70000'],
    '--sites': ['nothing'], '--target-macs': ['abc', '0', '-5', '5%x', '0.8Q'],
    '--threads': ['0', '-1', '1000000000'], '--warmup': ['-1'], '--no-such-option': [''],
    '--cfg-options': ['novalue'], '--budgets': ['0', '2', 'nan'], '--calibration': ['no/such'],
    '--factor': ['0', 'nan'], '--fraction': ['0', '2', 'nan'],
    '--groups': ['0'], '--grid': ['0'], '--head': ['-1', '99'], '--image': ['0'],
    '--keep': ['0', '2', 'nan'], '--landmarks': ['0', '99999'], '--layer': ['99', 'nothing'],
    '--log': ['no/such.json'], '--metric': ['nothing'], '--pairs': ['-1'],
    '--profiles': ['no/such'],
    '--query': ['2 0', '-1 0', 'nan 0'], '--rank-ratio': ['0', '2', 'nan'],
    '--replace': ['-1', '99'], '--rho': ['-1', 'nan', 'inf'], '--rounds': ['0'],
    '--score-thr': ['-1', '2', 'nan'], '--shares': ['-1', '2', 'nan'], '--slim-options': ['x'],
    '--target-latency': ['abc', '0ms', '-1ms', '5'], '--targets': ['0', '2', 'nan'],
    '--tokens': ['0'], '--tolerance': ['-1', 'nan'], '--variants': ['nothing'],
    '--wait-time': ['-1', 'nan'], '--where': ['(', 'nothing'], '--widths': ['0']}
#: Known to be wrong after an evaluation alone: what was measured until then stays.
LATE = ('--metric', )
#: Calls that are wrong otherwise: what a run is asked for.
MORE = {
    'frontier': ['{dense} {weights} --out {out} --targets 60% 100%',
                 '{dense} {weights} --out {out} --targets 5G',
                 '{dense} {weights} --out {out} --sides 1.5',
                 '{dense} {weights} --out {out} --threads 0'],
    'train': ['{dense} --work-dir {out} --cfg-options train_cfg.max_epochs=0',
              '{alone} --work-dir {out}',
              '{dense} --work-dir {out} --resume no/such.pth',
              '{dense} --work-dir {out} --resume {list}',
              '{dense} --work-dir {out} --cfg-options load_from={others}',
              '{dense} --work-dir {out} --cfg-options load_from={nan}',
              '{dense} --work-dir {out} --cfg-options train_dataloader.batch_size=0',
              '{dense} --work-dir {out} --cfg-options train_dataloader.num_workers=-1'],
    'test': ['{dense} {weights} --out {out}', '{dense} {weights} --show-dir {weights}/below'],
    'init': ['{search}'],
    'compress': ['{dense} {weights} --target-macs 60% --scope model --out {out}'],
    'benchmarks/test_step': ['{dense} {weights} --slim {dense} --out {file}',
                             '{dense} {weights} --slim {dense} {weights} {weights} --out {file}',
                             '{dense} {weights} --slim {dense} {others} --out {file}',
                             '{dense} {weights} --slim {dense} {weights} --images 9999'],
    'model_zoo/model_counts': ['--check --only no-such-model'],
    'model_zoo/structures': ['--check --only no-such-structure'],
    'zoo': ['no-such-model'],
    'benchmarks/latency': ['{weights}', '{dense}', '{dense} {weights}', '{empty}'],
}
TOOLS = sorted(str(path.with_suffix('')) for path in
               (path.relative_to(REPO / 'tools') for path in (REPO / 'tools').rglob('*.py'))
               if not {'lab', 'trained'} & {*path.parts})


def test_every_command_has_a_row():
    assert TOOLS == sorted(ROWS)


@pytest.fixture(scope='session')
def files(tmp_path_factory, small_digits, search_config, dense_training, write_config, checkpoint):
    """Good files by the names in the rows."""
    folder = tmp_path_factory.mktemp('good')
    config = dense_training()
    for part, count in dict(train=1437, val=360).items():  # a few of every digit
        config[f'{part}_dataloader'].dataset.indices = list(range(0, count, 12))
    config.dump(folder / 'dense.py')
    model = build_model(config)
    state = model.state_dict()
    torch.save(dict(state_dict=state), folder / 'dense.pth')
    torch.save(dict(state_dict={k: v * float('nan') for k, v in state.items()}), folder / 'nan.pth')
    torch.save(dict(state_dict={f'x.{k}': v for k, v in state.items()}), folder / 'others.pth')
    torch.save([1, 2], folder / 'list.pth')
    (folder / 'empty.pth').touch()
    segmentor = load_config(SEGMENTOR)
    segmentor.model.backbone.init_cfg = None
    segmentor.dump(folder / 'segmentor.py')
    torch.save(dict(state_dict=build_model(segmentor).state_dict()), folder / 'segments.pth')
    heads = load_config(HEADS)
    for part in ('train', 'val', 'test'):
        heads[f'{part}_dataloader'].dataset.data_root = str(small_digits)
    heads.dump(folder / 'heads.py')
    Structure.load(dict(
        format_version=1, backbone=dict(type='mmkcr.KCRVisionTransformer', arch='deit-tiny'),
        sites={'layers.0.ffn.mlp_channels': dict(total=192, kept=[1, 2])})).save(
            folder / 'structure.json')
    (folder / 'annotations.json').write_text('{"annotations": [{"multiple_choice_answer": "a"}]}')
    torch.save({f'{name}.a': torch.zeros(1) for name in (
        'image_model', 'text_model', 'multimodal_model', 'image_to_mm_projection',
        'text_to_mm_projection')}, folder / 'flava.pth')
    torch.save({name: torch.zeros(1) for name in (
        'cls_token', 'pos_embed', 'patch_embed.proj.weight', 'blocks.0.attn.qkv.weight',
        'blocks.0.mlp.fc2.weight', 'norm.weight')}, folder / 'foundation.pth')
    (folder / 'page.md').write_text('<!-- table -->\n<!-- /table -->')
    return dict(
        segmentor=folder / 'segmentor.py', segments=folder / 'segments.pth',
        heads=folder / 'heads.py', dense=folder / 'dense.py', weights=folder / 'dense.pth',
        search=search_config, gates=checkpoint, structure=folder / 'structure.json',
        image=next(small_digits.rglob('*.png')),
        document=folder / 'page.md', data=small_digits, flava=folder / 'flava.pth',
        foundation=folder / 'foundation.pth', annotations=folder / 'annotations.json',
        list=folder / 'list.pth', nan=folder / 'nan.pth', others=folder / 'others.pth',
        empty=folder / 'empty.pth', images=small_digits,
        # its regulariser has no basis, and nothing computes one
        alone=write_config("custom_hooks = [dict(type='mmkcr.WarmupSwitchHook', begin=0)]"))


@pytest.fixture(scope='session')
def wrong(tmp_path_factory):
    """Wrong files by kind."""
    folder = tmp_path_factory.mktemp('wrong')

    def write(name, content=''):
        path = folder / name
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
        return path

    def save(name, content):
        torch.save(content, folder / name)
        return folder / name

    empty = folder / 'nothing'
    empty.mkdir()
    deep = '[' * 2000 + ']' * 2000
    texts = [write('list.json', '[1, 2]'), write('broken.json', '{"a": '), write('empty.json'),
             write('deep.json', f'{{"model": {deep}}}'), folder / 'no/such.json']
    yamls = [write('broken.yml', 'a: [1\nb: }'), write('list.yml', '- 1\n- 2'), write('empty.yml'),
             write('code.yml', 'a: !!python/object/apply:os.mkdir [trap]'),
             write('word.yml', 'word')]
    return dict(
        config=[*texts, *yamls, write('broken.py', 'model = dict('), write('word.txt', 'word'),
                write('raises.py', 'model = 1 / 0'), write('no_model.py', 'x = 1'), folder,
                write('word.py', 'model = "word"'), 'mmkcr::no/such.py', 'nothing::no/such.py',
                write('odd.py', 'model = dict(backbone=dict(type="Nothing"))'),
                write('base.py', '_base_ = "no/such.py"')],
        checkpoint=[write('empty.pth'), write('word.pth', 'word'), save('list.pth', [1, 2]),
                    save('none.pth', dict(state_dict={})), save('number.pth', dict(state_dict=3)),
                    folder, folder / 'no/such.pth', 'http://127.0.0.1:9/a.pth', 'nothing://a.pth',
                    save('words.pth', dict(state_dict=dict(a='b')))],
        structure=[*texts, folder],
        images=[texts[0], folder / 'no', empty],
        image=[write('empty.png'), write('word.png', 'word'), folder / 'no.png'],
        document=[write('empty.md'), folder, folder / 'no.md'],
        place=[texts[0], texts[0] / 'below', '/proc/nothing/below'],
        file=[folder, texts[0] / 'below.json', '/proc/nothing/below.json'])


class TooLongError(BaseException):
    """A call that was not refused at once."""


def interrupt(*_):
    raise TooLongError


def offered(main):
    """The options of a command, by their names."""
    found = {}

    def parse_args(parser, *_):
        found.update((max(action.option_strings, key=len), action)
                     for action in parser._actions if action.option_strings)
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(Parser, 'parse_args', parse_args)
        main([])
    return found


def good(words, files):
    """Words of a row with the files for those in braces."""
    return [re.sub(r'\{(\w+)\}', lambda m: str(files.get(m[1], m[1])), word) for word in words]


def wrong_words(tool, files, wrong):
    """What is wrong, and the call: a wrong file or folder in the place of a good one."""
    for row in (row.split() for row in ROWS[tool].split(' | ')):
        for place, word in enumerate(row):
            kind = KINDS.get(word.strip('{}'))
            values = wrong.get(kind, ()) if word not in row[:place] else ()
            for value in (*values, files['nan']) if kind == 'checkpoint' else values:
                yield (kind, value), [*good(row[:place], files), str(value),
                                      *good(row[place + 1:], files)]


def wrong_options(tool, files, options):
    """What is wrong, and the call: a value of an option, or too many words."""
    row = good(ROWS[tool].split(' | ')[0].split(), files)
    for option, values in OPTIONS.items():
        for value in values if option in options or option == '--no-such-option' else ():
            yield (option, value), [*row, option, *value.replace('%%', '%').split()]
    for option, action in options.items():
        if action.choices or action.type in (int, float):
            yield (option, 'nothing'), [*row, option, 'nothing']
    if '--device' in options and not torch.cuda.is_available():
        yield ('--device', 'cuda'), [*row, '--device', 'cuda']
    yield 'many', [*row, 'many', 'words', 'too', 'many']


@pytest.fixture(scope='session')
def calls(load_tool, files, wrong):
    """Wrong calls by command; each wrong thing is given to one of five commands that take it.

    In the long form to all of them.
    """
    taken, chosen = {}, {tool: [] for tool in TOOLS}
    for tool in TOOLS:
        for thing, words in (*wrong_words(tool, files, wrong),
                             *wrong_options(tool, files, offered(load_tool(tool).main))):
            taken.setdefault(thing, []).append((tool, words))
    for number, cases in enumerate(taken.values()):
        step = 1 if LONG else min(5, len(cases))
        for tool, words in cases[number % step::step]:  # not the same commands for all
            chosen[tool].append(words)
    for tool, more in MORE.items():
        chosen[tool] += [good(words.split(), files) for words in more]
    return chosen


@pytest.fixture
def complained(capsys, monkeypatch, tmp_path, forget_runs):
    """``complained(main, words)``: what is wrong with the way in which a call is refused, or None.

    In an empty folder.
    """
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGPROF, interrupt)

    def complained(main, words):
        forget_runs()
        capsys.readouterr()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            main(words)
            status = 0
        except SystemExit as ended:
            status = ended.code
        except TooLongError:
            return f'took more than {SECONDS} s'
        except BaseException as error:
            return f'{type(error).__name__}: {error}'
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        # beside what a call says while it works
        lines = [line for line in capsys.readouterr().err.splitlines()
                 if not line.startswith(('Downloading: ', 'Reading ', 'Calibration: '))]
        # the log of a run that did not start says why
        found = [path for path in tmp_path.rglob('*') if path.is_file() and not re.search(
            r'/\d{8}_\d{6}/', str(path))]
        for path in found:
            path.unlink()
        if not status:
            return 'exit status 0'
        if len(lines) != 1 or not lines[0].startswith('error: '):
            return f'more than a sentence: {lines}'
        return f'wrote {found}' if found else None

    yield complained
    signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize('tool', TOOLS)
def test_wrong_inputs(tool, load_tool, calls, complained):
    main, found = load_tool(tool).main, {}
    for words in calls[tool]:
        problem = complained(main, words)
        if problem and not (words[-2:-1] and words[-2] in LATE and problem.startswith('wrote ')):
            found[' '.join(words)] = problem[:400]
    assert not found


@pytest.mark.parametrize('tool', [name for name in TOOLS if '{out}' in ROWS[name]
                                  or '{file}' in ROWS[name]])
def test_full_disks(tool, load_tool, files, complained):
    """Not a byte can be written, as on a full disk."""
    words = good(ROWS[tool].split(' | ')[0].split(), files)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    main = load_tool(tool).main
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        problem = complained(main, words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert problem is None


@pytest.mark.parametrize('tool', TOOLS)
def test_trust_is_offered_wherever_checkpoints_are_read(tool, load_tool):
    reads = re.search(r'\{(weights|gates|segments|flava|foundation)\}', ROWS[tool]) or tool in (
        'train', 'search', 'benchmarks/latency', 'model_zoo/release')
    assert ('--trust-checkpoint' in offered(load_tool(tool).main)) == bool(reads)
