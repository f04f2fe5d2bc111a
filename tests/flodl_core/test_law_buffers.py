"""What an average makes of buffers: whole numbers, statistics, masks."""

import torch
from torch import nn

from tests.flodl_core.average_checks import check_equal_buffers, check_integer_buffers, check_mask
from tests.flodl_core.averaging_ways import Average, each_way, entry, replicas_of, through_cpu
from tests.flodl_core.models import FloatingBuffers


@each_way
def test_integer_buffers_come_from_the_rank_that_trained_most(average: Average) -> None:
    check_integer_buffers(average)


@each_way
def test_mask_of_minus_infinity_stays(average: Average) -> None:
    check_mask(average)


@each_way
def test_buffer_that_is_equal_on_all_ranks_stays_bit_by_bit(average: Average) -> None:
    check_equal_buffers(average)


@each_way
def test_complex_buffers_keep_their_imaginary_part(
    average: Average,
) -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("angles", torch.polar(torch.ones(4), torch.arange(4.0)))

    replicas = replicas_of(Rotary, 2)
    angles = replicas[0].model.get_buffer("angles").clone()
    average(replicas, [entry(0, 1), entry(1, 2)])
    for replica in replicas:
        assert torch.equal(replica.model.get_buffer("angles"), angles)


def test_buffer_that_is_bound_anew_in_training_is_still_averaged() -> None:
    replicas = replicas_of(FloatingBuffers, 2)
    for rank, replica in enumerate(replicas):
        replica.model.register_buffer("level", torch.tensor(4.0 * rank))
    through_cpu(replicas, [entry(0, 1), entry(1, 3)])
    assert [replica.model.get_buffer("level").item() for replica in replicas] == [3.0, 3.0]
