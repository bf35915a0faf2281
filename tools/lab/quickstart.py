"""KCR-Transformer end to end on digits: dense, search, slim, retrain, evaluate.

The same configs, Runner and functions as the commands use, in recorded stages
(:mod:`lab.pipeline`). See ``tools/quickstart.py``.
"""

from pathlib import Path
from typing import Any, Dict, Tuple

from mmengine.config import Config
from torch import nn

from mmkcr.apis.build import file_sha256, load_config
from mmkcr.apis.compress_files import CONFIG, compress_files
from mmkcr.apis.slim_files import STRUCTURE, WEIGHTS
from mmkcr.visualization import plot_channel_masks
from .jobs import Say
from .measures import kernel_measure
from .pipeline import StagedPipeline, Start, deployed
from .quickstart_config import QuickstartOptions, prepare

#: Trained stages, and the config of each.
TRAININGS = dict(dense='dense', search='search', plain='retrain_{arch}_no-kcr', kcr='retrain')
#: Models of the table: stage whose weights are evaluated, and how it is called.
MODELS = dict(dense='dense', closed='compressed in closed form, not trained',
              slim='slimmed, not retrained', plain='slimmed, retrained',
              kcr='slimmed, retrained with KCR')
#: Models with a config of their own.
OWN = ('dense', 'closed')


class Pipeline(StagedPipeline):
    """All stages of one architecture with one seed, in ``<work_dir>/<arch>/seed<seed>``.

    Args:
        arch (str): As in the configs' names, such as ``'vit-mini'``.
        seed (int): Of everything random.
        options (QuickstartOptions): What is run.
        say (Callable): See :data:`~lab.jobs.Say`. Defaults to silence.
    """

    def __init__(self, arch: str, seed: int, options: QuickstartOptions,
                 say: Say = lambda *_: None) -> None:
        super().__init__(f'{arch} seed {seed}', seed,
                         Path(options.work_dir) / arch / f'seed{seed}', say)
        self.arch, self.options = arch, options

    def run(self) -> Dict[str, Any]:
        """Run what is not finished.

        Returns:
            dict: ``arch``, ``seed``, ``trainings`` (curves by stage), ``closed``
            (digests of files), ``slim`` (structure file, scores of the gates) and
            ``models`` (numbers by key of :data:`MODELS`).
        """
        trainings = dict(dense=self.train('dense', self.config('dense')))
        dense = trainings['dense']['checkpoint']
        closed = self.compressed('closed', dense)
        weights = dict(dense=dense, closed=str(self.folder / 'closed' / WEIGHTS))
        models = {name: self._evaluate(name, weights[name]) for name in OWN}
        trainings['search'] = self.train('search', self.config('search'))
        slim = self.slim('slim', self.config_file('search'), trainings['search']['checkpoint'],
                         self.options.target_macs, self.options.divisor)
        start = Start.of_folder(self.folder / 'slim')
        for name in ('plain', 'kcr'):
            trainings[name] = self.train(name, self.config(TRAININGS[name]), start)
        weights.update({name: training['checkpoint'] for name, training in trainings.items()},
                       slim=start.weights)
        models.update({name: self._evaluate(name, weights[name]) for name in MODELS
                       if name not in models})
        return dict(arch=self.arch, seed=self.seed, trainings=trainings, closed=closed, slim=slim,
                    models=models)

    def compressed(self, name: str, checkpoint: str) -> Dict[str, Any]:
        """Compress the dense network in closed form, with a picture."""
        config, options = self.config('dense'), self.options
        arguments = dict(images=300, divisor=options.divisor, seed=self.seed)

        def work(folder: Path) -> Dict[str, Any]:
            file = folder / 'dense.py'
            file.write_text(config.pretty_text)  # as it was trained: data, its slice
            found = compress_files(file, checkpoint, options.target_macs, out=folder,
                                   progress=False, **arguments)
            plot_channel_masks(found.result.structure, folder / 'channels.png',
                               f'{self.arch}: {MODELS[name]}')
            return dict(digests=Start.of_folder(folder).digests())

        return self.stage(name, dict(
            config=config.to_dict(), checkpoint=file_sha256(checkpoint),
            target=options.target_macs, **arguments), work)

    def config_file(self, kind: str) -> Path:
        """Path of the config of 'dense', 'search', 'retrain', 'deploy' or as in TRAININGS."""
        name = kind.format(arch=self.arch) if '{' in kind else f'{kind}_{self.arch}'
        folder = Path(self.options.configs) / 'kcr' / 'digits'
        pattern = f'kcr-{name}_1xb*_digits.py'  # any batch size
        return next(folder.glob(pattern), folder / pattern)

    def config(self, kind: str) -> Config:
        """The config of a kind, see :func:`~lab.quickstart_config.prepare`."""
        return prepare(load_config(self.config_file(kind)), self.seed, self.options)

    def deployed(self, name: str) -> Tuple[Config, nn.Module]:
        """Config and model (random weights) of a model of the table, as one deploys it.

        Args:
            name (str): Key of :data:`MODELS`.
        """
        return deployed(self._deploy(name), self._start(name, ''))

    def _deploy(self, name: str) -> Config:
        if name == 'closed':  # it names its structure
            return load_config(self.folder / name / CONFIG)
        return self.config('dense' if name == 'dense' else 'deploy')

    def _start(self, name: str, weights: str) -> Start:
        structure = None if name in OWN else str(self.folder / 'slim' / STRUCTURE)
        return Start(weights, structure)

    def _evaluate(self, name: str, weights: str) -> Dict[str, Any]:
        found = self.evaluate(f'evaluate-{name}', self._deploy(name), self._start(name, weights),
                              dict(kernel=kernel_measure))
        tested, kernel = found['metrics'], found['kernel']
        return dict(params=found['params'], macs=found['macs'], input_shape=found['input_shape'],
                    top1=tested['accuracy/top1'], digits=tested['kernel/n'],
                    kc_held_out=tested['kernel/kc'], kc=kernel['kc'], kc_digits=kernel['n'])
