"""Types of numpy arrays, by what they hold. Docstrings say their shapes."""

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Uint8s = NDArray[np.uint8]
Uint16s = NDArray[np.uint16]
Uint32s = NDArray[np.uint32]
Uint64s = NDArray[np.uint64]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
