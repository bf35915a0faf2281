"""The pictures of the gallery: one of every method, and what compress does, on the digits."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.registry import init_default_scope
from torch import Tensor

from mmkcr.apis.compress_files import task_outputs
from mmkcr.closed_form.compression import compress
from mmkcr.core import Structure, atomic_write
from mmkcr.datasets import check_data_folders
from mmkcr.deploy.latency import measure_pair
from mmkcr.engine.build import build_model, load_config, load_weights
from mmkcr.evaluation.features import undisturbed
from mmkcr.functional.clusters import fit_clusters
from mmkcr.functional.information import InformationAccumulator, log_assignments
from mmkcr.functional.kernel import moment_of, spectrum, tails, truncation_rank
from mmkcr.methods.dcs.information_bottleneck import labelled_batches
from mmkcr.methods.ofb.bimask import BiMaskGate
from mmkcr.models.head_choice import select_heads
from .bimask_plots import plot_mask_descent
from .commands import load_tool
from .compress_study import Subject
from .gallery_plots import plot_shares, plot_spectrum
from .head_plots import plot_head_scores
from .kernel_analysis import split_loader
from .machine import machine_info
from .mask_plots import plot_channel_masks
from .replace_heads import score_heads
from .sensitivity_plots import plot_metric_over_time, plot_sensitivity

TARGETS = (0.8, 0.65, 0.5, 0.4, 0.3)
IMAGES, PAIRS = 96, 30
TOP1 = 'accuracy/top1'


class Picture(NamedTuple):
    """A picture of the gallery.

    Args:
        title (str): Its heading.
        file (str): Its name.
        caption (str): What one sees, with its numbers.
    """

    title: str
    file: str
    caption: str


class Classifier:
    """A trained classifier and its data.

    Args:
        config (str): A config of this package.
        checkpoint (str): Its weights.
    """

    def __init__(self, config: str, checkpoint: str) -> None:
        self.config, self.checkpoint = load_config(config), checkpoint
        check_data_folders(self.config, ('train_dataloader', 'val_dataloader'))
        init_default_scope('mmpretrain')
        self.config.log_level, self.config.work_dir = 'ERROR', 'work_dirs/gallery/log'
        self.model = build_model(self.config)
        load_weights(self.model, checkpoint)
        self._features: tuple[Tensor, Tensor] | None = None

    def features(self) -> tuple[Tensor, Tensor]:
        """Features (n, d) and labels (n,) of the training set, with test transforms."""
        if self._features is None:
            with undisturbed(self.model), torch.no_grad():
                found = [(features, labels) for features, labels, _ in labelled_batches(
                    self.model, split_loader(self.config, 'train'), 'backbone')]
            self._features = tuple(torch.cat(parts) for parts in zip(*found))
        return self._features


def compressed(classifier: Classifier, folder: Path) -> list[Picture]:
    """Sensitivity, metric over time, and which units stay."""
    subject = Subject(copy.deepcopy(classifier.config), classifier.checkpoint, IMAGES)
    pixels, profiles, found = torch.randn(1, *subject.shape), None, []
    torch.set_num_threads(1)
    for target in TARGETS:
        result = compress(subject.model, subject.batches, target, None, subject.shape, subject.part,
                          task_outputs, held_out=subject.batches[:1], logits=True, progress=False,
                          profiles=profiles)
        profiles = result.profiles
        timing = measure_pair(subject.model, result.model, pixels, PAIRS, 5, 'onnxruntime', 1)
        found.append((result, timing, subject.metrics(result.model)[TOP1]))
    dense = subject.metrics(subject.model)[TOP1]
    half = found[TARGETS.index(0.5)][0]
    plot_sensitivity({name: profile.losses.tolist() for name, profile in profiles.items()},
                     folder / 'compress_sensitivity.png', half.structure.sizes(),
                     'what each layer loses; dots: the network of 50 %')
    # one time of the dense network; the subnets' by their ratios to neighbours in time
    base = 1e3 * sorted(sum((timing.dense for _, timing, _ in found), []))[
        len(TARGETS) * PAIRS // 2]
    points = [(base * timing.ratio, metric) for _, timing, metric in found]
    plot_metric_over_time({'ViT-mini': (base, dense)}, {'ViT-mini': points},
                          folder / 'compress_time.png', 'top-1 (%)', 'ONNX Runtime',
                          [f'{target:.0%}' for target in TARGETS],
                          100 / len(split_loader(classifier.config, 'val').dataset))
    plot_channel_masks(of_kind(half.structure, 'mlp_hidden'), folder / 'compress_kept.png',
                       'hidden units of the MLPs')
    for target, (_, timing, metric) in zip(TARGETS, found):
        print(f'{target:.0%} of the MACs: {metric:.1f} % in {timing.ratio:.2f} of the time')
    return [
        Picture('Closed form: what each layer loses', 'compress_sensitivity.png',
                f'ViT-mini on the digits, {IMAGES} unlabelled images. The allocation cuts where '
                'the curves are low. The panels share one scale of losses and of colours.'),
        Picture('Closed form: which units stay', 'compress_kept.png',
                'Hidden units of the same network at 50 % of the MACs, in their original order.'),
        Picture('Closed form: accuracy over time', 'compress_time.png',
                f'The same network, dense {dense:.1f} %, at five budgets of MACs. Bars: '
                f'one digit more or less. One seed; {PAIRS} pairs of runs on one thread, by its '
                'clock.')]


def of_kind(structure: Structure, kind: str) -> Structure:
    """The sites of one kind."""
    sites = {name: site for name, site in structure.sites.items() if name.endswith(f'.{kind}')}
    return Structure(structure.backbone, sites)


def kernel(classifier: Classifier, folder: Path) -> list[Picture]:
    """Eigenvalues of the kernel, and where the kernel complexity is reached."""
    features, _ = classifier.features()
    n, width = features.shape
    values = spectrum(moment_of(features))[0]
    left = tails(values)
    bound = torch.arange(width + 1) / n + (left / n).sqrt()
    rank = truncation_rank(n, width, 0.2)
    plot_spectrum(values.tolist(), bound.tolist(), folder / 'kcr_spectrum.png', rank)
    return [Picture('KCR: the kernel of the features', 'kcr_spectrum.png',
                    f'Dense ViT-mini, {n} training digits. The loss lowers the shaded sum '
                    f'({float(left[rank]):.3g}), and with it the minimum on the right.')]


def clusters(classifier: Classifier, folder: Path) -> list[Picture]:
    """Which classes the clusters of features hold."""
    features, labels = classifier.features()
    centroids = fit_clusters(features, 10)
    sums = InformationAccumulator(10, 10)
    sums.add(log_assignments(features, centroids), labels)
    table = sums.log_q().exp()  # a row a class
    order = table.argmax(0).argsort(stable=True)
    plot_shares(table[:, order], folder / 'dcs_clusters.png', 'class y', 'cluster a', 'Q(a | y)')
    return [Picture('DCS: what the features say about the label', 'dcs_clusters.png',
                    'Soft clusters, by class, of the features that the dense ViT-mini computes for '
                    f'{len(labels)} training digits. The information bottleneck loss '
                    'makes the rows sharper, so that a cluster tells the class.')]


def bimask(classifier: Classifier, folder: Path) -> list[Picture]:
    """The two parts of a bi-mask over a search; a gate as a search starts it."""
    del classifier
    torch.manual_seed(0)
    gate = BiMaskGate(384, std=1.)
    masks = []
    for weight in (0.99, 0.5, 0.1):
        gate.importance_weight.fill_(weight)
        masks.append((f'w = {weight}', gate.soft_mask().detach().tolist()))
    masks.append(('V alone', gate.sparsity(gate.probabilities()).detach().tolist()))
    plot_mask_descent({'384 hidden units': masks}, folder / 'ofb_bimask.png')
    return [Picture('Once for Both: importance and sparsity in one mask', 'ofb_bimask.png',
                    'A gate of random importance, as w falls: the smooth importance gives way to '
                    'the steps of the sizes on offer. Untrained; seed 0.')]


def heads(classifier: Classifier, folder: Path) -> list[Picture]:
    """Scores of the heads: the same weights in a backbone whose heads can be replaced."""
    config = copy.deepcopy(classifier.config)
    config.model.backbone.type = 'mmkcr.DWConvVisionTransformer'
    model = build_model(config)
    load_weights(model, classifier.checkpoint)
    scores = score_heads(model, config, 300)
    kept = select_heads(scores, len(scores) // 2)
    plot_head_scores(scores, folder / 'dwconv_scores.png', kept)
    return [Picture('Drop-in convolution: how much heads depend on the image',
                    'dwconv_scores.png', '300 training digits. Dots: the half of the blocks whose '
                    'attention a convolution replaces.')]


def before_after(config: str, checkpoint: str, folder: Path, file: str, what: str,
                 remark: str = '') -> list[Picture]:
    """Compress a detector or segmentor to half, and draw what both find in a scene."""
    slim = Path('work_dirs/gallery') / Path(file).stem
    load_tool('compress').main([config, checkpoint, '--target-macs', '50%', '--images',
                                str(IMAGES), '--out', str(slim)])
    scene = sorted(Path('data/digits/scenes/images/validation').glob('*.png'))[0]
    load_tool('demo/before_after').main([
        '--dense', config, checkpoint, '--slim', str(slim / 'config.py'), str(slim / 'subnet.pth'),
        '--images', str(scene), '--score-thr', '0.5', '--runtime', 'onnxruntime', '--repeats',
        str(PAIRS), '--out', str(slim)])
    with atomic_write(folder / file) as path:
        path.write_bytes((slim / scene.name).read_bytes())
    return [Picture(f'{what}: dense and 50 %', file,
                    f'A validation scene{remark}. Compressed from {IMAGES} unlabelled images, '
                    'nothing trained; milliseconds of the backbone in ONNX Runtime, one thread.')]


#: Pictures of a classifier, by the name that ``--only`` takes.
PICTURES: dict[str, Callable[[Classifier, Path], list[Picture]]] = dict(
    compress=compressed, kcr=kernel, dcs=clusters, ofb=bimask, dwconv=heads)


def page(pictures: Sequence[Picture], command: str, date: str) -> str:
    """The gallery as Markdown.

    Args:
        pictures (Sequence[Picture]): In order.
        command (str): That made it.
        date (str): Of today.
    """
    machine: dict[str, Any] = machine_info()
    lines = ['# Gallery', '',
             'Pictures of what each method does, for small networks on the digits. One command '
             'draws them all:', '', '```', command, '```', '']
    for picture in pictures:
        lines += [f'## {picture.title}', '', f'![{picture.title}](images/{picture.file})', '',
                  picture.caption, '']
    lines += [f'{machine["cpu"]}, {machine["cores"]} cores, load {machine["load_average"]}, torch '
              f'{machine["torch"]}, mmkcr {machine["mmkcr"]}, {date}.', '']
    return '\n'.join(lines)
