"""`python openvino_convert.py MODEL.gguf FOLDER`: an OpenVINO model with int8 weights.

OpenVINO GenAI reads the GGUF file and saves the model beside it; NNCF compresses its weights to
int8, asymmetric and per output channel, as its documentation recommends for int8.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nncf
import openvino
import openvino_genai as genai


def main() -> None:
    """Convert."""
    source, target = map(Path, sys.argv[1:])
    genai.ContinuousBatchingPipeline(
        str(source), genai.SchedulerConfig(), "CPU", {"enable_save_ov_model": True}
    )
    model = openvino.Core().read_model(source.parent / "openvino_model.xml")
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    openvino.save_model(model, target / "openvino_model.xml")


if __name__ == "__main__":
    main()
