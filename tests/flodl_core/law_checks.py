"""What has to hold of a run under cadence or async that a witness looked on at: laws 2 and 3."""

import torch
from torch import nn

from flodl_core import SyncEvent
from tests.flodl_core.replay import Observed, Walk, check_close
from tests.flodl_core.training import Outcome, events_of
from tests.flodl_core.witness import State, Story, Trained, Witness


def param_names_of(model: nn.Module) -> frozenset[str]:
    """The parameters that are averaged."""
    return frozenset(name for name, param in model.named_parameters() if param.requires_grad)


def initial_state(stories: dict[int, Story]) -> State:
    """What the run started from: a first batch found it so."""
    return next(story[0].before for _, story in sorted(stories.items()) if story and isinstance(story[0], Trained))


def final_state(outcome: Outcome, names: frozenset[str] | None = None) -> State:
    """The result, by name; of some tensors only where they are named."""
    state = {**outcome.state.params, **outcome.state.buffers}
    return state if names is None else {name: state[name] for name in names}


def check_averages(outcome: Outcome, witness: Witness, param_names: frozenset[str]) -> Walk:
    """Law 2, of every average on its own: each replica found after it what the replicas before it make by the law."""
    initial = initial_state(witness.stories)
    sides = {rank: Observed(initial, param_names) for rank in witness.stories}
    walk = Walk(stories=witness.stories, sides=sides, param_names=param_names).run()
    last = walk.averages[max(walk.averages)].mean
    # what a model does not save, it does not return
    returned = {name: tensor for name, tensor in final_state(outcome).items() if name in last}
    check_close(returned, {name: last[name] for name in returned})
    assert param_names <= returned.keys()
    return walk


def check_accounts(outcome: Outcome, witness: Witness, walk: Walk) -> None:
    """Law 3: every sample trained is in one average, or was discarded and counted; weights are samples."""
    syncs = events_of(outcome, SyncEvent)
    told = {event.round: (dict(event.weights), tuple(event.excluded)) for event in syncs}
    assert told == {average.round: (average.weights, average.excluded) for average in walk.averages.values()}
    in_averages = sum(sum(average.weights.values()) for average in walk.averages.values())
    trained = sum(witness.trained.values())
    assert walk.num_unaveraged == 0, "samples were trained that no average has"
    assert in_averages + walk.num_discarded == trained
    totals = outcome.handle.progress().totals
    assert (totals.num_samples, totals.discarded_samples) == (trained, walk.num_discarded)


def check_frozen_parameters(outcome: Outcome, initial: nn.Module) -> None:
    """What is not trained ends as it began, bit by bit."""
    for name, param in initial.named_parameters():
        if not param.requires_grad:
            assert torch.equal(outcome.state.params[name], param), f"{name} is frozen and was touched"


def check_run(outcome: Outcome, witness: Witness, model: nn.Module) -> Walk:
    """Laws 2 and 3 together; ``model`` names the parameters."""
    walk = check_averages(outcome, witness, param_names_of(model))
    check_accounts(outcome, witness, walk)
    return walk
