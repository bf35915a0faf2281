"""Whole detectors, with non-maximum suppression, and segmentors in one ONNX file (mmdeploy)."""

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from torch import nn

from mmkcr.core import atomic_write
from mmkcr.deploy.export import OPSET, find_padding_shape
from mmkcr.deploy.latency import PairTiming, measure_pair
from mmkcr.deploy.prepare import prepare
from mmkcr.lazy import is_of
from mmkcr.models.tasks import is_dense_task, is_detector

#: Dynamic axes of images and of class maps.
_IMAGE_AXES = {0: 'batch', 2: 'height', 3: 'width'}


def export_end_to_end(config: Config, model: nn.Module, path: str | Path,
                      shape: Sequence[int], repeats: int = 20, evaluate: bool = False,
                      threads: int = 1, against: str | Path | None = None) -> tuple[
                          PairTiming, dict[str, tuple[float, float]]]:
    """Write a whole detector or segmentor as an ONNX file and time it in ONNX Runtime.

    Batch, height and width are dynamic; a detector has the thresholds of its ``test_cfg``. Outputs
    of a detector are ``dets`` (boxes and scores), ``labels`` and, with a mask head, ``masks`` of
    the boxes; of a segmentor ``labels``, the class of every pixel, shape (B, 1, H, W).

    Args:
        config (Config): Config of the model, with its test set if it is to be evaluated.
        model (nn.Module): The model with its weights, on the CPU; it is not changed.
        path (str | Path): Output file.
        shape (Sequence[int]): (C, H, W) of the image that is timed.
        repeats (int): Timed pairs. Defaults to 20.
        evaluate (bool): Compare metrics on the test set. Defaults to False.
        threads (int): Threads of the timing. Defaults to 1.
        against (str | Path, optional): File of another network, as the dense one, that this
            function wrote: both are timed in turns. Defaults to None.

    Returns:
        tuple: Times of ``against``, or of this file again, and of this one, in turns, an image
        each; metrics on the test set of PyTorch and of the file, empty if not requested.

    Raises:
        FileNotFoundError: There is no file at ``against``.
        ImportError: mmdeploy is not installed.
        ValueError: The model is no detector of mmdet or segmentor of mmseg, or a segmentor that is
            tested on parts of an image.
    """
    _check_model(model)
    if against is not None and not Path(against).is_file():
        raise FileNotFoundError(f'expected an ONNX file at `{against}`, found none')
    try:
        from mmdeploy.apis import build_task_processor
    except ImportError as error:
        raise ImportError(
            'expected `mmdeploy` for whole detectors and segmentors, found none: pip install '
            'onedl-mmdeploy (from its source where it has no wheel)') from error
    with tempfile.TemporaryDirectory() as work_dir, atomic_write(path) as target:
        config = copy.deepcopy(config)
        config.work_dir = work_dir
        deploy = _deploy_config(model, list(_name_outputs(model)))
        task = build_task_processor(config, deploy, 'cpu')
        file = _write_whole(model, task, deploy, Path(work_dir) / 'end2end', shape)
        # in turns with itself where there is no other
        timing = measure_pair(against or file, file, torch.randn(1, *shape), repeats, 3,
                              'onnxruntime', threads)
        metrics = _compare_metrics(model, task, file, work_dir) if evaluate else {}
        target.write_bytes(file.read_bytes())
    return timing, metrics


def _check_model(model: nn.Module) -> None:
    """Refuse a model that is no detector, nor a segmentor tested on whole images."""
    if not is_dense_task(model):
        raise ValueError('expected a detector of mmdet or segmentor of mmseg, found '
                         f'`{type(model).__name__}`: others are exported whole without '
                         '`--end-to-end`')
    if not is_detector(model) and model.test_cfg.get('mode', 'whole') != 'whole':
        raise ValueError('expected a segmentor tested on whole images, found `test_cfg.mode` '
                         f'{model.test_cfg.mode!r}: --cfg-options model.test_cfg.mode=whole')


def _name_outputs(model: nn.Module) -> dict[str, dict[int, str]]:
    """Names of a file's outputs, each with the names of its dynamic axes by their index."""
    if not is_detector(model):
        return dict(labels=_IMAGE_AXES)
    masks = getattr(getattr(model, 'roi_head', None), 'mask_head', None) is not None
    return dict.fromkeys(('dets', 'labels', *['masks'] * masks), {0: 'batch', 1: 'count'})


def _write_whole(model: nn.Module, task: Any, deploy: Config, path: Path,
                 shape: Sequence[int]) -> Path:
    """Write a whole model as an ONNX file by mmdeploy; returns its path, with the suffix.

    Args:
        model (nn.Module): The model; a copy is prepared and traced.
        task (BaseTask): mmdeploy's processor of its task.
        deploy (Config): Deployment config of mmdeploy.
        path (Path): Output file without suffix.
        shape (Sequence[int]): (C, H, W) of usual images; the traced one is larger.
    """
    from mmdeploy.apis.onnx import export
    # mmdeploy calls the task model itself, not its view as a function of tensors
    prepared = prepare(model, 'onnxruntime', True).model
    if is_of(getattr(prepared, 'rpn_head', None), 'mmdet.models.dense_heads.RPNHead'):
        _propose_by_level(prepared.rpn_head)
    # at a size at which every map is padded: operations missing in a trace are missing for good
    images = torch.randn(1, *find_padding_shape(prepared, shape))
    outputs = _name_outputs(model)
    export(prepared, images, path.as_posix(), 'onnxruntime', dict(
        data_samples=_samples(task, prepared, *images.shape[2:]), mode='predict'),
        dict(deploy_cfg=deploy), ['input'], list(outputs), OPSET,
        dict(outputs, input=_IMAGE_AXES), keep_initializers_as_inputs=False)
    return path.with_suffix('.onnx')


def _compare_metrics(model: nn.Module, task: Any, file: Path,
                     work_dir: str) -> dict[str, tuple[float, float]]:
    """Metrics on the test set, of the model in PyTorch and of its file."""
    backend = task.build_backend_model(
        [str(file)], data_preprocessor_updater=task.update_data_preprocessor)
    in_torch, by_file = (task.build_test_runner(tested, work_dir).test()
                         for tested in (model, backend))
    return {name: (value, by_file[name]) for name, value in in_torch.items()}


def _propose_by_level(head: nn.Module) -> None:
    """Suppress proposals within their level of the pyramid, as mmdet does.

    mmdeploy suppresses them across levels, and drops proposals below the threshold of the second
    stage: the file would have other boxes than PyTorch. The ``RPNHead`` is changed in place.
    """
    from mmdeploy.mmcv.ops import multiclass_nms

    def predict_by_feat(cls_scores: Sequence[torch.Tensor], *args: Any, cfg: Any = None,
                        with_nms: bool = True, **kwargs: Any) -> Any:
        """Proposals, as ``RPNHead`` calls this method.

        ``cls_scores`` (B, A, H, W) are by level; ``cfg`` is the test config, None for the head's;
        ``with_nms`` is always on here.
        """
        cfg = head.test_cfg if cfg is None else cfg
        # (B, N, 4) and (B, N, 1): at most `nms_pre` of each level, level after level
        boxes, scores = type(head).predict_by_feat(  # mmdeploy's, while it exports
            head, cls_scores, *args, cfg=cfg, with_nms=False, **kwargs)
        most = cfg.get('nms_pre', 0)
        levels = torch.cat([
            torch.full_like(level_scores[0].flatten(), level)[:most if most > 0 else None]
            for level, level_scores in enumerate(cls_scores)])
        # each level is a class of its own, with scores of 0, which are never kept, for the others
        scores = scores * (levels[:, None] == torch.arange(len(cls_scores))).to(scores)
        return multiclass_nms(boxes, scores, cfg.max_per_img if most <= 0 else most,
                              iou_threshold=cfg.nms['iou_threshold'], score_threshold=0.,
                              keep_top_k=cfg.max_per_img)

    head.predict_by_feat = predict_by_feat


def _samples(task: Any, model: nn.Module, height: int, width: int) -> list[Any]:
    """The data sample of a traced image."""
    if is_detector(model):
        data, _ = task.create_input(np.zeros((height, width, 3), np.uint8), None,
                                    data_preprocessor=model.data_preprocessor)
        samples = data['data_samples']
    else:
        from mmseg.structures import SegDataSample
        samples = [SegDataSample()]
    for sample in samples:
        sample.set_metainfo(dict.fromkeys(
            ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape'), (height, width)))
    return samples


def _deploy_config(model: nn.Module, outputs: Sequence[str]) -> Config:
    """The deployment config for mmdeploy, whose export adds how it is called."""
    codebase = dict(type='mmseg', task='Segmentation', model_type='end2end', with_argmax=True)
    if is_detector(model):
        # two-stage detectors keep thresholds of the second stage below `rcnn`
        test = model.test_cfg.get('rcnn', model.test_cfg)
        most = int(test.get('max_per_img', 100))
        codebase = dict(
            type='mmdet', task='ObjectDetection', model_type='end2end', post_processing=dict(
                score_threshold=test.get('score_thr', 0.05), confidence_threshold=0.005,
                iou_threshold=test.get('nms', {}).get('iou_threshold', 0.5),
                max_output_boxes_per_class=max(200, most), pre_top_k=5000, keep_top_k=most,
                background_label_id=-1, export_postprocess_mask=False))
    names = dict(input_names=['input'], output_names=list(outputs), input_shape=None)
    return Config(dict(ir_config=dict(type='onnx', **names), codebase_config=codebase,
                       backend_config=dict(type='onnxruntime')))
