import numpy as np
import pytest

from edgeflow.lab.demo.flow_training.sequences import SequenceData, SequenceStudio


@pytest.fixture(scope="session")
def sequences():
    studio, rng = SequenceStudio(), np.random.default_rng(0)
    rows = [studio.shoot(rng) for _ in range(24)]
    studio.close()
    return SequenceData(**{name: np.array([row[name] for row in rows]) for name in rows[0]})
