"""FLAVA (Singh et al., 2022) for questions about images, around a backbone that is searched.

The encoders come from Hugging Face's ``transformers``, with keys of their own below
``backbone.model``, ``text_encoder`` and ``multimodal_encoder``.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from mmengine.model import BaseModule
from mmpretrain.models import ImageClassifier
from torch import Tensor, nn
from torch.nn.functional import pad

from mmkcr.core.structure import read_json
from mmkcr.registry import MODELS


def hugging_face() -> Any:
    """The package ``transformers``; an ``ImportError`` says how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError('expected the package `transformers` for FLAVA (`pip install '
                          f'"transformers>=4.57,<5"`), found none ({error})') from error
    return transformers


def read_answers(answers: str | Sequence[str]) -> list[str]:
    """The answers that serve as classes, in their order: as given, or from a JSON file's list.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Something else than different texts.
    """
    if isinstance(answers, str):
        answers = read_json(Path(answers), 'a list of answers, made by `python '
                            'tools/dataset_converters/vqa_answers.py`, as a')
    if not answers or not isinstance(answers, (list, tuple)) or not all(
            isinstance(answer, str) for answer in answers) or len(set(answers)) < len(answers):
        raise ValueError(f'expected different answers as text, found {str(answers):.60}')
    return list(answers)


def _encoder(name: str, config: Mapping[str, Any], normed: bool = False) -> nn.Module:
    """One of FLAVA's three encoders, without a pooler and, unless ``normed``, a last norm."""
    package = hugging_face()
    cls = getattr(package, f'Flava{name}Config')
    unknown = sorted(set(config) - set(vars(cls())))
    if unknown:
        raise ValueError(f'expected arguments of `transformers.{cls.__name__}`, found '
                         f'`{unknown[0]}`')
    encoder = getattr(package, f'Flava{name}Model')(cls(**config), add_pooling_layer=False)
    if not normed:
        encoder.layernorm = nn.Identity()
    return encoder


@MODELS.register_module()
class FlavaImageEncoder(BaseModule):
    """FLAVA's image encoder as a backbone: gives all tokens (B, 1 + N, d), class token first.

    It omits the last norm, because FLAVA's multimodal encoder reads the tokens before that norm.

    Args:
        img_size (int): Height and width of an image in pixels. Defaults to 224.
        init_cfg (dict, optional): See ``BaseModule``.
        **config: Arguments of ``transformers.FlavaImageConfig``, such as ``hidden_size``. Defaults
            to the values of the public checkpoint, a ViT-B/16.
    """

    def __init__(self, img_size: int = 224, init_cfg: Mapping[str, Any] | None = None,
                 **config: Any) -> None:
        super().__init__(init_cfg)
        self.img_size = img_size
        self.model = _encoder('Image', {'mask_token': False, **config, 'image_size': img_size})
        self.embed_dims = self.model.config.hidden_size

    def forward(self, images: Tensor) -> Tensor:
        """Tokens (B, 1 + N, d) of images (B, 3, H, W)."""
        return self.model(images).last_hidden_state


@MODELS.register_module()
class FlavaVQA(ImageClassifier):
    """Answers questions about images by choosing one of a fixed list of answers.

    It computes as ``FlavaModel`` does. The tokens of image and question are projected to
    the width of the multimodal encoder, which reads them together with a class token. The head
    classifies this class token. Data samples have ``tokens`` (:class:`mmkcr.TokenizeQuestion`)
    and, for the loss, ``gt_label`` (:class:`mmkcr.LabelAnswer`). Budgets refer to the image
    encoder, ``backbone``, unless ``part='model'`` is given: the whole model is then counted with
    a question of one token.

    Args:
        backbone (dict | nn.Module): :class:`FlavaImageEncoder`, or another one with ``embed_dims``
            that gives tokens (B, N, d).
        head (dict): A classification head that reads (B, d), such as ``LinearClsHead``.
        answers (Sequence[str] | str): See :func:`read_answers`; a file is read by the first
            prediction.
        text, multimodal (dict, optional): Arguments of ``FlavaTextConfig`` and of
            ``FlavaMultimodalConfig`` of ``transformers``. Default to None: as published.
        data_preprocessor, init_cfg: See ``ImageClassifier``.
    """

    #: A budget is about the backbone unless it says otherwise, see ``part_to_count``.
    counts_backbone = True

    def __init__(self, backbone: Mapping[str, Any] | nn.Module, head: Mapping[str, Any],
                 answers: Sequence[str] | str, text: Mapping[str, Any] | None = None,
                 multimodal: Mapping[str, Any] | None = None,
                 data_preprocessor: Mapping[str, Any] | None = None, init_cfg: Any = None) -> None:
        super().__init__(backbone, head=head, data_preprocessor=data_preprocessor,
                         init_cfg=init_cfg)
        self._answers = answers
        if not isinstance(answers, str):
            _ = self.answers  # those of a file are checked once they are read
        self.text_encoder = _encoder('Text', text or {})
        self.multimodal_encoder = _encoder('Multimodal', multimodal or {}, normed=True)
        width = self.multimodal_encoder.config.hidden_size
        self.image_to_mm_projection = nn.Linear(self.backbone.embed_dims, width)
        self.text_to_mm_projection = nn.Linear(self.text_encoder.config.hidden_size, width)

    @cached_property
    def answers(self) -> list[str]:
        """The answers by class of the head; a ``ValueError`` if the head has another number."""
        texts = read_answers(self._answers)
        if self.head.num_classes != len(texts):
            raise ValueError(f'expected `num_classes` {len(texts)} of the head, the number of '
                             f'answers, found {self.head.num_classes}')
        return texts

    def extract_feat(self, inputs: Tensor, stage: str = 'neck',
                     data_samples: list | None = None) -> Tensor | tuple[Tensor]:
        """Features of images with their questions.

        Args:
            inputs (Tensor): Images, (B, 3, H, W).
            stage (str): ``'backbone'``: tokens of the images; ``'neck'``: the class tokens (B, d)
                in a tuple; ``'pre_logits'``: inputs of the last layer. Defaults to ``'neck'``.
            data_samples (list, optional): With ``tokens`` (T,), int64. Defaults to None: questions
                are one padding token.
        """
        seen = self.backbone(inputs)
        seen = seen[-1] if isinstance(seen, (tuple, list)) else seen
        if stage == 'backbone':
            return seen
        question = torch.zeros(len(inputs), 1, dtype=torch.int64, device=inputs.device) \
            if data_samples is None else torch.stack([one.tokens for one in data_samples])
        words = question != 0  # (B, T); 0 is the padding token
        read = self.text_encoder(question, attention_mask=words.long()).last_hidden_state
        both = torch.cat([self.image_to_mm_projection(seen), self.text_to_mm_projection(read)], 1)
        # the encoder puts its class token before the image tokens; the words come last, and only
        # they can be padding: the mask is True for all that precedes them
        others = both.shape[1] - words.shape[1] + self.multimodal_encoder.use_cls_token
        encoded = self.multimodal_encoder(
            both, attention_mask=pad(words, (others, 0), value=True).long()).last_hidden_state
        features = (encoded[:, 0], )
        return features if stage == 'neck' else self.head.pre_logits(features)

    def forward(self, inputs: Tensor, data_samples: list | None = None,
                mode: str = 'tensor') -> Any:
        """Like ``ImageClassifier``, but mode ``'tensor'`` reads the questions as well."""
        if mode == 'tensor':
            return self.head(self.extract_feat(inputs, data_samples=data_samples))
        return super().forward(inputs, data_samples, mode)

    def loss(self, inputs: Tensor, data_samples: list) -> dict[str, Tensor]:
        """The head's losses."""
        return self.head.loss(self.extract_feat(inputs, data_samples=data_samples), data_samples)

    def predict(self, inputs: Tensor, data_samples: list | None = None, **kwargs: Any) -> list:
        """The head's predictions, with ``pred_answer``."""
        features = self.extract_feat(inputs, data_samples=data_samples)
        samples = self.head.predict(features, data_samples, **kwargs)
        for sample in samples:
            sample.set_field(self.answers[int(sample.pred_label)], 'pred_answer', dtype=str)
        return samples
