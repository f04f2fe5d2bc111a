"""What training leaves: parameters and buffers by name, and its file."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from flodl_core.errors import StateError

PARAM_MARK = "params"
BUFFER_MARK = "buffers"


class TrainedState:
    """Averaged parameters and buffers on the CPU.

    Attributes:
        params: Name to tensor, in the model's order; a tied parameter is there under each of its names.
        buffers: Name to tensor, of the buffers that belong to the model's ``state_dict``.
    """

    def __init__(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        self.params = dict(params)
        self.buffers = dict(buffers)

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Copies of a model's tensors, on the CPU."""
        names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        tensors = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in model.state_dict().items()
            if isinstance(tensor, Tensor)
        }
        return cls(
            params={name: tensor for name, tensor in tensors.items() if name in names},
            buffers={name: tensor for name, tensor in tensors.items() if name not in names},
        )

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors by name, for ``nn.Module.load_state_dict``."""
        return {**self.params, **self.buffers}

    def load_into(self, model: nn.Module) -> None:
        """Give a model these parameters and buffers.

        Raises:
            StateError: Names or shapes do not fit.
        """
        try:
            model.load_state_dict(self.state_dict(), strict=True)
        except RuntimeError as error:
            raise StateError(f"the state does not fit the model: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all.

        Raises:
            OSError: The file cannot be written.
        """
        path = Path(path)
        # safetensors sorts what it stores: the model's order is kept beside it
        marks = {PARAM_MARK: "\n".join(self.params), BUFFER_MARK: "\n".join(self.buffers)}
        data = save(self.state_dict(), metadata={"format": "pt", **marks})
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            StateError: The file is missing, torn, or no safetensors file.
        """
        try:
            tensors = load_file(path)
            with safe_open(path, framework="pt") as file:
                marks = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise StateError(f"{path} cannot be read as a trained state: {error}") from error
        buffers = [name for name in marks.get(BUFFER_MARK, "").split("\n") if name in tensors]
        marked = [name for name in marks.get(PARAM_MARK, "").split("\n") if name in tensors]
        params = dict.fromkeys([*marked, *(name for name in tensors if name not in buffers)])
        return cls(
            params={name: tensors[name] for name in params},
            buffers={name: tensors[name] for name in buffers},
        )
