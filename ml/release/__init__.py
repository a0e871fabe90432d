"""Release folders: read, verify, predict; free of torch."""

import os

# ONNX Runtime of version 1.29 and later sends its maker names and digests of models and an identifier of the machine,
# unless this is set before it is loaded; whoever wants that sets it to 0
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
