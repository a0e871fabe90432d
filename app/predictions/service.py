"""Face of the predictions: inference, stored predictions and prediction sets."""

from app.predictions.inference import BrokenImage, InferenceEngine, LoadedRelease, UnsupportedImage
from app.predictions.stored import (
    AnswerSetQuery,
    PublishedSets,
    SetQualityOut,
    SiteThresholds,
    build_answer_set,
    champion_first_order,
    current_published_sets,
    finite_or_none,
    output_values,
    prediction_values,
    read_published_sets,
    stored_prediction,
    stored_predictions,
)
from app.predictions.wire_format import (
    HEADER_LENGTH,
    MAX_JSON,
    InferenceMessage,
    OutputTensor,
    TensorError,
    binary_parts,
    document_size,
    numbers_of,
    parameters_of,
    read_message,
    read_object_list,
    shape_of,
    texts_of,
    write_message,
)
