"""What a figure was measured on."""

import os
import platform
from pathlib import Path


def describe_machine() -> str:
    """Processor, cores, system and Python, on one line; what the system does not tell is left out."""
    cores = f"{os.cpu_count()} cores"
    return ", ".join(
        part for part in (_processor(), cores, platform.system(), f"Python {platform.python_version()}") if part
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
