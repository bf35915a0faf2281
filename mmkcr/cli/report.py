"""What `mmkcr slim` and `mmkcr compress` print of the networks that they wrote."""

from collections.abc import Sequence
from numbers import Real

from mmkcr.apis.slim_files import WEIGHTS, SubnetFiles
from mmkcr.closed_form.report import sentences, site_table, size_table
from mmkcr.models.counting import part_rows
from mmkcr.visualization import format_table


def print_files(files: SubnetFiles, metrics: Sequence[dict[str, float]] = (),
                deployed: Sequence[dict[str, float]] = ()) -> None:
    """Print what was kept, and the networks side by side.

    The ``metrics`` are of the dense, slim and fine-tuned network, ``deployed`` of the files of
    ``--int8``.
    """
    structure, sizes = files.structure, files.bytes
    print(site_table(structure))
    print(size_table(structure, [('weights (MB)', sizes['dense'] / 1e6, sizes['subnet'] / 1e6)],
                     metrics))
    for sentence in sentences(structure, structure.provenance.get('agreement')):
        print(sentence)
    if files.deployed:
        names = [name for name, value in (deployed[0] if deployed else {}).items()
                 if isinstance(value, Real)]
        rows = [(entry.path.name, f'{entry.bytes / 1e6:.2f}', f'{entry.ratio:.3f}',
                 f'{entry.error:.1%}', '' if entry.same is None else f'{entry.same:.1%}',
                 *(f'{numbers[name]:.4g}' for name in names))
                for entry, numbers in zip(files.deployed, deployed or [{}] * len(files.deployed))]
        print(format_table(('file', 'MB', 'time, batch 1', 'difference from dense',
                            'same class', *names), rows))
    if files.parts:
        print(format_table(('part', 'MACs (G)', 'slim', 'left'), part_rows(files.parts)))
    written = (files.folder / WEIGHTS).stat().st_mtime_ns
    earlier = [path.name for path in sorted(files.folder.glob('slim_*.onnx'))
               if path.stat().st_mtime_ns < written]
    for sentence in files.notes:
        print(sentence)
    if earlier:
        print(f'Of an earlier network: {", ".join(earlier)}.')
