"""Questions about images: their tokens, their answers as classes, and SNLI-VE."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch
from mmcv.transforms import BaseTransform
from mmengine.dataset import BaseDataset
from mmpretrain.datasets import coco_vqa  # noqa: F401  (left out beside transformers 5)

from mmkcr.registry import DATASETS, TRANSFORMS
from .flava import hugging_face, read_answers

_WORD = re.compile(r"[a-z0-9']+")


@TRANSFORMS.register_module()
class TokenizeQuestion(BaseTransform):
    """Adds ``tokens`` (length,), int64, of a sample's ``question``; 0 is padding.

    A sample without a question, such as a calibration image, gets only padding.

    Args:
        vocabulary (Sequence[str] | str): Words in lower case, which are tokens from 2 on; 1 is any
            other word, and characters between words are ignored. Or the name or folder of a
            tokenizer of ``transformers`` with padding token 0, such as BERT's, which FLAVA uses.
        length (int): Number of tokens; longer questions are cut. Defaults to 30.
    """

    def __init__(self, vocabulary: Sequence[str] | str, length: int = 30) -> None:
        self.length, self._tokenizer, self._words = length, None, {}
        if not isinstance(vocabulary, str):
            self._words = {word: token for token, word in enumerate(vocabulary, 2)}
            return
        self._tokenizer = hugging_face().AutoTokenizer.from_pretrained(vocabulary)
        if self._tokenizer.pad_token_id != 0:
            raise ValueError('expected a tokenizer whose padding is token 0, found '
                             f'{self._tokenizer.pad_token_id} of `{vocabulary}`')

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Tokenise the question."""
        question, tokens = results.get('question') or '', []
        if self._tokenizer is None:
            words = _WORD.findall(question.lower())[:self.length]
            tokens = [self._words.get(word, 1) for word in words]
        elif question:
            tokens = self._tokenizer(question, truncation=True,
                                     max_length=self.length)['input_ids']
        results['tokens'] = torch.tensor(tokens + [0] * (self.length - len(tokens)))
        return results


@TRANSFORMS.register_module()
class LabelAnswer(BaseTransform):
    """Adds ``gt_label``: the class of a question's most frequent answer among the known ones.

    A question none of whose answers is known is not trained on: the data set draws another one in
    its place. A label that losses ignore would still count in their mean, and label smoothing and
    the regularisers have no such label.

    Args:
        answers (Sequence[str] | str): See :func:`~mmkcr.methods.kcr.vqa.flava.read_answers`.
    """

    def __init__(self, answers: Sequence[str] | str) -> None:
        self._labels = {answer: label for label, answer in enumerate(read_answers(answers))}

    def transform(self, results: dict[str, Any]) -> dict[str, Any] | None:
        """Label the question; None if no answer to it is known, an error if it has no answer."""
        given = results.get('gt_answer') or []
        if not given:
            raise ValueError('expected answers to the questions of a VQA set, found none to '
                             f'question {results.get("question_id")}: give its `ann_file`')
        given = [given] if isinstance(given, str) else given
        # without weights answers are as they were given, perhaps several times
        weights, counts = results.get('gt_answer_weight') or repeat(1), Counter()
        for answer, weight in zip(given, weights):
            if answer in self._labels:
                counts[answer] += weight
        if not counts:
            return None
        # of equally frequent answers the first
        results['gt_label'] = self._labels[max(counts, key=counts.get)]
        return results


@DATASETS.register_module()
class SNLIVE(BaseDataset):
    """SNLI-VE (Xie et al., 2019): does an image of Flickr30K entail a sentence?

    Samples have the keys of mmpretrain's VQA sets: the sentence is the ``question``, the relation
    the ``gt_answer``, and its class ``gt_label``. Lines without a relation (``-``) are skipped.

    Args:
        data_root (str): Folder of the annotations and the images.
        ann_file (str): File of JSON lines, such as the authors' ``snli_ve_train.jsonl``.
        data_prefix (str): Folder of the images, ``<Flickr30K_ID>.jpg``. Defaults to
            ``'flickr30k-images'``.
        **kwargs: See :class:`mmengine.dataset.BaseDataset`.
    """

    METAINFO = dict(classes=('entailment', 'neutral', 'contradiction'))

    def __init__(self, data_root: str, ann_file: str, data_prefix: str = 'flickr30k-images',
                 **kwargs: Any) -> None:
        super().__init__(data_root=data_root, ann_file=ann_file,
                         data_prefix=dict(img_path=data_prefix), **kwargs)

    def load_data_list(self) -> list[dict[str, Any]]:
        """Read the lines."""
        with open(self.ann_file) as file:
            samples = [self._sample(line, number) for number, line in enumerate(file, 1)
                       if line.strip()]
        return [sample for sample in samples if sample['gt_answer'] != ['-']]

    def _sample(self, line: str, number: int) -> dict[str, Any]:
        classes = self.metainfo['classes']
        try:
            entry = json.loads(line)
            image, question, answer = (
                entry[key] for key in ('Flickr30K_ID', 'sentence2', 'gold_label'))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError('expected lines with `Flickr30K_ID`, `sentence2` and `gold_label`, '
                             f'found another in line {number} of `{self.ann_file}`') from error
        if answer not in (*classes, '-'):
            raise ValueError(f'expected a `gold_label` among {list(classes)}, found {answer!r} in '
                             f'line {number} of `{self.ann_file}`')
        return dict(img_path=f'{self.data_prefix["img_path"]}/{image}.jpg', image_id=image,
                    question_id=entry.get('pairID', number), question=question,
                    gt_answer=[answer], gt_answer_weight=[1.],
                    gt_label=classes.index(answer) if answer in classes else None)
