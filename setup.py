"""Installs mmkcr with its configs and commands; the laboratory stays in the clone."""

import os
import re
import shutil
import tempfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
BUILD = tempfile.TemporaryDirectory()  # not ./build, whose old files would enter the next wheel
MIM_CONTENT = ('configs', 'tools', 'model-index.yml', 'dataset-index.yml')


def requirements(name: str) -> list[str]:
    """Read the requirement lines of ``requirements/<name>.txt``."""
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


def version() -> str:
    """Read ``__version__`` without importing the package."""
    scope = {}
    exec((ROOT / 'mmkcr' / 'version.py').read_text(), scope)
    return scope['__version__']


def of_laboratory(folder: str, names: list[str]) -> list[str]:
    """Names in a folder that do not go into a wheel: ``tools/lab``, its commands, and caches."""
    return [name for name in names if name in ('lab', '__pycache__') or name.endswith('.py')
            and re.search(r'^ *from lab\b', Path(folder, name).read_text(), re.MULTILINE)]


def provide_mim_folder(target: Path, link: bool) -> None:
    """Put configs, tools and indices where MMEngine looks for those of a library.

    Args:
        target (Path): The folder ``mmkcr/.mim``; one that exists is replaced.
        link (bool): Whether to link to the sources instead of copying them.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in MIM_CONTENT:
        source = ROOT / name
        if link:
            (target / name).symlink_to(os.path.relpath(source, target))
        elif source.is_dir():
            shutil.copytree(source, target / name, ignore=of_laboratory)
        else:
            shutil.copyfile(source, target / name)


class BuildWithMim(build_py):
    """Adds ``mmkcr/.mim``: a copy in a wheel, links in an editable install."""

    def run(self) -> None:
        """Build the package, then provide the folder."""
        super().run()
        root = ROOT if self.editable_mode else Path(self.build_lib)
        provide_mim_folder(root / 'mmkcr' / '.mim', link=self.editable_mode)


setup(
    name='mmkcr',
    version=version(),
    description='Vision transformers made smaller and faster inside OpenMMLab',
    long_description=(ROOT / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    license_files=['LICENSE'],
    python_requires='>=3.10',
    classifiers=[f'Programming Language :: Python :: 3.{minor}' for minor in range(10, 14)],
    packages=find_packages(include=['mmkcr', 'mmkcr.*']),
    entry_points=dict(console_scripts=['mmkcr = mmkcr.cli.console:main']),
    install_requires=requirements('runtime'),
    extras_require={name: requirements(name)
                    for name in ('openmmlab', 'optional', 'tests', 'lint', 'docs', 'notebook',
                                 'transformers')},
    options={'build': {'build_base': BUILD.name}},
    cmdclass={'build_py': BuildWithMim},
    zip_safe=False,
)
