"""Section: frames preprocessed on the device: equal to the host's to the bit, and how long each way takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.kernels.timing import median_us
from edgeflow.lab.gpu.section_order import Found
from edgeflow.lab.gpu.section_setting import OffError, SectionSetting
from edgeflow.policies.openvla.config import ImageConfig, TowerImage
from edgeflow.policies.openvla.preprocess import DevicePreprocessor, Preprocessor

CAMERAS = ((224, 224), (480, 640), (720, 1280), (1280, 720))
SMALL_CAMERAS = ((20, 30), (60, 24))
SAMPLES = 15
_TOWERS = (
    TowerImage((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bicubic"),
    TowerImage((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic"),
)


def frames(setting: SectionSetting) -> Found:
    """A row per camera size, of random frames as OpenVLA receives them, plain and cropped; OffError if one differs."""
    rows: list[Found] = []
    generator = np.random.default_rng(0)
    for height, width in SMALL_CAMERAS if setting.small else CAMERAS:
        image = generator.integers(0, 256, (height, width, 3), np.uint8)
        for crop in (False, True):
            config = ImageConfig(setting.size.side, "resize-naive", _TOWERS, crop)
            rows.append({"camera": f"{width}x{height}", "crop": crop, **_compared(setting, config, image)})
    found: Found = {"frames": rows}
    if not all(row["equal"] for row in rows):
        raise OffError("pixel values made on the device differ from the host's", found)
    return found


def _compared(setting: SectionSetting, config: ImageConfig, image: NDArray[np.uint8]) -> Found:
    """Milliseconds until the pixel values are on the device, and of the host's part if they are computed there."""
    on_host, on_device = Preprocessor(config), DevicePreprocessor(config, setting.device)

    def hosts() -> Tensor:
        return torch.from_numpy(on_host(image)).to(setting.device)

    def finished(make: Callable[[], Tensor]) -> None:
        make()
        if setting.cuda:
            torch.cuda.synchronize(setting.device)

    calls = {
        "host ms": lambda: finished(hosts),
        "device ms": lambda: finished(lambda: on_device(image)),
        "device, launch ms": lambda: on_device(image),
    }
    times = median_us(calls, torch.device("cpu"), SAMPLES)
    return {"equal": torch.equal(hosts(), on_device(image)), **{name: us / 1e3 for name, us in times.items()}}
