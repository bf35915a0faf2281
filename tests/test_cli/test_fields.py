"""One record of options: its docstring is the help, and commands hand it on as it is."""

import dataclasses
import io
from contextlib import redirect_stdout

import pytest

from mmkcr.apis.compress_files import FileOptions
from mmkcr.cli import compress, compress_config, distil
from mmkcr.cli.fields import describe_fields
from mmkcr.closed_form.options import CompressOptions


@pytest.mark.parametrize('record', [CompressOptions, FileOptions])
def test_every_option_is_described_once(record):
    texts = describe_fields(record)
    names = [field.name for field in dataclasses.fields(record)]
    assert sorted(texts) == sorted(names) and all(texts.values())


@pytest.mark.parametrize('module, job', [(compress, compress.CompressJob),
                                         (distil, distil.DistilJob)])
def test_commands_offer_fields_of_the_record(module, job):
    """Under their names, with their defaults, and with their descriptions as help."""
    parser = module.main.parser()
    actions = {action.dest: action for action in parser._actions}
    fields = {field.name: field for field in dataclasses.fields(FileOptions)}
    assert issubclass(job, FileOptions) and set(job.offers) <= set(fields)
    for name, settings in job.offers.items():
        default = settings.get('default', fields[name].default)
        assert actions[name].default == (None if default is dataclasses.MISSING else default)
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        parser.parse_args(['--help'])
    words = ' '.join(printed.getvalue().split())
    assert 'Folder of images without labels, at any depth.' in words and '``' not in words


def test_what_is_parsed_reaches_the_driver_as_it_is(monkeypatch, tmp_path):
    """No function in between names an option."""
    taken = []

    def stop(options):
        taken.append(options)
        raise ValueError('here')

    monkeypatch.setattr(compress_config, 'build_task', stop)
    monkeypatch.setattr(compress_config, 'check_first', lambda args: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'weights.pth').touch()
    with pytest.raises(SystemExit):
        compress.main(['config.py', 'weights.pth', '--target-params', '50%', '--rho', '0.5',
                       '--sites', 'heads', '--memory', '2', '--seed', '3', '--uniform',
                       '--out', str(tmp_path), '--shape', '64', '32'])
    options, = taken
    assert options.compression() == CompressOptions(
        sites=['heads'], rho=0.5, memory=2**31, seed=3, uniform=True,
        input_shape=(3, 64, 32)).compression()
    assert (options.config, options.checkpoint, options.out) == (
        'config.py', 'weights.pth', str(tmp_path))


@pytest.mark.parametrize('value', ['-1', 'nan', 'inf', '1e7', 'much'])
def test_memory_is_a_number_of_gigabytes(value, capsys):
    with pytest.raises(SystemExit):
        compress.main(['config.py', 'weights.pth', '--target-macs', '50%', f'--memory={value}'])
    assert 'error: argument --memory: ' in capsys.readouterr().err
