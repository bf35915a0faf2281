"""The command ``mmkcr``: the tools under one name."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config
from tool_files import file_of, load_tool

from mmkcr.apis.inference import shipped_root
from mmkcr.cli import console
from mmkcr.cli.command import COMMANDS, command, reader_is_gone
from mmkcr.engine.build import build_model
from mmkcr.version import __version__

REPO = Path(__file__).parents[2]


def ends(capsys, *words):
    """Exit status, output and errors of a command."""
    status = 0
    try:
        console.main(list(words))
    except SystemExit as ended:
        status = ended.code or 0
    found = capsys.readouterr()
    return status, found.out, found.err


def test_help_needs_no_models_of_the_hosts(after_torch):
    """They take as long to import as everything else; names of functions stay theirs."""
    code = ('import sys, mmkcr.cli.console; print("mmdet" in sys.modules); '
            'import mmkcr.closed_form.compression, mmkcr.methods.search.slimming; '
            'from mmkcr.apis import compress, slim; print(callable(compress), callable(slim))')
    assert after_torch(code).split() == ['False', 'True', 'True']


def test_version_and_help(capsys):
    assert ends(capsys, '--version') == (0, f'mmkcr {__version__}\n', '')
    assert ends(capsys)[1] == ends(capsys, '--help')[1] == console.usage() + '\n'
    assert all(f'  {name} ' in console.usage() for name in COMMANDS)


def test_unknown_command(capsys):
    status, out, err = ends(capsys, 'comprss', '--images', '3')
    assert status == 2 and not out and len(err.splitlines()) == 1
    assert 'found `comprss`; did you mean `compress`?' in err
    assert 'did you mean' not in ends(capsys, 'xyzzy')[2]
    with pytest.raises(FileNotFoundError, match='expected a tool at .*xyzzy.py'):
        load_tool('xyzzy')


@pytest.mark.parametrize('name', COMMANDS)
def test_help_is_that_of_the_module_that_the_tool_starts(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['mmkcr', name])
    status, out, _ = ends(capsys, name, '--help')
    assert status == 0 and out.startswith(f'usage: mmkcr {name} ')
    assert f'    mmkcr {name} ' in out.split('Example')[1]  # an example, with this command
    tool = load_tool(file_of(name))
    script = (shipped_root() / 'tools' / f'{file_of(name)}.py').read_text()
    assert f'from {tool.__name__} import main\n' in script and len(script.splitlines()) < 10
    assert ' '.join(tool.__doc__.strip().splitlines()[0].split()) in ' '.join(out.split())


def test_wrong_arguments_name_the_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['mmkcr'])
    status, _, err = ends(capsys, 'slim')
    assert status == 2 and '(see `mmkcr slim --help`)' in err
    status, _, err = ends(capsys, 'flops', 'no/such.py')
    assert status == 1 and err == 'error: expected a config file at `no/such.py`, found none\n'


def test_completion_knows_all_commands():
    script = ('source /dev/stdin <<< "$(cat "$0")"; COMP_WORDS=(mmkcr l); COMP_CWORD=1; _mmkcr; '
              'echo "${COMPREPLY[@]}"; COMP_WORDS=(mmkcr ""); _mmkcr; echo "${COMPREPLY[@]}"')
    text = console.COMPLETION.format(words=' '.join([*COMMANDS, *console.OPTIONS]))
    done = subprocess.run(['bash', '-c', script, '/dev/stdin'], input=text, capture_output=True,
                          text=True, check=True)
    latency, everything = done.stdout.splitlines()
    assert latency.split() == ['latency', 'latency-table']
    assert set(COMMANDS) < set(everything.split())


#: More than a buffer holds, so that a part is left for the end of the interpreter.
LONG = """
from mmkcr.cli.command import command
main = command(lambda argv: [print(number) for number in range(100_000)])
main([])
"""


@pytest.mark.parametrize('code', [LONG, 'from mmkcr.cli.console import main; main(["--help"])'])
def test_a_pipe_that_closes_is_no_error(code):
    """As ``mmkcr ... | true``: nothing on stderr, also not at the end of the interpreter."""
    # without a buffer nothing is left for the end
    env = {key: value for key, value in os.environ.items() if key != 'PYTHONUNBUFFERED'}
    process = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd=REPO, env=env)
    process.stdout.close()
    err = process.stderr.read()
    process.wait()
    assert (process.returncode, err) == (141, '')


def test_characters_that_the_terminal_lacks(monkeypatch):
    """They are no error, in what a command prints and in its errors."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding='cp1252')
               for name in ('stdout', 'stderr')}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)

    @command
    def main(argv=None):
        print('│ café │')
        raise ValueError('expected MACs ≤ 3 G in `café`')

    with pytest.raises(SystemExit):
        main([])
    monkeypatch.undo()
    printed = {name: stream.buffer for name, stream in streams.items()}
    for stream in streams.values():
        stream.flush()
    assert printed['stdout'].getvalue().decode('cp1252') == '? café ?\n'
    assert printed['stderr'].getvalue().decode('cp1252') == \
        'error: expected MACs ? 3 G in `café`\n'


def raising(error):
    """A command."""
    @command
    def main(argv=None):
        raise error

    return main


def test_an_interrupt_is_one_word(capsys, monkeypatch):
    """Of a command; of a call from Python it is the caller's."""
    main = raising(KeyboardInterrupt())
    monkeypatch.setattr(sys, 'argv', ['mmkcr'])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (130, 'interrupted\n')
    with pytest.raises(KeyboardInterrupt):
        main([])


def test_another_broken_pipe_is_an_error(capfd):
    """Only standard output is meant: that of a worker process is a failure."""
    assert not reader_is_gone()
    with pytest.raises(BrokenPipeError, match='a worker died'):
        raising(BrokenPipeError('a worker died'))([])


def test_an_assertion_of_a_host_is_one_sentence(capsys):
    """How mmpretrain and the others refuse settings; an assertion of ours is a bug."""
    @command
    def main(argv=None):
        build_model(Config(dict(
            model=dict(type='mmpretrain.VisionTransformer', arch='unknown'))))

    with pytest.raises(SystemExit):
        main([])
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith('error: Arch unknown is not in default archs')
    with pytest.raises(AssertionError, match='Arch unknown'):
        main(['--debug'])
    with pytest.raises(AssertionError, match='a bug'):
        raising(AssertionError('a bug'))([])
