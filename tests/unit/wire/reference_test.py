"""The decoder written from the documents and the C++ code agree on every field and every value, exactly.

Usage: reference_test.py PATH-OF-kvant_wire_dump
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "reference"))
try:
    import numpy as np
    import xxhash
except ImportError as error:
    print(f"skipped: {error} (Debian: python3-numpy python3-xxhash)")
    sys.exit(77)
import kvant_reference as reference

GOLDEN = ROOT / "tests/golden/v1"
DUMP = sys.argv.pop() if len(sys.argv) > 1 else None


def fields_text(frame):
    def text(value):
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "".join(f"{name} {text(value)}\n" for name, value in frame.fields.items())


def resealed(data, offset, patch):
    """The frame with bytes patched and a checksum that fits."""
    data = bytearray(data)
    data[offset:offset + len(patch)] = patch
    data[32:40] = bytes(8)
    data[32:40] = xxhash.xxh3_64_intdigest(bytes(data)).to_bytes(8, "little")
    return bytes(data)


def hex_blocks(document):
    text = (ROOT / "docs/format" / document).read_text()
    return {name: bytes.fromhex(body) for name, body in re.findall(r"```hex (\S+)\n(.*?)```", text, re.DOTALL)}


class SamplesTest(unittest.TestCase):
    def compare_folder(self, folder, least):
        frames = sorted(folder.glob("*.bin"))
        self.assertGreaterEqual(len(frames), least)
        for path in frames:
            with self.subTest(path.name):
                frame = reference.decode_frame(path.read_bytes())
                self.assertEqual(fields_text(frame), path.with_suffix(".fields").read_text())
                if frame.keys is not None:
                    expected = np.fromfile(path.with_suffix(".f32"), "<u4")
                    found = np.concatenate([frame.keys.ravel(), frame.values.ravel()])
                    self.assertEqual(found.dtype, np.float32)
                    np.testing.assert_array_equal(found.view("<u4"), expected)

    def test_golden_frames(self):
        self.compare_folder(GOLDEN, 16)

    def test_frames_of_every_codec_and_head_dimension(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([DUMP, "many", folder], check=True)
            self.compare_folder(pathlib.Path(folder), 60)


class TurnTest(unittest.TestCase):
    def test_the_matrix_is_its_own_inverse_and_keeps_lengths(self):
        random = np.random.default_rng(1)
        for d in (32, 64, 80, 96, 256):
            rows = random.standard_normal((3, d)).astype(np.float32)
            turned = reference.turn(rows)
            self.assertGreater(np.abs(turned - rows).max(), 0.1)
            np.testing.assert_allclose(reference.turn(turned), rows, atol=1e-5)
            np.testing.assert_allclose((turned ** 2).sum(axis=1), (rows ** 2).sum(axis=1), rtol=1e-5)


class RefusalTest(unittest.TestCase):
    def code_of(self, data):
        with self.assertRaises(reference.FormatError) as caught:
            reference.decode_frame(data)
        return caught.exception.code

    def test_damage_has_the_codes_of_the_document(self):
        done = (GOLDEN / "done.bin").read_bytes()
        self.assertEqual(self.code_of(done[:39]), 2)
        self.assertEqual(self.code_of(done[:-1]), 2)
        self.assertEqual(self.code_of(done + b"\0"), 4)
        self.assertEqual(self.code_of(b"GET " + done[4:]), 4)
        self.assertEqual(self.code_of(done[:40] + b"\1" + done[41:]), 4)
        self.assertEqual(self.code_of(resealed(done, 4, b"\2\0")), 5)
        self.assertEqual(self.code_of(resealed(done, 6, b"\x08\0")), 1)
        self.assertEqual(self.code_of(resealed(done, 8, b"\1")), 1)
        self.assertEqual(self.code_of(resealed(done, 12, b"\1")), 1)
        self.assertEqual(self.code_of(resealed(done, 16, b"\xff" * 8)), 3)
        layer = (GOLDEN / "layer_int8.bin").read_bytes()
        self.assertEqual(self.code_of(resealed(layer, 40, b"\x08")), 6)
        self.assertEqual(self.code_of(resealed(layer, 42, b"\x21")), 7)
        self.assertEqual(self.code_of(resealed(layer, 41, b"\1")), 2)
        self.assertEqual(self.code_of(resealed(layer, 12, b"\x1e")), 1)


class DocumentExamplesTest(unittest.TestCase):
    def test_frame_of_the_wire_document(self):
        self.assertEqual(hex_blocks("wire.md"), {"done.bin": (GOLDEN / "done.bin").read_bytes()})

    def test_rows_of_the_tiers_document(self):
        row = [c - 18 for c in range(35)] + [0]
        params = {"int8": (reference.INT8, 0x3089, 0), "int4": (reference.INT4, 0x4125, 0),
                  "int4-affine": (reference.INT4_AFFINE, 0x4089, 0xCC80)}
        blocks = hex_blocks("token-tiers.md")
        self.assertEqual(blocks.keys(), params.keys())
        for name, (codec, scale_bits, zero_bits) in params.items():
            codes, scale, zero = reference.encode_row(codec, row)
            self.assertEqual(codes.tobytes(), blocks[name], name)
            self.assertEqual((scale.view(np.uint16), zero.view(np.uint16)), (scale_bits, zero_bits), name)
            decoded = reference.decode_rows(codec, 36, codes[None], scale[None], zero[None])[0]
            bound = float(scale) / 2 + 18 * 2**-11
            self.assertLessEqual(np.abs(decoded - np.array(row)).max(), bound, name)


class EncoderTest(unittest.TestCase):
    """The encoding rules of the document give what the C++ encoder gave for the same rows."""

    def reencoded(self, codec, rows):
        decoded = []
        for row in rows.astype(np.float32):
            codes, scale, zero = reference.encode_row(codec, row)
            decoded.append(reference.decode_rows(codec, len(row), codes[None], scale[None], zero[None])[0])
        return np.stack(decoded)

    def test_rows_of_the_golden_layers(self):
        exact = reference.decode_frame((GOLDEN / "layer_fp16.bin").read_bytes())
        for path in sorted(GOLDEN.glob("layer_int*.bin")):
            frame = reference.decode_frame(path.read_bytes())
            codec, sinks = frame.fields["codec"], frame.fields["num_sinks"]
            encoded = slice(sinks, sinks + frame.fields["num_encoded"])
            for head in range(frame.fields["num_kv_heads"]):
                with self.subTest(path.name, head=head):
                    values = self.reencoded(codec, exact.values[head, encoded])
                    np.testing.assert_array_equal(values, frame.values[head, encoded])
                    keys = exact.keys[head, encoded]
                    if frame.fields["equalized"]:
                        mean, scale = reference.make_map(exact.keys[head, sinks:])
                        keys = reference.restore(self.reencoded(codec, reference.equalize(keys, mean, scale)), mean, scale)
                    else:
                        keys = self.reencoded(codec, keys)
                    np.testing.assert_array_equal(keys, frame.keys[head, encoded])


if __name__ == "__main__":
    unittest.main()
