"""Slow, readable twin of Kvant's frame decoder and row codecs, written from docs/format/wire.md, answer.md and
token-tiers.md.

    decode_frame(bytes) -> Frame     every check of the document; FormatError carries the status code
    frame.fields                     the fields by name, in the order of the document
    frame.keys, frame.values         of a layer: fp32 arrays [kv_head, token, channel]; of an upgrade its middles and
                                     rests, [keys and values of every head, row, channel]
    encode_row, decode_rows          the rules for one row and their inverse; make_map, equalize, restore: of the keys

As a program it prints the fields of the frames it is given: kvant_reference.py FILE...
Needs numpy and xxhash.
"""
import struct
import sys
from dataclasses import dataclass

import numpy as np
import xxhash

INVALID_ARGUMENT, OUT_OF_RANGE, CAPACITY_EXCEEDED, CORRUPTION = 1, 2, 3, 4
VERSION_UNSUPPORTED, PRECISION_UNSUPPORTED, MODEL_UNSUPPORTED, NUMERIC = 5, 6, 7, 8

HEADER_BYTES = 40
MAX_PAYLOAD = 2**36
MAX_TOKENS = 2**24
MAX_LAYERS = 1024
MAX_KV_HEADS = 1024
MAX_SINKS = 128
PAGE_TOKENS = (32, 64, 128)
MAX_SKIPPED = 2**24 - 1
MAX_TEXT = 4096
MAX_GRAMMAR = 2**20
MAX_ANSWER_TEXT = 2**16
ENDLESS = 2**32 - 1

TYPES = {1: "hello", 2: "hello reply", 3: "layer", 4: "finish", 5: "done", 6: "error", 7: "cancel",
         16: "answer request", 17: "answer text", 18: "answer end",
         19: "upgrade offer", 20: "upgrade request", 21: "upgrade", 22: "session", 23: "maps"}
OF_A_LAYER = ("layer", "upgrade request", "upgrade", "maps")
FP16, INT8, INT4, INT4_AFFINE = range(4)
BITS = {FP16: 16, INT8: 8, INT4: 4, INT4_AFFINE: 4}
TIERS, PROGRESSIVE = 4, 5  # the codec bytes where every token has a tier of its own: of plain codecs, of one code
PAIRS = 6  # pair pages
INT4_PAGES = 7  # tiers, the first int4 tokens in pages
WITH_TIERS = (TIERS, PROGRESSIVE, INT4_PAGES)
INT4_PAGE_TOKENS = 128
TIER_NAMES = ("fp16", "int8", "int4", "dropped")


class FormatError(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


@dataclass
class Frame:
    fields: dict
    keys: np.ndarray = None
    values: np.ndarray = None


def require(condition, code, text):
    if not condition:
        raise FormatError(code, text)


def in_range(name, value, low, high):
    require(low <= value <= high, INVALID_ARGUMENT, f"{name} {value}, must be {low} to {high}")


class Reader:
    """Takes fields off the front of a payload."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form, *names):
        size = struct.calcsize("<" + form)
        require(self.at + size <= len(self.data), OUT_OF_RANGE, "the payload ends early")
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += size
        return dict(zip(names, values)) if names else values

    def array(self, dtype, *shape):
        count = int(np.prod(shape))
        array = np.frombuffer(self.data, np.dtype(dtype).newbyteorder("<"), count, self.at).reshape(shape)
        self.at += array.nbytes
        return array

    def rest(self, size):
        require(len(self.data) - self.at == size, OUT_OF_RANGE, "the payload has another size than its content needs")


# ---- rows: token-tiers.md ----

def row_bytes(codec, d):
    return {16: 2 * d, 8: d, 4: 4 * -(-d // 8)}[BITS[codec]]


def unpack_codes(codec, d, rows):
    """Rows of code bytes [n, row_bytes] to codes [n, d]."""
    if codec == INT8:
        return rows[:, :d]
    count, size = rows.shape
    groups = rows.reshape(count, size // 4, 4)
    return np.concatenate([groups & 15, groups >> 4], axis=2).reshape(count, 2 * size)[:, :d]


def pack_codes(codec, codes):
    """The inverse for one row."""
    if codec == INT8:
        return codes.astype(np.uint8)
    padded = np.zeros(8 * -(-len(codes) // 8), np.uint8)
    padded[: len(codes)] = codes
    groups = padded.reshape(-1, 2, 4)
    return (groups[:, 0] | groups[:, 1] << 4).reshape(-1)


def decode_rows(codec, d, rows, scales, zeros):
    """Rows to fp32 [n, d]; scales and zeros [n] fp16, zeros None unless affine."""
    codes = unpack_codes(codec, d, rows).astype(np.float32)
    scale = scales.astype(np.float32)[:, None]
    if codec == INT4_AFFINE:
        return scale * codes + zeros.astype(np.float32)[:, None]
    return scale * (codes - np.float32(2 ** (BITS[codec] - 1)))


def encode_row(codec, x):
    """One fp32 row to (code bytes, scale, zero)."""
    x = np.asarray(x, np.float32)
    bits = BITS[codec]
    if codec == INT4_AFFINE:
        low, high, bias = 0, 15, 0
        zero = np.float16(x.min())
        scale = np.float16(max(x.max() - np.float32(zero), np.float32(0)) / np.float32(high))
    else:
        high, bias = 2 ** (bits - 1) - 1, 2 ** (bits - 1)
        low, zero = -high, np.float16(0)
        scale = np.float16(np.abs(x).max() / np.float32(high))
    inverse = np.float32(1) / np.float32(scale) if scale != 0 else np.float32(0)
    codes = np.clip(np.rint((x - np.float32(zero)) * inverse), low, high) + bias
    return pack_codes(codec, codes.astype(np.uint8)), scale, zero


def make_map(keys):
    """Keys [n, d] beyond the sinks of one KV head to their mean and scale, [d] fp16 each."""
    mean = (keys.astype(np.float64).sum(axis=0) / len(keys)).astype(np.float32).astype(np.float16)
    largest = np.abs(keys - mean.astype(np.float32)).max(axis=0)
    largest = np.minimum(largest, np.float32(65504))
    return mean, np.where(largest < 2**-14, np.float32(1), largest).astype(np.float16)


def equalize(keys, mean, scale):
    row = (keys - mean.astype(np.float32)) / scale.astype(np.float32)
    return np.clip(row, -65504, 65504).astype(np.float16)


def restore(keys, mean, scale):
    return keys * scale.astype(np.float32) + mean.astype(np.float32)


# ---- frames: wire.md ----

def decode_frame(data):
    require(len(data) >= HEADER_BYTES, OUT_OF_RANGE, "shorter than a header")
    magic, version, kind, flags, layer, size, session, checksum = struct.unpack_from("<4sHHIIQQQ", data)
    require(magic == b"KVNT", CORRUPTION, "magic")
    require(version == 1, VERSION_UNSUPPORTED, f"version {version}")
    require(size <= MAX_PAYLOAD, CAPACITY_EXCEEDED, f"payload of {size} bytes")
    require(len(data) >= HEADER_BYTES + size, OUT_OF_RANGE, "truncated")
    require(len(data) == HEADER_BYTES + size, CORRUPTION, "bytes after the payload")
    zeroed = data[:32] + bytes(8) + data[HEADER_BYTES:]
    require(checksum == xxhash.xxh3_64_intdigest(zeroed), CORRUPTION, "checksum")
    require(kind in TYPES, INVALID_ARGUMENT, f"type {kind}")
    in_range("flags", flags, 0, 0)
    in_range("layer", layer, 0, MAX_LAYERS - 1 if TYPES[kind] in OF_A_LAYER else 0)
    frame = Frame({"version": version, "type": TYPES[kind], "session": session, "layer": layer})
    DECODERS[TYPES[kind]](Reader(data[HEADER_BYTES:]), frame)
    return frame


def check_shape(fields):
    in_range("num_layers", fields["num_layers"], 1, MAX_LAYERS)
    in_range("num_kv_heads", fields["num_kv_heads"], 1, MAX_KV_HEADS)
    d = fields["head_dim"]
    require(32 <= d <= 256 and d % 4 == 0, MODEL_UNSUPPORTED, f"head dimension {d}")


def check_codec(fields):
    require(fields["codec"] <= INT4_PAGES, PRECISION_UNSUPPORTED, f"codec {fields['codec']}")


def decode_hello(reader, frame):
    fields = reader.take(
        "IIIIQQIIQIIBBHI", "protocol", "num_layers", "num_kv_heads", "head_dim", "model_fingerprint",
        "tokenizer_fingerprint", "rope_layout", "rope_base_bits", "rope_digest", "num_prompt_tokens",
        "num_context_tokens", "codec", "equalize", "sinks", "residual")
    reader.rest(0)
    check_codec(fields)
    in_range("equalize", fields["equalize"], 0, 1)
    check_shape(fields)
    in_range("rope_layout", fields["rope_layout"], 0, 2)
    base = np.uint32(fields["rope_base_bits"]).view(np.float32)
    require(np.isfinite(base), INVALID_ARGUMENT, "rope_base")
    in_range("num_prompt_tokens", fields["num_prompt_tokens"], 1, MAX_TOKENS)
    in_range("num_context_tokens", fields["num_context_tokens"], fields["num_prompt_tokens"], MAX_TOKENS)
    codec = fields["codec"]
    if codec == FP16:
        exact = (fields["equalize"], fields["sinks"], fields["residual"]) == (0, 0, ENDLESS)
        require(exact, INVALID_ARGUMENT, "fp16 with options")
    else:
        in_range("sinks", fields["sinks"], 0, MAX_SINKS)
        if codec == PAIRS:
            require(fields["equalize"] == 0 and fields["residual"] in PAGE_TOKENS, INVALID_ARGUMENT, "pair pages")
        if fields["residual"] != ENDLESS:
            in_range("residual", fields["residual"], 1, 128)
        wrong = (codec == INT4 and fields["equalize"] == 1) or (codec == INT4_AFFINE and fields["equalize"] == 0)
        wrong = wrong or (codec == PROGRESSIVE and fields["equalize"] == 0)
        require(not wrong, INVALID_ARGUMENT, "codec and equalize")
        if codec == INT4_PAGES:
            require(fields["head_dim"] % 16 == 0, MODEL_UNSUPPORTED, f"head dimension {fields['head_dim']}")
    frame.fields.update(fields)


def decode_verdict(first_code):
    def decode(reader, frame):
        code, size = reader.take("II")
        in_range("status code", code, first_code, 16)
        in_range("text bytes", size, 0, 0 if code == 0 else MAX_TEXT)
        reader.rest(size)
        text = reader.data[reader.at:]
        require(all(0x20 <= byte <= 0x7E for byte in text), INVALID_ARGUMENT, "text is not printable")
        frame.fields.update(code=code, text=text.decode("ascii"))
    return decode


def decode_layer(reader, frame):
    fields = reader.take("BBHIIIII", "codec", "equalized", "head_dim", "num_kv_heads", "num_layers", "num_sinks",
                         "num_encoded", "num_tail")
    check_codec(fields)
    in_range("equalized", fields["equalized"], 0, 1)
    check_shape(fields)
    in_range("layer", frame.fields["layer"], 0, fields["num_layers"] - 1)
    skipped = fields["num_sinks"] >> 8
    fields["num_sinks"] &= 255
    in_range("num_sinks", fields["num_sinks"], 0, MAX_SINKS)
    in_range("num_encoded", fields["num_encoded"], 0, MAX_TOKENS)
    in_range("num_tail", fields["num_tail"], 0, MAX_TOKENS)
    in_range("num_skipped", skipped, 0, MAX_SKIPPED)
    total = fields["num_sinks"] + fields["num_encoded"] + fields["num_tail"]
    in_range("tokens", total, 1, MAX_TOKENS - skipped)
    if skipped:
        fields["num_skipped"] = skipped
    if fields["codec"] == PROGRESSIVE and fields["num_encoded"] > 0:
        require(fields["equalized"] == 1, INVALID_ARGUMENT, "the progressive code without equalization")
    if fields["equalized"]:
        require(fields["codec"] != FP16, INVALID_ARGUMENT, "equalized")
    if fields["codec"] == PAIRS:
        decode_pair_layer(reader, frame, fields)
        return
    counts_bytes = 0
    if fields["codec"] in WITH_TIERS:
        counts_bytes = 16
        fields.update(reader.take("IIII", *TIER_NAMES))
        total = sum(fields[name] for name in TIER_NAMES)
        in_range("tokens in tiers", total, fields["num_encoded"], fields["num_encoded"])
    if fields["codec"] == INT4_PAGES:
        counts_bytes += 8
        fields.update(reader.take("II", "int4_rows_before", "int4_pages"))
        require(fields["head_dim"] % 16 == 0, MODEL_UNSUPPORTED, f"head dimension {fields['head_dim']}")
        in_range("pages", fields["int4_pages"], 0, fields["int4"] // INT4_PAGE_TOKENS)
        in_range("rows before pages", fields["int4_rows_before"], 0, fields["int4"] - paged_tokens(fields))
    size = counts_bytes + block_bytes(fields)
    require(size <= MAX_PAYLOAD - 24, CAPACITY_EXCEEDED, f"a block of {size} bytes")
    reader.rest(size - counts_bytes)
    frame.fields.update(fields)
    frame.keys, frame.values = decode_block(reader, fields)


# ---- pair pages: pair-pages.md ----

def take_pair_format(reader, d):
    version, bits, tokens, group, key_rule, value_rule, turned, pairs, key_bits, one_bit, *zeros = reader.take(
        "BBHHBBBBHBBBB")
    require(version == 1, VERSION_UNSUPPORTED, f"pair pages of version {version}")
    for name, value in (("key rule", key_rule), ("value rule", value_rule), ("turned", turned), ("pairs", pairs)):
        in_range(name, value, 0, 1)
    in_range("one-bit rule", one_bit, 0, 2)
    for zero in zeros:
        in_range("reserved", zero, 0, 0)
    require(d % 16 == 0, MODEL_UNSUPPORTED, f"head dimension {d}")
    require(tokens in PAGE_TOKENS and bits in (2, 3, 4, 8), INVALID_ARGUMENT, "page")
    require(group > 0 and group % 16 == 0 and d % group == 0, INVALID_ARGUMENT, f"value group {group}")
    require(d <= key_bits <= 4 * d and key_bits % 2 == 0, INVALID_ARGUMENT, f"key bits {key_bits}")
    return dict(value_bits=bits, page_tokens=tokens, value_group=group, key_rule=key_rule, value_rule=value_rule,
                turned=turned, pairs=pairs, key_bits=key_bits, one_bit=one_bit)


def take_widths(reader, d, key_bits):
    packed = reader.array(np.uint8, d // 4)
    widths = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)
    require(((widths >= 1) & (widths <= 4)).all() and 2 * int(widths.sum()) == key_bits, CORRUPTION, "width map")
    return widths


def decode_pair_layer(reader, frame, fields):
    require(fields["equalized"] == 0, INVALID_ARGUMENT, "equalized pair pages")
    d, h, e = fields["head_dim"], fields["num_kv_heads"], fields["num_encoded"]
    form = take_pair_format(reader, d)
    bits, tokens, group = form["value_bits"], form["page_tokens"], form["value_group"]
    key_bits, pairs, turned = form["key_bits"], form["pairs"], form["turned"]
    require(e % tokens == 0, INVALID_ARGUMENT, f"{e} tokens in pages of {tokens}")
    page = key_bits * tokens // 8 + 4 * d + tokens * d * bits // 8 + 4 * tokens * d // group
    exact = fields["num_sinks"] + fields["num_tail"]
    size = h * (d // 4 + e // tokens * page + 4 * d * exact)
    require(16 + size <= MAX_PAYLOAD - 24, CAPACITY_EXCEEDED, f"a block of {size} bytes")
    reader.rest(size)
    fields.update(form)
    maps = []
    for _ in range(h):
        widths = take_widths(reader, d, key_bits)
        maps.append(np.repeat(widths, 2) if pairs else np.concatenate([widths, widths]))
    keys, values = [], []
    for head in range(h):
        parts = [(exact_rows(reader, fields["num_sinks"], d), exact_rows(reader, fields["num_sinks"], d))]
        for _ in range(e // tokens):
            page_keys, page_values = decode_pair_page(reader, maps[head], tokens, bits, group)
            parts.append((page_keys, turn(page_values) if turned else page_values))
        parts.append((exact_rows(reader, fields["num_tail"], d), exact_rows(reader, fields["num_tail"], d)))
        keys.append(np.concatenate([part[0] for part in parts]))
        values.append(np.concatenate([part[1] for part in parts]))
    frame.fields.update(fields)
    frame.keys, frame.values = np.stack(keys), np.stack(values)


def decode_pair_page(reader, widths, tokens, bits, group):
    """One KV head's page; widths [d]. Returns keys, values [tokens, d] fp32."""
    d = len(widths)
    codes = np.zeros((tokens, d), np.float32)
    for plane in range(4):
        for channel in np.flatnonzero(widths > plane):
            packed = reader.array(np.uint8, tokens // 8)
            codes[:, channel] += np.unpackbits(packed, bitorder="little").astype(np.float32) * np.float32(2 ** plane)
    scales, zeros = (reader.array(np.float16, d).astype(np.float32) for _ in "sz")
    keys = scales * codes + zeros
    rows = np.unpackbits(reader.array(np.uint8, tokens, d * bits // 8), axis=1, bitorder="little")
    weights = (2 ** np.arange(bits)).astype(np.float32)
    codes = (rows.reshape(tokens, d, bits).astype(np.float32) * weights).sum(axis=2)
    scales, zeros = (np.repeat(reader.array(np.float16, tokens, d // group).astype(np.float32), group, axis=1)
                     for _ in "sz")
    return keys, scales * codes + zeros


def turn(rows):
    """Rows by the orthonormal Hadamard matrix of pair-pages.md, by its definition."""
    d = rows.shape[1]
    size = d & -d
    common = np.bitwise_and.outer(np.arange(size), np.arange(size))
    parity = sum(common >> bit & 1 for bit in range(8)) & 1
    matrix = (1 - 2 * parity) / np.sqrt(size)
    return (rows.reshape(-1, size).astype(np.float64) @ matrix).reshape(rows.shape).astype(np.float32)


def tiers_of(fields):
    """The encoded tokens by tier: (name, rows, count), best first; of a plain precision there is one."""
    if fields["codec"] < TIERS:
        name = {16: "fp16", 8: "int8", 4: "int4"}[BITS[fields["codec"]]]
        return [(name, PlainRows(fields["codec"]), fields["num_encoded"])]
    if fields["codec"] == PROGRESSIVE:
        return [(name, ProgressiveRows(bits), fields[name]) for name, bits in (("fp16", 16), ("int8", 8), ("int4", 4))]
    int4 = INT4_AFFINE if fields["equalized"] else INT4
    rows = {name: fields[name] for name in TIER_NAMES}
    rows["int4"] -= paged_tokens(fields)
    return [(name, PlainRows(codec), rows[name]) for name, codec in (("fp16", FP16), ("int8", INT8), ("int4", int4))]


def paged_tokens(fields):
    return INT4_PAGE_TOKENS * fields.get("int4_pages", 0)


def int4_page_bytes(d):
    return 4 * d * INT4_PAGE_TOKENS // 8 + 4 * d + INT4_PAGE_TOKENS * d * 4 // 8 + 4 * INT4_PAGE_TOKENS


def tier_id_bytes(fields):
    mixed = fields["codec"] in WITH_TIERS and sum(fields[name] > 0 for name in TIER_NAMES) > 1
    return 2 * -(-fields["num_encoded"] // 8) if mixed else 0


def block_bytes(fields):
    """Of everything but the tier counts."""
    d, h = fields["head_dim"], fields["num_kv_heads"]
    exact = fields["num_sinks"] + fields["num_tail"]
    rows = sum(count * rows_of_tier.size(d) for _, rows_of_tier, count in tiers_of(fields))
    pages = fields.get("int4_pages", 0) * int4_page_bytes(d)
    return 4 * h * d * fields["equalized"] + h * (4 * d * exact + tier_id_bytes(fields) + 2 * rows + pages)


def tier_ids(reader, fields):
    """The tier of each encoded token of one KV head."""
    count, size = fields["num_encoded"], tier_id_bytes(fields)
    if size == 0:
        only = [name for name in TIER_NAMES if fields.get(name, 0) > 0]
        return np.full(count, TIER_NAMES.index(only[0]) if only else 0)
    packed = reader.array(np.uint8, size)
    ids = (packed[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1)
    require(not ids[count:].any(), CORRUPTION, "bits beyond the last tier id")
    expected = [fields[name] for name in TIER_NAMES]
    require(np.bincount(ids[:count], minlength=4).tolist() == expected, CORRUPTION, "tier ids are not as announced")
    return ids[:count]


def decode_block(reader, fields):
    d, h = fields["head_dim"], fields["num_kv_heads"]
    s, e, r = fields["num_sinks"], fields["num_encoded"], fields["num_tail"]
    if fields["equalized"]:
        mean, scale = reader.array(np.float16, h, d), reader.array(np.float16, h, d)
    keys, values = [], []
    for head in range(h):
        sink_keys, sink_values = exact_rows(reader, s, d), exact_rows(reader, s, d)
        ids = tier_ids(reader, fields)
        encoded_keys, encoded_values = np.full((2, e, d), np.nan, np.float32)
        for name, rows, count in tiers_of(fields):
            where = np.flatnonzero(ids == TIER_NAMES.index(name)) if fields["codec"] in WITH_TIERS else np.arange(e)
            first = fields.get("int4_rows_before", 0) if name == "int4" else 0
            in_pages = where[first:first + paged_tokens(fields)] if name == "int4" else where[:0]
            where = np.concatenate([where[:first], where[first + len(in_pages):]])
            tier_keys, tier_values = rows.take(reader, count, d), rows.take(reader, count, d)
            if fields["equalized"] and rows.equalized:
                tier_keys = restore(tier_keys, mean[head], scale[head])
            encoded_keys[where], encoded_values[where] = tier_keys, tier_values
        for first in range(0, len(in_pages), INT4_PAGE_TOKENS):  # int4 is the last tier
            page = in_pages[first:first + INT4_PAGE_TOKENS]
            widths = np.full(d, 4)
            encoded_keys[page], encoded_values[page] = decode_pair_page(reader, widths, INT4_PAGE_TOKENS, 4, d)
        tail_keys, tail_values = exact_rows(reader, r, d), exact_rows(reader, r, d)
        keys.append(np.concatenate([sink_keys, encoded_keys, tail_keys]))
        values.append(np.concatenate([sink_values, encoded_values, tail_values]))
    return np.stack(keys), np.stack(values)


def exact_rows(reader, count, d):
    return reader.array(np.float16, count, d).astype(np.float32)


class PlainRows:
    """Rows of one of the codecs 0 to 3."""

    def __init__(self, codec):
        self.codec, self.equalized = codec, codec != FP16

    def size(self, d):
        return row_bytes(self.codec, d) + 2 * (self.codec != FP16) + 2 * (self.codec == INT4_AFFINE)

    def take(self, reader, count, d):
        if self.codec == FP16:
            return exact_rows(reader, count, d)
        rows = reader.array(np.uint8, count, row_bytes(self.codec, d))
        scales = reader.array(np.float16, count)
        zeros = reader.array(np.float16, count) if self.codec == INT4_AFFINE else None
        return decode_rows(self.codec, d, rows, scales, zeros)


class ProgressiveRows:
    """Rows of the progressive code: 4 bits are the top plane, 8 the int8 code, 16 that and the rest."""
    equalized = True

    def __init__(self, bits):
        self.bits = bits

    def size(self, d):
        return self.code_bytes(d) + 2

    def code_bytes(self, d):
        return row_bytes(INT4, d) if self.bits == 4 else d * self.bits // 8

    def take(self, reader, count, d):
        rows = reader.array(np.uint8, count, self.code_bytes(d))
        scale = reader.array(np.float16, count).astype(np.float32)[:, None]
        if self.bits == 4:
            code = unpack_codes(INT4, d, rows).astype(np.float32) * np.float32(16) + np.float32(7.5)
        else:
            code = rows[:, :d].astype(np.float32)
        if self.bits == 16:
            code = code + (rows[:, d:].astype(np.float32) - np.float32(128)) / np.float32(256)
        return scale * (code - np.float32(128))


def decode_finish(reader, frame):
    fields = reader.take("QQiII", "seed", "num_draws", "first_token", "first_position", "count")
    count = fields.pop("count")
    in_range("prompt tokens", count, 1, MAX_TOKENS)
    reader.rest(4 * count)
    in_range("first_position", fields["first_position"], 0, MAX_TOKENS)
    tokens = reader.array(np.int32, count)
    require(fields["first_token"] >= 0 and (tokens >= 0).all(), INVALID_ARGUMENT, "a negative token id")
    frame.fields.update(fields, prompt_tokens=tokens.tolist())


def decode_done(reader, frame):
    frame.fields.update(reader.take("QI", "received_bytes", "num_layers"))
    reader.rest(0)


def decode_cancel(reader, frame):
    reader.rest(0)


# ---- answers: answer.md ----

def number(fields, name, form):
    """Numbers with a fraction are kept by their bits, so that they can be compared exactly."""
    value = struct.unpack("<" + form, struct.pack("<" + {"f": "I", "d": "Q"}[form], fields[name]))[0]
    require(np.isfinite(value) and value >= 0, INVALID_ARGUMENT, name)


def decode_answer_request(reader, frame):
    fields = reader.take("IIIIiIIIiII", "answer_version", "max_tokens", "ignore_eos", "temperature_bits", "top_k",
                         "top_p_bits", "min_p_bits", "repeat_penalty_bits", "repeat_last_n", "seed", "size")
    require(fields["answer_version"] == 1, VERSION_UNSUPPORTED, f"answer version {fields['answer_version']}")
    in_range("max_tokens", fields["max_tokens"], 1, MAX_TOKENS)
    in_range("flags", fields["ignore_eos"], 0, 1)
    for name in ("temperature_bits", "top_p_bits", "min_p_bits", "repeat_penalty_bits"):
        number(fields, name, "f")
    size = fields.pop("size")
    in_range("grammar bytes", size, 0, MAX_GRAMMAR)
    reader.rest(size)
    grammar = reader.data[reader.at:].decode("utf-8", "surrogateescape")
    frame.fields.update(fields, grammar=grammar)


def decode_answer_text(reader, frame):
    fields = reader.take("QII", "microseconds", "tokens", "size")
    in_range("tokens", fields["tokens"], 0, MAX_TOKENS)
    size = fields.pop("size")
    in_range("text bytes", size, 1, MAX_ANSWER_TEXT)
    reader.rest(size)
    try:
        text = reader.data[reader.at:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(INVALID_ARGUMENT, f"text: {error}") from error
    frame.fields.update(fields, text=text)


def decode_answer_end(reader, frame):
    fields = reader.take("IIQQQQQQQQQQII", "reason", "tokens", "decode_microseconds", "kv_bytes", "kv_bytes_fp16",
                         "kv_bytes_allocated", "payload_bits_bits", "effective_bits_bits", "fp16_bits", "int8_bits",
                         "int4_bits", "dropped_bits", "received_encoded", "received_exact")
    reader.rest(0)
    in_range("reason", fields["reason"], 0, 1)
    in_range("tokens", fields["tokens"], 0, MAX_TOKENS)
    for name in fields:
        if name.endswith("_bits"):
            number(fields, name, "d")
    in_range("received encoded", fields["received_encoded"], 0, MAX_TOKENS)
    in_range("received exact", fields["received_exact"], 0, MAX_TOKENS)
    frame.fields.update(fields)


# ---- upgrades: wire.md ----

def decode_upgrade_offer(reader, frame):
    (layers,) = reader.take("I")
    in_range("layers", layers, 1, MAX_LAYERS)
    reader.rest(16 * layers)
    counts = reader.array(np.uint32, layers, 4)
    for row in counts.astype(np.uint64).sum(axis=1):
        in_range("tokens in tiers", row, 0, MAX_TOKENS)
    frame.fields.update(counts=counts.ravel().tolist())


def decode_upgrade(with_planes):
    def decode(reader, frame):
        fields = reader.take("HHIIIII", "head_dim", "num_layers", "num_kv_heads", "num_tokens", "int4_to_int8",
                             "int4_to_fp16", "int8_to_fp16")
        check_shape(fields)
        in_range("layer", frame.fields["layer"], 0, fields["num_layers"] - 1)
        in_range("tokens", fields["num_tokens"], 1, MAX_TOKENS)
        moves = [fields[name] for name in ("int4_to_int8", "int4_to_fp16", "int8_to_fp16")]
        for count in moves:
            in_range("raised", count, 0, MAX_TOKENS)
        in_range("raised tokens", sum(moves), 1, fields["num_tokens"])
        d, h, n = fields["head_dim"], fields["num_kv_heads"], fields["num_tokens"]
        middles, rests = moves[0] + moves[1], moves[1] + moves[2]
        planes = 2 * (middles * row_bytes(INT4, d) + rests * d) if with_planes else 0
        size = h * (2 * -(-n // 8) + planes)
        require(size <= MAX_PAYLOAD - 24, CAPACITY_EXCEEDED, f"an upgrade of {size} bytes")
        reader.rest(size)
        ids, taken = [], [[], []]
        for _ in range(h):
            packed = reader.array(np.uint8, 2 * -(-n // 8))
            head = (packed[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1)
            require(with_planes or not head[n:].any(), CORRUPTION, "bits beyond the last tier id")
            ids.extend(head[:n].tolist())
            if with_planes:
                taken[0] += [unpack_codes(INT4, d, reader.array(np.uint8, middles, row_bytes(INT4, d))) for _ in "kv"]
                taken[1] += [reader.array(np.uint8, rests, d) for _ in "kv"]
        frame.fields.update(fields, tier_ids=ids)
        if with_planes:
            frame.keys, frame.values = (np.stack(each).astype(np.float32) for each in taken)
    return decode


def decode_session(reader, frame):
    (size,) = reader.take("I")
    in_range("precision bytes", size, 1, MAX_TEXT)
    reader.rest(size)
    text = reader.data[reader.at:]
    require(all(0x20 <= byte <= 0x7E for byte in text), INVALID_ARGUMENT, "precision is not printable")
    frame.fields.update(precision=text.decode("ascii"))


def decode_maps(reader, frame):
    (kind,) = reader.take("I")
    fields = reader.take("III", "num_layers", "num_kv_heads", "head_dim")
    (zero,) = reader.take("Q")
    in_range("kind of maps", kind, 1, 2)
    check_shape(fields)
    in_range("layer", frame.fields["layer"], 0, fields["num_layers"] - 1)
    in_range("reserved", zero, 0, 0)
    h, d = fields["num_kv_heads"], fields["head_dim"]
    if kind == 1:
        reader.rest(16 + h * (d // 4))
        fields.update(take_pair_format(reader, d))
        fields["widths"] = np.concatenate([take_widths(reader, d, fields["key_bits"]) for _ in range(h)]).tolist()
    else:
        reader.rest(4 * h * d)
        mean, scale = (reader.array(np.uint16, h * d) for _ in "ms")
        require(((mean & 0x7C00) != 0x7C00).all() and ((scale > 0) & (scale < 0x7C00)).all(), NUMERIC, "equalization")
        fields["half_bits"] = mean.tolist() + scale.tolist()
    frame.fields.update(fields)


DECODERS = {
    "hello": decode_hello, "hello reply": decode_verdict(0), "layer": decode_layer, "finish": decode_finish,
    "done": decode_done, "error": decode_verdict(1), "cancel": decode_cancel,
    "answer request": decode_answer_request, "answer text": decode_answer_text, "answer end": decode_answer_end,
    "upgrade offer": decode_upgrade_offer, "upgrade request": decode_upgrade(False), "upgrade": decode_upgrade(True),
    "session": decode_session, "maps": decode_maps,
}


def main(paths):
    for path in paths:
        with open(path, "rb") as file:
            try:
                fields = decode_frame(file.read()).fields
            except FormatError as error:
                print(f"{path}: refused with code {error.code}: {error}", file=sys.stderr)
                return 1
        print(path, *(f"{name}={value}" for name, value in fields.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
