"""Public bug reports of layouts, contexts and sessions, on the real program: reports_test.py KVANT KVANT_FIXTURE"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

KVANT, FIXTURE = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("KVANT_")} | {"KVANT_THREADS": "1"}
PROMPT = "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG AND RUNS AWAY " * 4  # 232 tokens of the tiny model, a byte each
TOKEN_TIERS = ("fp16", "int8", "int4", "spectrum:b=0.4", "progressive:b=0.4")
PAIRS = ("pnmix:3/1@50%,v=2", "pairs:2.0,v=2", "pairs:2.0,v=3", "pairs:2.0,v=4", "pairs:2.0,v=8")
EVERY_KIND = TOKEN_TIERS + PAIRS
KEPT = tuple(kv for kv in EVERY_KIND if not kv.startswith("progressive"))
PLACES = 20  # of damage


class ReportsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.tiny = cls.model("tiny")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def model(cls, name, *words):
        path = str(cls.dir / f"{name}.gguf")
        subprocess.run([FIXTURE, "tiny", path, *words], check=True, capture_output=True)
        return path

    def run_kvant(self, *words, status=0):
        done = subprocess.run([KVANT, *words], env=CLEAN, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, status, f"{words}\n{done.stdout}\n{done.stderr}")
        return done

    def generate(self, *words, prompt=PROMPT, tokens="8", model=None, status=0):
        done = self.run_kvant("generate", "-m", model or self.tiny, "--raw", "-p", prompt, "-n", tokens, "--ignore-eos",
                              "--json", *words, status=status)
        return json.loads(done.stdout)

    def refused(self, *words, status, texts, **more):
        message = self.generate(*words, status=status, **more)["error"]["message"]
        for text in texts:
            self.assertIn(text, message)

    # R07: what is reported of generated tokens is what their format takes

    def test_reported_bytes_follow_the_formula_while_tokens_are_generated(self):
        layers, heads, dim, sinks, page = 2, 2, 32, 4, 32
        prompt = PROMPT[:36]
        page_bytes = page * (2 * dim) // 8 + 4 * dim + page * (dim * 2 // 8 + 4)
        for tokens in (1, 31, 32, 33, 65, 129, 200):
            report = self.generate("--kv", f"pairs:2.0,v=2,g={page},sinks={sinks}", prompt=prompt, tokens=str(tokens))
            stored = report["prompt_tokens"] + tokens - 1
            pages = (stored - sinks) // page
            exact = (stored - pages * page) * 4 * dim
            self.assertEqual(report["kv_bytes"], layers * (16 + heads * (dim // 4 + pages * page_bytes + exact)))
            self.assertEqual(report["kv_bytes_fp16"], layers * heads * stored * 4 * dim)

    def test_reported_bytes_are_those_of_the_file_that_keeps_them(self):
        for kv in KEPT:
            path = self.dir / "size.session"
            path.unlink(missing_ok=True)
            report = self.generate("--kv", kv, "--session", str(path), tokens="40")
            around = path.stat().st_size - report["kv_bytes"]
            tokens = 4 * (report["prompt_tokens"] + 39)
            self.assertGreaterEqual(around, tokens, kv)
            self.assertLess(around, tokens + 1500, kv)  # headers of six frames

    # R13, R15: shapes

    def test_head_sizes_work_or_are_refused_before_anything_is_computed(self):
        for size in (40, 48, 80, 96, 100):
            model = self.model(f"head{size}", "--head-dim", str(size))
            for kv in EVERY_KIND:
                with self.subTest(size=size, kv=kv):
                    if kv in PAIRS and size % 16 != 0:
                        named = (f"head dimension {size}", "groups of 16 channels", kv.split(":")[0])
                        self.refused("--kv", kv, model=model, status=1, texts=named)
                        self.refused("--disaggregated", "--wire", kv, model=model, status=1, texts=named)
                    else:
                        self.assertEqual(self.generate("--kv", kv, model=model)["completion_tokens"], 8)

    def test_value_groups_work_or_are_refused_with_head_size_and_group(self):
        for size in (40, 48, 80, 96, 100):
            model = self.model(f"head{size}", "--head-dim", str(size))
            for group in (16, 32, 64, 128, 256):
                kv = f"pairs:2.0,vg={group}"
                with self.subTest(size=size, kv=kv):
                    if size % 16 != 0:
                        self.refused("--kv", kv, model=model, status=1, texts=(f"head dimension {size}",))
                    elif size % group != 0:
                        named = (f"groups of {group} channels", f"head dimension of {size}")
                        self.refused("--kv", kv, model=model, status=2, texts=named)
                    else:
                        self.assertEqual(self.generate("--kv", kv, model=model)["completion_tokens"], 8)

    def test_a_refused_shape_costs_no_prompt(self):
        model = self.model("head40", "--head-dim", "40")
        frames = self.dir / "refused.frames"
        self.refused("--disaggregated", "--wire", "pairs:2.0", "--save-frames", str(frames), model=model, status=1,
                     texts=("head dimension 40",))
        done = self.run_kvant("inspect", "--json", str(frames))
        self.assertEqual([frame["type"] for frame in json.loads(done.stdout)["files"][0]["frames"]], ["error"])
        text = self.dir / "text.txt"
        text.write_text(PROMPT * 3)
        done = self.run_kvant("eval", "ppl", "-m", model, "--text", str(text), "--window-tokens", "400",
                              "--prompt-tokens", "300", "--kv", "int8,pairs:2.0", "--json", status=1)
        self.assertIn("head dimension 40", json.loads(done.stdout)["error"]["message"])

    def assert_int8_is_close(self, model):
        """Of random weights two tokens are often as likely as each other: distributions are compared, not texts."""
        text = self.dir / "text.txt"
        text.write_text(PROMPT * 3)
        done = self.run_kvant("eval", "ppl", "-m", model, "--text", str(text), "--window-tokens", "400",
                              "--prompt-tokens", "300", "--kv", "int8,int4", "--json")
        values = {(row["kv"], row["metric"]): row["value"] for row in json.loads(done.stdout)["results"]}
        self.assertLess(abs(values["int8", "perplexity_change_percent"]), 1.5, model)
        self.assertLess(values["int8", "kl"], 0.005, model)
        self.assertGreater(values["int8", "kl"], 0, "nothing was quantized")
        self.assertLess(10 * values["int8", "kl"], values["int4", "kl"], model)

    def test_int8_stays_close_to_fp16_at_every_head_size(self):
        for size in (40, 48, 80, 96, 100):
            self.assert_int8_is_close(self.model(f"head{size}", "--head-dim", str(size)))

    def test_grouped_queries_stay_close_to_fp16_and_answer_alike_locally_and_sent(self):
        whole = PROMPT + PROMPT[:28]  # 4 sinks and 256 tokens: both ways encode the same ones
        for heads, kv_heads in ((8, 1), (4, 4), (9, 3), (12, 4)):
            model = self.model(f"heads{heads}", "--heads", str(heads), "--kv-heads", str(kv_heads))
            self.assert_int8_is_close(model)
            for kv in EVERY_KIND:
                with self.subTest(heads=heads, kv=kv):
                    local = self.generate("--kv", kv, model=model, prompt=whole)
                    sent = self.generate("--disaggregated", "--wire", kv, model=model, prompt=whole)
                    self.assertEqual((local["prompt_tokens"], local["completion_tokens"]), (260, 8))
                    self.assertEqual((sent["text"], sent["kv_bytes"]), (local["text"], local["kv_bytes"]))

    def test_heads_that_do_not_divide_are_refused_at_load(self):
        model = self.model("heads5", "--heads", "5", "--kv-heads", "2")
        for kv in EVERY_KIND:
            self.refused("--kv", kv, model=model, status=1, texts=("2 KV heads", "5 query heads"))

    # R17: words. A model that is not there shows that a word was refused before one was looked for

    def accepted(self, kv):
        done = subprocess.run([KVANT, "generate", "-m", str(self.dir / "missing.gguf"), "-p", "x", "--kv", kv],
                              env=CLEAN, capture_output=True, text=True, timeout=60)
        self.assertIn(done.returncode, (1, 2), kv)
        self.assertIn("missing.gguf" if done.returncode == 1 else "precision", done.stderr)
        return done.returncode == 1, done.stderr

    def test_every_pair_of_key_and_value_bits_works_or_is_refused_while_options_are_read(self):
        keys = {"fp16": "fp16", "int8": "int8", "int4": "int4", "3": "pairs:3", "2": "pairs:2", "1": "pairs:1",
                "5": "pairs:5", "mixed": "pnmix:3/1@50%"}
        values = ("16", "8", "4", "3", "2", "1")
        allowed = 0
        for key, word in keys.items():
            for value in values:
                kv = f"{word},v={value}"
                with self.subTest(kv):
                    right = key in ("3", "2", "1", "mixed") and value in ("8", "4", "3", "2")
                    accepted, message = self.accepted(kv)
                    self.assertEqual(accepted, right, message)
                    if right:
                        self.generate("--kv", kv, tokens="2")
                        allowed += 1
                    else:  # with what is valid there
                        self.assertRegex(message, r"known are eq=, sinks=, residual=|has no meaning for fp16|"
                                                  r"2\|3\|4\|8|mean number of bits from 1 to 4")
        self.assertEqual(allowed, 16)

    def test_nonsense_is_refused_with_what_is_known(self):
        for kv in ("int5", "INT8 ", "INT8", "int8 ", " int8", "q4_0", "int8/int4", "3-bit", "fp32", "nan", "int8:4"):
            accepted, message = self.accepted(kv)
            self.assertFalse(accepted, kv)
            self.assertIn("known are fp16, int8, int4, spectrum:b=B", message)
        for kv, known in (("int8,", "known are"), ("fp16,fp16", "has no meaning"), ("pairs:", "from 1 to 4"),
                          ("pairs:2,v=16", "2|3|4|8"), ("pnmix:8/4@50%", "from 1 to 4"), ("pnmix:3/1", "3/1@50%"),
                          ("pairs:2,g=100", "32|64|128"), ("int8,sinks=129", "0 to 128"),
                          ("int8,residual=0", "1 to 128"), ("progressive:b=9", "b"), ("spectrum:b=0.4,v=2", "v")):
            accepted, message = self.accepted(kv)
            self.assertFalse(accepted, kv)
            self.assertIn(known, message)
        done = self.run_kvant("generate", "-m", self.tiny, "-p", "x", "--kv", "", status=2)
        self.assertIn(b"--kv: the value is empty", done.stderr)

    def test_what_cannot_go_together_is_refused_before_anything_is_computed(self):
        path = self.dir / "none.session"
        done = self.run_kvant("generate", "-m", "missing.gguf", "-p", "x", "--kv", "progressive:b=0.4", "--session",
                              str(path), status=2)
        self.assertIn(b"--session: a session is not kept in the progressive code", done.stderr)
        text = self.dir / "text.txt"
        text.write_text(PROMPT * 3)
        words = ("eval", "ppl", "-m", self.tiny, "--text", str(text), "--window-tokens", "400", "--protocol", "all")
        done = self.run_kvant(*words, "--kv", "int8,spectrum:b=0.4", status=2)
        self.assertIn(b"'spectrum:b=0.4': its tiers are chosen by the attention of an exact prompt", done.stderr)
        done = self.run_kvant(*words, "--kv", ",".join(("int8", *PAIRS)), "--json")
        self.assertEqual(len(json.loads(done.stdout)["results"]), 3 * (2 + len(PAIRS)))

    # R19: a full context

    def test_a_full_context_ends_the_answer_by_length(self):
        context = len(PROMPT) + 24
        for kv in EVERY_KIND:
            for way in (("--kv", kv), ("--disaggregated", "--wire", kv)):
                with self.subTest(way):
                    report = self.generate(*way, "--context", str(context), tokens="400")
                    self.assertEqual((report["completion_tokens"], report["finish_reason"]),
                                     (context - report["prompt_tokens"], "length"))
        for kv in KEPT:
            path = self.dir / "full.session"
            path.unlink(missing_ok=True)
            words = ("--kv", kv, "--context", str(context), "--session", str(path))
            first = self.generate(*words, tokens="400")
            again = self.generate(*words, tokens="400")
            self.assertEqual((again["cached_tokens"], again["completion_tokens"], again["finish_reason"]),
                             (first["prompt_tokens"] - 1, first["completion_tokens"], "length"), kv)
            self.refused(*words, prompt=PROMPT + "x" * 24, status=1, texts=(f"the context holds {context}",))
            self.assertEqual(self.generate(*words, tokens="3")["completion_tokens"], 3)

    # R21, R23: sessions

    def kept(self, kv, name="kept.session", **more):
        path = self.dir / name
        path.unlink(missing_ok=True)
        return path, self.generate("--kv", kv, "--session", str(path), **more)

    def test_damage_is_refused_by_name_and_the_file_stays(self):
        for kv in ("fp16", "int4", "spectrum:b=0.4", "pairs:2.0"):
            path, _ = self.kept(kv)
            good = path.read_bytes()
            for place in range(PLACES):
                at = len(good) * place // PLACES
                flipped = bytearray(good)
                flipped[at] ^= 0x10
                for bad in (bytes(flipped), good[:at]):
                    path.write_bytes(bad)
                    self.refused("--kv", kv, "--session", str(path), status=1, texts=(str(path),))
                    self.assertEqual(path.read_bytes(), bad)
            path.write_bytes(good)
            self.assertGreater(self.generate("--kv", kv, "--session", str(path))["cached_tokens"], 0)
            self.assertEqual(sorted(self.dir.glob("*.partial")), [])

    def test_an_empty_file_is_refused_and_a_missing_one_changes_no_other(self):
        empty = self.dir / "empty.session"
        empty.write_bytes(b"")
        self.refused("--session", str(empty), status=1, texts=(str(empty), "empty"))
        self.assertEqual(empty.read_bytes(), b"")
        path, first = self.kept("int8")
        before = path.read_bytes()
        new = self.dir / "nope.session"
        self.assertEqual(self.generate("--kv", "int8", "--session", str(new), prompt="another")["cached_tokens"], 0)
        self.assertEqual(path.read_bytes(), before)
        again = self.generate("--kv", "int8", "--session", str(path))
        self.assertEqual((again["text"], again["cached_tokens"]), (first["text"], first["prompt_tokens"] - 1))

    def test_a_name_saved_twice_holds_the_second(self):
        for kv in KEPT:
            path, _ = self.kept(kv)
            self.generate("--kv", kv, "--session", str(path), prompt=PROMPT + "ONCE MORE")
            twice = path.read_bytes()
            other, _ = self.kept(kv, name="other.session")
            self.generate("--kv", kv, "--session", str(other), prompt=PROMPT + "ONCE MORE")
            self.assertEqual(other.read_bytes(), twice, kv)
            report = self.generate("--kv", kv, "--session", str(path), prompt=PROMPT + "ONCE MORE AND AGAIN")
            self.assertEqual(report["cached_tokens"], len(PROMPT + "ONCE MORE"), kv)

    def test_a_session_larger_than_the_context_is_refused_with_both_sizes_or_left(self):
        path, first = self.kept("int8")
        before = path.read_bytes()
        words = ("--kv", "int8", "--session", str(path), "--context", "64")
        self.refused(*words, status=1, texts=(f"{first['prompt_tokens']} tokens", "the context holds 64"))
        self.assertEqual(path.read_bytes(), before)
        report = self.generate(*words, prompt=PROMPT[:30])
        fresh = self.generate("--kv", "int8", prompt=PROMPT[:30])
        self.assertEqual((report["text"], report["cached_tokens"]), (fresh["text"], 0))
        self.assertIn("cannot take back", report["warnings"][0])

    # R25: prompts that are not what was kept

    def test_at_fp16_every_prompt_is_answered_as_without_a_session(self):
        path, first = self.kept("fp16", tokens="3")
        good = path.read_bytes()
        last = len(PROMPT) - 1
        changed = [PROMPT[:at] + "#" + PROMPT[at + 1:] for at in (0, 1, last)]
        for prompt, cached in ((PROMPT[:80], 79), (PROMPT[:last], last - 1), (PROMPT, last), (changed[0], 0),
                               (changed[1], 1), (changed[2], last), (PROMPT + "MORE", last + 1)):
            path.write_bytes(good)
            report = self.generate("--kv", "fp16", "--session", str(path), prompt=prompt, tokens="20")
            self.assertEqual(report["cached_tokens"], cached)
            self.assertEqual(report["text"], self.generate("--kv", "fp16", prompt=prompt, tokens="20")["text"], prompt)

    def test_a_session_of_another_beginning_leaves_nothing_behind(self):
        short = PROMPT[:60]
        other = "#" + PROMPT[1:60]
        for kv in KEPT:
            path, _ = self.kept(kv, prompt=short, tokens="3")
            report = self.generate("--kv", kv, "--session", str(path), prompt=other, tokens="180")
            fresh = self.generate("--kv", kv, prompt=other, tokens="180")
            self.assertEqual((report["text"], report["cached_tokens"]), (fresh["text"], 0), kv)
            self.assertIn("takes none of the session's 62 tokens", report["warnings"][0])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
