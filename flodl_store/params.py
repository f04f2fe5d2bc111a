"""What a run may be asked to do: one model for the command line and all that starts runs after it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

Policy = Literal["sync", "cadence", "async"]
Backend = Literal["nccl", "gloo", "cpu"]
OnNonfinite = Literal["exclude", "stop"]
Amp = Literal[False, True, "bfloat16"]

Device = Annotated[str, StringConstraints(pattern=r"^(cpu|cuda(:\d+)?)(@\d+(\.\d+)?)?$")]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=64)]

MOST = 10**9
"""Of what is counted: so that products of two such numbers, as of epochs and samples, fit into a database."""

NUMBERS = (
    "epochs",
    "batch_size",
    "seed",
    "lr",
    "lr_scale_ratio",
    "overhead_target",
    "anchor",
    "max_anchor",
    "max_batch_diff",
    "max_overshoot",
    "divergence_threshold",
    "max_grad_norm",
    "grad_accumulation",
    "outer_lr",
    "outer_momentum",
    "max_steps",
    "max_time_s",
)


class RunParams(BaseModel):
    """Parameters of a run. None stands for a default that the recipe or the engine gives."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)

    recipe: str = Field(min_length=1, description="Short name of a recipe, or package.module:attribute")
    devices: tuple[Device, ...] | None = Field(
        default=None, min_length=1, description="A worker each: cpu, cuda:0, or cpu@2.5 for one slowed down 2.5 times"
    )
    policy: Policy = Field(default="cadence", description="When the replicas are averaged")
    backend: Backend | None = Field(
        default=None, description="How the replicas are averaged; by default as the devices allow"
    )
    epochs: int | None = Field(
        default=None, ge=1, le=MOST, description="Times that every sample is trained; default from the recipe"
    )
    batch_size: int | None = Field(
        default=None, ge=1, le=MOST, description="Samples in a worker's batch; default from the recipe"
    )
    max_steps: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Optimizer steps of all workers together after which the run ends, as completed",
    )
    max_time_s: float | None = Field(
        default=None, gt=0, description="Seconds of training after which the run ends, as completed"
    )
    seed: int = Field(
        default=42, ge=0, lt=2**63, description="Seed of the initial parameters and of the order of the data"
    )
    lr: float | None = Field(default=None, gt=0, description="Learning rate of one worker; default from the recipe")
    lr_scale_ratio: float = Field(
        default=1.0, ge=0, description="lr is multiplied by 1 + (workers - 1) x ratio; 0 leaves it as it is"
    )
    overhead_target: float = Field(
        default=0.03,
        ge=0.01,
        le=0.5,
        description="Share of the compute time that averaging may cost before it gets rarer",
    )
    anchor: int = Field(
        default=10, ge=1, le=MOST, description="Batches that the slowest worker does between two averages, at first"
    )
    max_anchor: int = Field(default=200, ge=1, le=MOST, description="The most that anchor may grow to")
    max_batch_diff: int | None = Field(
        default=None, ge=0, le=MOST, description="Batches that a worker may be ahead of the slowest"
    )
    max_overshoot: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Batches that a worker may go into the next epoch; default: as averages allow",
    )
    progressive_dispatch: bool | None = Field(
        default=None,
        description="Deal an epoch bit by bit, as workers need it, or whole at its start; default: the policy's own",
    )
    divergence_threshold: float = Field(
        default=0.05,
        ge=0,
        description="Drift of the replicas above which averages get no rarer while it rises; 0 turns that off",
    )
    outer_lr: float | None = Field(
        default=None,
        gt=0,
        description="Step towards the mean of the replicas by this share, with momentum, instead of taking it;"
        " 0.7 where only outer_momentum is given",
    )
    outer_momentum: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="Momentum of these steps, Nesterov's where it is above 0; 0.9 where only outer_lr is given",
    )
    max_grad_norm: float | None = Field(default=None, gt=0, description="Norm to which gradients are clipped")
    grad_accumulation: int = Field(
        default=1, ge=1, le=65536, description="Batches of a worker whose gradients make one optimizer step"
    )
    amp: Amp = Field(default=False, description="Compute the loss under autocast in bfloat16")
    drop_last: bool = Field(default=False, description="Leave out the last batch of an epoch where it is smaller")
    on_nonfinite: OnNonfinite = Field(
        default="exclude", description="What happens to a worker whose parameters are NaN or infinite"
    )
    name: str | None = Field(default=None, min_length=1, max_length=200, description="Name of the run, for people")
    tags: tuple[Tag, ...] = Field(default=(), max_length=32, description="Words to find the run by")

    @field_validator(*NUMBERS, mode="before")
    @classmethod
    def _no_boolean(cls, value: object) -> object:
        """``true`` is no number, though Python would take it for 1."""
        if isinstance(value, bool):
            raise ValueError("must be a number")
        return value
