"""Finished stages are reused, unfinished ones go on, others start anew."""

import json

import pytest

from tools.cross_validate import RECORD, run_stage


class Work:
    def __init__(self, fail=False):
        self.calls, self.fail, self.found = 0, fail, []

    def __call__(self, folder):
        self.calls += 1
        self.found = sorted(path.name for path in folder.iterdir() if path.name != RECORD)
        (folder / 'checkpoint').write_text('half')
        if self.fail:
            raise RuntimeError('killed')
        return dict(value=self.calls, pair=(1, 2))


def test_the_result_of_a_finished_stage_is_reused(tmp_path):
    work = Work()
    first = run_stage(tmp_path / 'stage', dict(a=1, b=[1, 2]), work)
    second = run_stage(tmp_path / 'stage', dict(b=[1, 2], a=1), work)
    assert first == second == dict(value=1, pair=[1, 2]) and work.calls == 1


def test_an_unfinished_stage_finds_its_files(tmp_path):
    with pytest.raises(RuntimeError, match='killed'):
        run_stage(tmp_path / 'stage', dict(a=1), Work(fail=True))
    work = Work()
    assert run_stage(tmp_path / 'stage', dict(a=1), work)['value'] == 1
    assert work.found == ['checkpoint']


@pytest.mark.parametrize('finished', [True, False])
def test_other_inputs_start_in_an_empty_folder(tmp_path, finished):
    try:
        run_stage(tmp_path / 'stage', dict(a=1), Work(fail=not finished))
    except RuntimeError:
        assert not finished
    work = Work()
    run_stage(tmp_path / 'stage', dict(a=2), work)
    assert work.calls == 1 and work.found == []
    assert json.loads((tmp_path / 'stage' / RECORD).read_text())['inputs']['a'] == 2


def test_other_versions_start_anew(tmp_path, monkeypatch):
    work = Work()
    run_stage(tmp_path / 'stage', {}, work)
    monkeypatch.setattr('tools.cross_validate.__version__', 'other')
    run_stage(tmp_path / 'stage', {}, work)
    assert work.calls == 2


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / 'thesis.tex').write_text('years of work')
    work = Work()
    with pytest.raises(FileExistsError, match='other files'):
        run_stage(tmp_path, dict(a=1), work)
    assert work.calls == 0 and (tmp_path / 'thesis.tex').read_text() == 'years of work'
