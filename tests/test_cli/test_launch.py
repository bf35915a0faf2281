"""What is refused when a run begins."""

from types import SimpleNamespace

import pytest
from torch import nn

import mmkcr.methods.kcr.kernel_complexity  # noqa: F401  registers its hook
from mmkcr.cli.launch import StartHook
from mmkcr.methods.search.refresh import RefreshedTerm


class OfOurs(RefreshedTerm):
    hook = 'NystromRefreshHook'


class OfAUser(RefreshedTerm):
    hook = 'MyHook'


class WithoutAName(nn.Module):
    ready = False
    basis = None


@pytest.mark.parametrize('term, wanted', [
    (OfOurs(4), r"`dict\(type='mmkcr.NystromRefreshHook', loss='mine'\)`"),
    (OfAUser(4), r"`dict\(type='MyHook', loss='mine'\)`"),
    (WithoutAName(), 'a hook that computes the state')])
def test_a_term_without_its_state_names_its_own_hook(term, wanted):
    model = nn.Module()
    model.regularizers = nn.ModuleDict(dict(mine=term))
    with pytest.raises(ValueError, match=f'^expected {wanted} in `custom_hooks`, or a checkpoint '
                       f'with the state of `{type(term).__name__}` in `load_from`'):
        StartHook().before_train(SimpleNamespace(model=model, hooks=[]))
