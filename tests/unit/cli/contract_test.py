"""The command line's contract, on the real program: contract_test.py KVANT KVANT_FIXTURE"""
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

KVANT, FIXTURE = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
COMMANDS = ("bench", "decode-worker", "eval", "generate", "inspect", "models")
GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "v1"
NUMBERS = ("prompt_tokens", "completion_tokens", "ttft_ms", "tpot_ms", "prefill_ms", "transfer_ms", "kv_bytes",
           "kv_bytes_fp16", "kv_bytes_allocated", "wire_bytes", "wire_bytes_fp16", "wire_tokens_encoded",
           "wire_tokens_exact")
TEMPLATE_BEGIN, TEMPLATE_END = b"{% for message", b"<|im_start|>assistant\n' }}{% endif %}"  # of the tiny model
PROMPT = "the quick brown fox jumps over the lazy dog and runs away " * 6  # more than 128 tokens of the tiny model


class ContractTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.models = cls.dir / "models"
        cls.models.mkdir()
        cls.tiny = str(cls.models / "tiny.gguf")
        subprocess.run([FIXTURE, "tiny", cls.tiny], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_kvant(self, *words, env=None, stdin=b"", status=0):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("KVANT_")}
        done = subprocess.run([KVANT, *words], env=clean | {"KVANT_THREADS": "1"} | (env or {}), input=stdin,
                              capture_output=True, timeout=300)
        self.assertEqual(done.returncode, status, f"{words}\n{done.stdout}\n{done.stderr}")
        return done

    def generate(self, *words, prompt=PROMPT, tokens="6", **more):
        """The report of a short answer of the tiny model, which ends by length."""
        done = self.run_kvant("generate", "-m", self.tiny, "-p", prompt, "-n", tokens, "--ignore-eos", "--json", *words,
                              **more)
        return json.loads(done.stdout)

    def refused(self, words, status, *expected, **more):
        """An error: nothing on standard output, the message on standard error; the same as JSON with --json."""
        done = self.run_kvant(*words, status=status, **more)
        self.assertEqual(done.stdout, b"")
        message = done.stderr.decode()
        for text in expected:
            self.assertIn(text, message)
        return message

    def changed(self, name, old, new):
        """The tiny model with one text of its file replaced by another of the same length."""
        content = pathlib.Path(self.tiny).read_bytes()
        self.assertEqual((content.count(old), len(new)), (1, len(old)))
        path = self.dir / name
        path.write_bytes(content.replace(old, new))
        return str(path)

    # Output that cannot be written, and errors found while flags are read

    def test_output_that_is_lost_is_a_failure(self):
        for words in (("models",), ("models", "--json"), ("generate", "-m", self.tiny, "-p", "a", "-n", "2")):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([KVANT, *words], stdout=full, stderr=subprocess.PIPE, timeout=60,
                                      env=os.environ | {"KVANT_THREADS": "1"})
            self.assertEqual(done.returncode, 1, words)
            self.assertIn(b"cannot write standard output", done.stderr)

    def test_usage_errors_are_one_json_object_too(self):
        for words in (("generate", "--json", "-n", "abc"), ("generate", "-n", "0", "--json"), ("models", "--json", "x"),
                      ("generate", "--json", "--link-gbps", "1e-9"), ("generate", "--json", "--threads", "100000")):
            done = self.run_kvant(*words, status=2)
            self.assertEqual(json.loads(done.stdout)["error"]["code"], "invalid_argument")

    def test_a_table_that_cannot_be_written_ends_an_evaluation_before_it_begins(self):
        done = self.run_kvant("eval", "ppl", "--json", "-m", self.tiny, "--csv", str(self.dir / "no" / "x.csv"), status=1)
        self.assertIn("cannot write", json.loads(done.stdout)["error"]["message"])

    def test_a_grammar_of_any_depth_is_answered(self):
        path = self.dir / "deep.gbnf"
        path.write_text("root ::= " + "(" * 20000 + '"a"' + ")" * 20000)
        self.run_kvant("generate", "-m", self.tiny, "-p", "a", "--grammar", str(path), status=2)

    # What the program says about itself

    def test_every_command_has_help_on_standard_output(self):
        for words in ((), *((command,) for command in COMMANDS)):
            done = self.run_kvant(*words, "--help")
            self.assertIn(b"Usage:", done.stdout)
            self.assertEqual(done.stderr, b"")

    def test_every_flag_has_its_environment_twin(self):
        for command in COMMANDS:
            text = self.run_kvant(command, "--help").stdout.decode()
            flags = re.findall(r"^  (?:-\w,)?--([a-z-]+)(.*)", text, re.MULTILINE)
            self.assertGreater(len(flags), 1)
            for name, rest in flags:
                if name != "help":
                    self.assertIn(f"(Env:KVANT_{name.upper().replace('-', '_')})", rest, name)

    def test_version_names_commit_ggml_and_instruction_sets(self):
        text = self.run_kvant("--version").stdout.decode()
        self.assertRegex(text, r"commit ([0-9a-f]{7,}|unknown)")
        self.assertRegex(text, r"ggml \d+\.\d+\.\d+")
        self.assertRegex(text, r"instruction sets: \S*")
        self.assertIn("scalar", text)

    # Usage

    def test_wrong_usage_is_status_2(self):
        self.refused([], 2, "no command", "generate")
        self.refused(["dance"], 2, "kvant: unknown command dance", "generate")
        self.refused(["bench", "dance"], 2, "kvant: unknown command dance", "decode")
        self.refused(["generate", "--bogus"], 2, "--bogus")
        self.refused(["generate"], 2, "no prompt")
        tiny = ["generate", "-m", self.tiny, "-p", "x"]
        self.refused([*tiny, "-f", "file"], 2, "--prompt and --file")
        self.refused([*tiny, "-n", "0"], 2, "--max-tokens")
        self.refused([*tiny, "-n", "-3"], 2, "--max-tokens")
        self.refused([*tiny, "-n", "three"], 2, "--max-tokens")
        self.refused([*tiny, "--threads", "0"], 2, "--threads")
        self.refused([*tiny, "--isa", "mmx"], 2, "mmx", "scalar")
        self.refused([*tiny, "--temperature", "-1"], 2, "temperature")
        self.refused([*tiny, "--temperature", "nan"], 2, "temperature")
        for rate in ("-1", "1e-9", "nan", "fast"):
            self.refused([*tiny, "--link-gbps", rate, "--disaggregated"], 2,
                         f"kvant: --link-gbps: {rate} is neither 0 (no limit) nor from 0.0001 to 1000000")
        for words in (["bench", "decode", "--bogus"], ["bench", "codec", "--threads", "0"], ["models", "x"]):
            self.assertTrue(self.refused(words, 2).startswith("kvant: "))

    def test_whole_numbers_are_decimal(self):
        self.assertEqual(self.generate("--top-k", "08", "--seed", "09", tokens="010")["completion_tokens"], 10)
        for word in ("0x10", "1e1", " 3", "+3"):
            self.refused(["generate", "-m", self.tiny, "-p", "x", "-n", word], 2, f"--max-tokens: {word} is not")
        self.refused(["bench", "attention", "--context", "0x400"], 2, "--context: 0x400 is not")

    def test_an_empty_value_is_refused_by_every_flag_and_is_none_in_the_environment(self):
        for flag in ("--kv", "--wire", "--model", "--isa", "--prompt", "--file", "--grammar", "--models-dir", "--threads",
                     "--link-gbps"):
            self.refused(["generate", flag, ""], 2, f"kvant: {flag}: the value is empty")
        self.refused(["eval", "ppl", "--kv", ""], 2, "kvant: --kv: the value is empty")
        self.refused(["bench", "decode", "--kv", ""], 2, "kvant: --kv: the value is empty")
        self.assertEqual(self.generate(env={"KVANT_KV": "", "KVANT_ISA": "", "KVANT_GRAMMAR": ""})["kv"], "int8")

    def test_an_unknown_precision_is_refused_with_the_known_ones(self):
        tiny = ["generate", "-m", self.tiny, "-p", "x"]
        self.refused([*tiny, "--kv", "int9"], 2, "--kv", "int9", "fp16", "int8", "int4")
        self.refused([*tiny, "--kv", "int8,bogus=1"], 2, "--kv", "bogus")
        self.refused([*tiny, "--disaggregated", "--wire", "int2"], 2, "--wire", "int2")

    def test_nothing_is_encoded_twice_and_nothing_is_sent_locally(self):
        tiny = ["generate", "-m", self.tiny, "-p", "x"]
        self.refused([*tiny, "--disaggregated", "--wire", "int8", "--kv", "int4"], 2, "int4", "int8", "twice")
        self.refused([*tiny, "--wire", "int8"], 2, "--wire", "--disaggregated")
        self.refused([*tiny, "--link-gbps", "1"], 2, "--link-gbps", "--disaggregated")

    # Bad input

    def test_a_session_is_kept_and_gone_on_with(self):
        path = self.dir / "kept.kvant"
        for kv, shortest in (("int8", "int8"), ("pairs:2.0", "pairs:2")):
            with self.subTest(kv):
                path.unlink(missing_ok=True)
                first = self.generate("--kv", kv, "--session", str(path))
                self.assertEqual(first["cached_tokens"], 0)
                again = self.generate("--kv", kv, "--session", str(path))
                self.assertEqual(again["cached_tokens"], first["prompt_tokens"] - 1)
                self.assertEqual(again["text"], first["text"])
                kept = self.run_kvant("inspect", str(path), "--json").stdout.decode()
                self.assertIn(f'"precision":"{shortest}"', kept.replace(" ", ""))
        before = path.read_bytes()
        tiny = ["generate", "-m", self.tiny, "-p", PROMPT]
        self.refused([*tiny, "--kv", "pairs:3.0", "--session", str(path)], 1, "kept as pairs:2, asked for as pairs:3")
        self.assertEqual(path.read_bytes(), before)
        self.refused([*tiny, "--disaggregated", "--session", str(path)], 2, "--session")
        self.refused([*tiny, "--session", str(self.dir)], 1, "regular file")
        self.refused([*tiny, "--session", str(self.dir / "no" / "where")], 1, "where")

    def test_a_model_is_calibrated_and_its_maps_are_used(self):
        text = self.dir / "calibration.txt"
        text.write_text("".join(f"word{i * 7 % 23} " for i in range(200)))
        for kv, shortest in (("pairs:2.0,map=model", "pairs:2,map=model"), ("int4,eq=model", "int4,eq=model")):
            with self.subTest(kv):
                path = self.dir / "sub" / f"{shortest[:4]}.profile"
                words = ["calibrate", "-m", self.tiny, "--kv", kv, "--text", str(text), "--tokens", "500", "--profile", path]
                first = json.loads(self.run_kvant(*words, "--json").stdout)
                self.assertEqual((first["profile"], first["kv"], first["tokens"]), (str(path), shortest, 500))
                self.assertEqual(json.loads(self.run_kvant(*words, "--json").stdout)["id"], first["id"])
                local = self.generate("--kv", kv, "--profile", path)
                self.assertEqual(local["kv"], shortest)
                sent = self.generate("--wire", kv, "--profile", path, "--disaggregated")
                self.assertEqual(sent["completion_tokens"], local["completion_tokens"])
                shown = self.run_kvant("inspect", path).stdout.decode()
                self.assertIn("maps", shown)
                self.refused(["generate", "-m", self.tiny, "-p", "x", "--kv", "int8,eq=model", "--profile", path], 1,
                             "maps of " + shortest)
        nowhere = ["generate", "-m", self.tiny, "-p", "x", "--kv", "pairs:2.0,map=model", "--profile"]
        self.refused([*nowhere, self.dir / "none"], 1, f"kvant calibrate -m {self.tiny} --kv pairs:2,map=model --profile")
        self.refused([*nowhere, text], 1, str(text))
        self.refused(["calibrate", "-m", self.tiny, "--kv", "pairs:2.0"], 2, "map=model")
        self.refused(["calibrate", "-m", self.tiny, "--kv", "pairs:2.0,map=model", "--tokens", "100", "--text", text,
                      "--profile", self.dir / "short"], 2, "too short")
        self.refused(["calibrate", "-m", self.tiny, "--text", text, "--profile", "/proc/none/where"], 1, "/proc/none")

    def test_a_cache_that_would_be_too_large_is_refused(self):
        prompt = "".join(f"word{i} " for i in range(300))
        words = ["generate", "-m", self.tiny, "-n", "4", "--raw", "-p", prompt, "--context", "4000", "--kv-memory-mb"]
        for path in (["--kv", "fp16"], ["--disaggregated", "--wire", "fp16"]):
            message = self.refused([*words, "1", *path], 1, "KV cache full", "the limit of 1048576")
            self.assertNotIn("invariant", message)
            self.assertEqual(self.run_kvant(*words, "64", *path).returncode, 0)
        self.refused([*words, "-1"], 2, "--kv-memory-mb")

    def test_what_cannot_be_is_refused_of_the_new_precisions(self):
        tiny = ["generate", "-m", self.tiny, "-p", "x", "--kv"]
        self.refused([*tiny, "progressive:b=0.3,refine=0.6"], 2, "refine")
        self.refused([*tiny, "progressive:b=0.5,eq=off"], 2, "eq=off")
        self.refused([*tiny, "progressive:b=0.5,refine=0.4"], 2, "refine")
        self.refused([*tiny, "pairs:2.0,map=prompts"], 2, "map")
        self.refused([*tiny, "int8,eq=model,eq=on"], 2, "twice")
        self.refused([*tiny, "pnmix:5/1@50%"], 2, "5/1")

    def test_bad_prompts_are_named(self):
        tiny = ["generate", "-m", self.tiny]
        self.refused([*tiny, "-f", "-"], 2, "the prompt is empty")
        self.refused([*tiny, "-f", "-"], 2, "not valid UTF-8 at byte 3", stdin=b"abc\xff")
        self.refused([*tiny, "-f", str(self.dir / "nothing")], 1, "nothing", "no such file")
        self.refused([*tiny, "-f", str(self.dir)], 1, str(self.dir))
        self.refused([*tiny, "-p", "x" * 600], 1, "512", "tokens")
        self.refused([*tiny, "--raw", "-p", PROMPT, "--context", "16"], 1, "16", "tokens")
        self.refused([*tiny, "-p", PROMPT, "--disaggregated", "--context", "16"], 1, "16", "tokens")

    def test_bad_models_are_named(self):
        broken = self.dir / "broken.gguf"
        broken.write_bytes(pathlib.Path(self.tiny).read_bytes()[:1000])
        self.refused(["generate", "-m", "missing.gguf", "-p", "x"], 1, "missing.gguf")
        self.refused(["generate", "-p", "x", "--models-dir", str(self.dir)], 1, str(self.dir), "setup.sh")
        self.refused(["generate", "-m", str(broken), "-p", "x"], 1)
        self.refused(["generate", "-m", str(self.dir), "-p", "x"], 1, str(self.dir))

    def test_a_chat_template_that_fails_is_the_files_fault(self):
        content = pathlib.Path(self.tiny).read_bytes()
        begin, end = content.index(TEMPLATE_BEGIN), content.index(TEMPLATE_END) + len(TEMPLATE_END)
        for text in (b"{{ raise_exception('never') }}", b"{% for"):
            path = self.changed("template.gguf", content[begin:end], text.ljust(end - begin))
            self.refused(["generate", "-m", path, "-p", "x"], 1, path, "chat template")
            self.run_kvant("generate", "-m", path, "-p", "x", "-n", "1", "--raw")

    def test_a_context_beyond_the_models_needs_the_flag_and_is_warned_of(self):
        text = self.dir / "text.txt"
        text.write_text(PROMPT * 12)
        ppl = ["eval", "ppl", "-m", self.tiny, "--text", str(text), "--kv", "int8", "--window-tokens", "600",
               "--prompt-tokens", "300"]
        answer = ["generate", "-m", self.tiny, "--raw", "-p", "x" * 540, "-n", "2", "--ignore-eos"]
        decode = ["bench", "decode", "-m", self.tiny, "--kv", "int8"]
        self.refused(ppl, 1, "600", "512")
        self.refused([*ppl, "--context", "599"], 1, "600", "599")
        self.refused(answer, 1, "512", "540", "tokens")
        self.refused(decode, 1, "4096", "512")
        for words in (ppl, answer, [*decode, "--quick"]):
            done = self.run_kvant(*words, "--context", "600", "--json")
            warnings = json.loads(done.stdout)["warnings"]
            self.assertEqual(len(warnings), 1)
            self.assertRegex(warnings[0], "600.*512")
            self.assertEqual(done.stderr.decode().count("kvant: warning: " + warnings[0]), 1)
        self.assertEqual(self.generate("--context", "512")["warnings"], [])

    def test_a_bad_grammar_is_refused(self):
        grammar = self.dir / "bad.gbnf"
        grammar.write_text("root ::= (")
        message = self.refused(["generate", "-m", self.tiny, "-p", "x", "--grammar", str(grammar)], 2, "grammar", "')'")
        self.assertEqual(message.count("\n"), 1, message)
        self.refused(["generate", "-m", self.tiny, "-p", "x", "--grammar", "missing.gbnf"], 1, "missing.gbnf")

    def test_with_json_an_error_is_one_object_too(self):
        done = self.run_kvant("generate", "-m", self.tiny, "-p", "x", "--kv", "int9", "--json", status=2)
        error = json.loads(done.stdout)["error"]
        self.assertEqual(error["code"], "precision_unsupported")
        self.assertIn(error["message"], done.stderr.decode())

    # Environment

    def test_the_environment_is_read_and_flags_win(self):
        env = {"KVANT_MODEL": self.tiny, "KVANT_PROMPT": PROMPT, "KVANT_MAX_TOKENS": "3", "KVANT_JSON": "true",
               "KVANT_IGNORE_EOS": "1", "KVANT_KV": "int4", "KVANT_THREADS": "2"}
        report = json.loads(self.run_kvant("generate", env=env).stdout)
        self.assertEqual((report["completion_tokens"], report["kv"], report["threads"]), (3, "int4", 2))
        report = json.loads(self.run_kvant("generate", "-n", "2", "--kv", "fp16", env=env).stdout)
        self.assertEqual((report["completion_tokens"], report["kv"]), (2, "fp16"))
        link = {"KVANT_DISAGGREGATED": "true", "KVANT_WIRE": "int8", "KVANT_LINK_GBPS": "2.5"}
        self.assertEqual(self.generate(env=link)["link_gbps"], 2.5)
        self.assertIsNone(self.generate(env={"KVANT_DISAGGREGATED": "false"})["wire"])

    def test_a_prompt_given_wins_over_a_file_in_the_environment(self):
        path = self.dir / "other.txt"
        path.write_text("other")
        text = self.generate()["text"]
        self.assertEqual(self.generate(env={"KVANT_FILE": "missing"})["text"], text)
        self.assertEqual(self.generate(env={"KVANT_PROMPT": "other"})["text"], text)
        words = ["generate", "-m", self.tiny, "-n", "1"]
        self.run_kvant(*words, "-f", str(path), env={"KVANT_PROMPT": PROMPT * 99})
        self.refused(words, 2, "--prompt and --file", env={"KVANT_PROMPT": "x", "KVANT_FILE": str(path)})

    def test_a_bad_environment_is_usage_of_that_command_only(self):
        self.refused(["generate", "-m", self.tiny, "-p", "x"], 2, "--threads", env={"KVANT_THREADS": "many"})
        self.refused(["generate", "-m", self.tiny, "-p", "x"], 2, "--raw", env={"KVANT_RAW": "perhaps"})
        self.run_kvant("models", "--models-dir", str(self.models), env={"KVANT_THREADS": "many"})

    # Reports

    def test_the_report_has_every_field(self):
        report = self.generate()
        for name in NUMBERS:
            self.assertIsInstance(report[name], (int, float), name)
        self.assertIsInstance(report["text"], str)
        self.assertEqual(set(report["bits"]), {"payload", "effective"})
        self.assertEqual(set(report["tiers"]), {"fp16", "int8", "int4", "dropped"})
        self.assertEqual((report["policy"], report["importance"]), ("uniform", "none"))
        self.assertIn(report["isa"], ("scalar", "avx2", "avx512-vnni"))
        self.assertEqual((report["completion_tokens"], report["finish_reason"]), (6, "length"))
        self.assertEqual((report["wire"], report["wire_bytes"]), (None, 0))
        self.assertGreater(report["prompt_tokens"], 128)
        self.assertGreater(report["ttft_ms"], 0)
        self.assertGreater(report["tpot_ms"], 0)

    def test_one_token_has_no_time_between_tokens(self):
        self.assertIsNone(self.generate(tokens="1")["tpot_ms"])
        done = self.run_kvant("generate", "-m", self.tiny, "-p", "x", "-n", "1", "--ignore-eos")
        self.assertRegex(done.stderr.decode(), r"answer +1 tokens +-\n")

    def test_bytes_in_use_are_told_from_bytes_allocated(self):
        short = self.generate(prompt="x")
        self.assertEqual(short["kv_bytes"], short["kv_bytes_fp16"], "nothing is encoded yet")
        self.assertGreater(short["kv_bytes_allocated"], short["kv_bytes"])
        self.assertLess(self.generate()["kv_bytes"], self.generate()["kv_bytes_fp16"])
        table = self.run_kvant("generate", "-m", self.tiny, "-p", "x", "-n", "2").stderr.decode()
        self.assertRegex(table, r"cache in use +int8 .* 1\.000 of fp16")
        self.assertRegex(table, r"cache allocated +whole pages")

    def test_the_report_says_how_many_tokens_were_sent_at_which_precision(self):
        sent = ("--disaggregated", "--wire", "int4")
        short, long = self.generate(*sent, prompt="x"), self.generate(*sent)
        self.assertEqual((short["wire_tokens_encoded"], short["wire_tokens_exact"]), (0, short["prompt_tokens"]))
        self.assertEqual((long["wire_tokens_encoded"], long["wire_tokens_exact"]), (long["prompt_tokens"] - 4, 4))
        exact = self.generate("--disaggregated", "--wire", "fp16")
        self.assertEqual((exact["wire_tokens_encoded"], exact["wire_tokens_exact"]), (0, exact["prompt_tokens"]))
        help_text = " ".join(self.run_kvant("generate", "--help").stdout.decode().split())
        self.assertIn("a prompt of fewer than 128 tokens beyond them", help_text)

    def test_tiers_add_up_to_the_tokens_and_bits_follow(self):
        for kv, tier, payload in (("fp16", "fp16", 16), ("int8", "int8", 8), ("int4", "int4", 4)):
            report = self.generate("--kv", f"{kv},eq=off,sinks=0" if kv != "fp16" else kv)
            tokens = report["prompt_tokens"] + report["completion_tokens"] - 1
            self.assertEqual(sum(report["tiers"].values()), tokens)
            self.assertGreaterEqual(report["tiers"][tier], 128)
            self.assertLessEqual(payload, report["bits"]["payload"])
            self.assertLessEqual(report["bits"]["payload"], report["bits"]["effective"])
            self.assertLessEqual(report["bits"]["effective"], 16)

    def test_without_json_the_answer_alone_is_on_standard_output(self):
        done = self.run_kvant("generate", "-m", self.tiny, "-p", PROMPT, "-n", "6", "--ignore-eos")
        self.assertEqual(done.stdout.decode(), self.generate()["text"] + "\n")
        self.assertIn("tok/s", done.stderr.decode())
        self.assertNotIn("\x1b", done.stderr.decode(), "a bar where there is no terminal")

    def test_a_file_and_standard_input_are_the_same_prompt(self):
        path = self.dir / "prompt.txt"
        path.write_text(PROMPT)
        text = self.generate()["text"]
        for words, stdin in ((("-f", str(path)), b""), (("-f", "-"), PROMPT.encode())):
            done = self.run_kvant("generate", "-m", self.tiny, "-n", "6", "--ignore-eos", "--json", *words, stdin=stdin)
            self.assertEqual(json.loads(done.stdout)["text"], text)

    def test_the_chat_template_is_used_unless_raw(self):
        self.assertGreater(self.generate()["prompt_tokens"], self.generate("--raw")["prompt_tokens"])

    def test_disaggregated_fp16_answers_as_local_and_counts_what_was_sent(self):
        local = self.generate("--kv", "fp16")
        sent = self.generate("--disaggregated", "--wire", "fp16", "--link-gbps", "1")
        self.assertEqual(sent["text"], local["text"])
        self.assertGreaterEqual(sent["wire_bytes"], sent["wire_bytes_fp16"])
        self.assertGreater(sent["ttft_ms"], sent["prefill_ms"])

    def test_fewer_bits_are_fewer_bytes(self):
        sizes = [self.generate("--disaggregated", "--wire", f"{word},eq=off,sinks=0")["wire_bytes"]
                 for word in ("int8", "int4")]
        fp16 = self.generate("--disaggregated", "--wire", "fp16")["wire_bytes"]
        self.assertLess(sizes[0], 0.6 * fp16)
        self.assertLess(sizes[1], 0.6 * sizes[0])

    def test_a_seed_repeats_an_answer(self):
        texts = [self.generate("--temperature", "5", "--top-k", "0", "--seed", seed)["text"] for seed in "778"]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_a_grammar_is_followed(self):
        grammar = self.dir / "answer.gbnf"
        grammar.write_text('root ::= "yes" | "no"')
        done = self.run_kvant("generate", "-m", self.tiny, "-p", "x", "--grammar", str(grammar), "--json")
        report = json.loads(done.stdout)
        self.assertIn(report["text"], ("yes", "no"))
        self.assertEqual(report["finish_reason"], "stop")

    def test_every_instruction_set_of_this_machine_answers(self):
        sets = self.run_kvant("--version").stdout.decode().split("kernels:")[1].split()
        for name in sets:
            self.assertEqual(self.generate("--isa", name)["isa"], name)

    def test_models_lists_what_is_there_and_says_what_cannot_be_used(self):
        folder = self.dir / "mixed"
        folder.mkdir()
        (folder / "tiny.gguf").write_bytes(pathlib.Path(self.tiny).read_bytes())
        (folder / "broken.gguf").write_bytes(b"GGUF")
        report = json.loads(self.run_kvant("models", "--json", "--models-dir", str(folder)).stdout)
        self.assertEqual([model["name"] for model in report["models"]], ["broken.gguf", "tiny.gguf"])
        self.assertIn("error", report["models"][0])
        self.assertEqual(report["models"][1]["architecture"], "llama")
        self.assertIn(b"tiny.gguf", self.run_kvant("models", "--models-dir", str(folder)).stdout)
        self.run_kvant("generate", "-m", "tiny", "--models-dir", str(folder), "-p", "x", "-n", "1")

    def test_models_of_a_folder_that_is_not_there(self):
        self.refused(["models", "--models-dir", "nope"], 1, "kvant: ", "nope")
        self.refused(["models"], 1, "nope", env={"KVANT_MODELS_DIR": "nope"})
        done = self.run_kvant("models", env={"XDG_DATA_HOME": str(self.dir / "new")})  # as after an installation
        self.assertIn(b"setup.sh", done.stdout)

    def test_control_characters_of_files_and_paths_do_not_reach_the_terminal(self):
        folder = self.dir / "esc\x1b[2J"
        folder.mkdir()
        content = pathlib.Path(self.tiny).read_bytes()
        key = b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little")
        self.assertEqual(content.count(key + b"llama"), 1)
        (folder / "arch.gguf").write_bytes(content.replace(key + b"llama", key + b"l\x1b\xc2\x9bm"))
        (folder / "name\x1b]0;x\x07\u202e.gguf").write_bytes(content)
        outputs = [self.run_kvant("models", "--models-dir", str(folder)),
                   self.run_kvant("models", "--models-dir", str(folder), "--json"),
                   self.run_kvant("generate", "-m", str(folder / "arch.gguf"), "-p", "x", status=1),
                   self.run_kvant("generate", "-m", "no\x1b[31m.gguf", "-p", "x", status=1),
                   self.run_kvant("generate", "-p", "x", "--models-dir", str(folder), status=1),
                   self.run_kvant("gen\x1b[31merate", status=2),
                   self.run_kvant("generate", "--kv", "int\x1b[31m", "-p", "x", status=2)]
        for done in outputs:
            shown = (done.stdout + done.stderr).decode()
            self.assertNotRegex(shown, "[\x00-\x09\x0b-\x1f\x7f-\x9f]")
        self.assertIn(b"name\\x1b]0;x\\x07\\u202e.gguf", outputs[0].stdout)
        names = [model["name"] for model in json.loads(outputs[1].stdout)["models"]]
        self.assertIn("name\x1b]0;x\x07\u202e.gguf", names)

    # Saved frames

    def inspect(self, *files, status=0, memory=None):
        """The report; with `memory` the program may not map more bytes than that."""
        limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory))) if memory else None
        done = subprocess.run([KVANT, "inspect", "--json", *map(str, files)], capture_output=True, timeout=300,
                              preexec_fn=limit)
        self.assertEqual(done.returncode, status, done.stderr.decode() + done.stdout.decode()[:2000])
        return json.loads(done.stdout)

    def write(self, name, content):
        path = self.dir / name
        path.write_bytes(content)
        return path

    def test_inspect_says_what_golden_frames_hold(self):
        for path in sorted(GOLDEN.glob("*.bin")):
            fields = dict(line.split(" ", 1) for line in path.with_suffix(".fields").read_text().splitlines())
            report = self.inspect(path)
            frame, = report["files"][0]["frames"]
            self.assertEqual((report["num_errors"], frame["errors"], frame["bytes"]), (0, [], path.stat().st_size))
            self.assertEqual((frame["type"], int(frame["session"], 16)), (fields["type"], int(fields["session"])), path)
            self.assertEqual(frame["checksum"]["stored"], frame["checksum"]["computed"])
            if frame["type"] == "layer":
                content = frame["content"]
                self.assertEqual(sum(content["sections"].values()), frame["bytes"], path)
                self.assertEqual(content["tokens"], {name: int(fields.get("num_" + name, 0))
                                                     for name in ("skipped", "sinks", "encoded", "tail")})
                self.assertEqual((content["kv_heads"], content["head_dim"]),
                                 (int(fields["num_kv_heads"]), int(fields["head_dim"])))
                for tier in ("fp16", "int8", "int4", "dropped"):
                    self.assertEqual(content["tiers"][tier], int(fields.get(tier, content["tiers"][tier])))
                self.assertGreaterEqual(content["bits"]["effective"], content["bits"]["payload"])
        heads = self.inspect(GOLDEN / "layer_tiers.bin")["files"][0]["frames"][0]["content"]
        self.assertEqual(len(heads["tokens_unlike_first_head"]), 2)
        self.assertEqual(heads["tokens_alike_in_all_heads"] + heads["tokens_unlike_first_head"][1], 9)

    def test_inspect_reads_frames_one_after_another_and_prints_tables(self):
        names = ("layer_int8_eq", "layer_tiers", "done", "error")
        content = [(GOLDEN / f"{name}.bin").read_bytes() for name in names]
        path = self.write("several.frames", b"".join(content))
        found = self.inspect(path)["files"][0]
        self.assertEqual([frame["type"] for frame in found["frames"]], ["layer", "layer", "done", "error"])
        self.assertEqual([frame["offset"] for frame in found["frames"]],
                         [sum(map(len, content[:i])) for i in range(4)])
        table = self.run_kvant("inspect", str(path)).stdout.decode()
        self.assertRegex(table, r"4 frames\n")
        self.assertRegex(table, r"1 +layer +7 .* right +0 +2 \+ 9 \+ 1 +spectrum +2 3 3 1")
        self.assertRegex(table, r"layers: header +80 B")
        alone = self.run_kvant("inspect", str(GOLDEN / "hello_tiers.bin")).stdout.decode()
        self.assertRegex(alone, r"content.prompt_tokens +1000\n")

    def test_inspect_without_a_file_says_so(self):
        self.refused(["inspect"], 2, "files is required")

    def test_inspect_names_every_error_and_fails(self):
        sound = (GOLDEN / "layer_tiers.bin").read_bytes()
        flipped = bytearray(sound)
        flipped[-1] ^= 0x7C  # of the last fp16 value: the checksum no longer fits, and the value may be infinite
        flipped[8] = 1       # flags
        path = self.write("flipped.frames", bytes(flipped) + sound)
        found = self.inspect(path, status=1)["files"][0]
        first, second = found["frames"]
        self.assertEqual([error["code"] for error in first["errors"]][:2], ["corruption", "invalid_argument"])
        self.assertNotEqual(first["checksum"]["stored"], first["checksum"]["computed"])
        self.assertEqual(first["content"]["tokens"]["encoded"], 9, "fields are shown all the same")
        self.assertEqual(second["errors"], [], "and the frame after it is found")
        done = self.run_kvant("inspect", str(path), status=1)
        self.assertIn("frame 0 at byte 0: corruption: the frame's checksum does not match", done.stdout.decode())
        self.assertRegex(done.stderr.decode(), r"^kvant: \d+ errors found\n$")
        for name, content, code in (("cut", sound[:-1], "out_of_range"), ("short", sound[:39], "out_of_range"),
                                    ("garbage", b"GGUF" + sound[4:], "corruption"), ("empty", b"", "out_of_range"),
                                    ("version", sound[:4] + b"\x02" + sound[5:], "version_unsupported")):
            found = self.inspect(self.write(name, content), status=1)["files"][0]
            errors = [error for frame in found["frames"] for error in frame["errors"]] + found["errors"]
            self.assertEqual(errors[0]["code"], code, name)
        for path, code in ((self.dir / "missing", "not_found"), (self.dir, "io_error")):
            self.assertEqual(self.inspect(path, status=1)["files"][0]["errors"][0]["code"], code)
        self.refused(["inspect"], 2)

    def test_inspect_takes_no_memory_that_a_frame_only_announces(self):
        header = bytearray((GOLDEN / "layer_int8.bin").read_bytes()[:40])
        header[16:24] = (1 << 36).to_bytes(8, "little")
        path = self.write("huge.frames", bytes(header))
        self.assertEqual(self.inspect(path, status=1, memory=1 << 30)["files"][0]["frames"][0]["errors"][0]["code"],
                         "out_of_range")
        header[16:24] = ((3 << 30) - 40).to_bytes(8, "little")
        path.write_bytes(bytes(header))
        os.truncate(path, 3 << 30)  # really there, but for no disk
        self.assertEqual(self.inspect(path, status=1, memory=1 << 30)["files"][0]["frames"][0]["errors"][0]["code"],
                         "capacity_exceeded")

    def test_inspect_survives_any_bytes(self):
        chance = random.Random(4)
        sound = [path.read_bytes() for path in sorted(GOLDEN.glob("*.bin"))]
        paths = []
        for number in range(400):
            content = bytearray(b"".join(chance.choice(sound) for _ in range(chance.randint(1, 3))))
            for _ in range(chance.randint(1, 6)):
                place = chance.randrange(min(len(content), chance.choice((100, len(content)))))
                content[place:place + chance.choice((1, 1, 4))] = chance.choice(
                    (b"\0", b"\xff", b"\xff\xff\xff\x7f", bytes([chance.randrange(256)])))
            if chance.random() < 0.3:
                del content[chance.randrange(len(content)):]
            if chance.random() < 0.5:
                self.reseal(content)
            paths.append(self.write(f"fuzz{number}", bytes(content)))
        report = self.inspect(*paths, status=1, memory=1 << 30)
        self.assertEqual(len(report["files"]), 400)
        self.assertGreater(report["num_errors"], 300)
        resealed = [frame for found in report["files"] for frame in found["frames"]
                    if frame["errors"] and "checksum" in frame
                    and frame["checksum"]["stored"] == frame["checksum"]["computed"]]
        self.assertGreater(len(resealed), 20, "no error behind a right checksum")

    def test_frames_are_saved_as_they_are_sent(self):
        path = self.dir / "sent.frames"
        report = self.generate("--disaggregated", "--wire", "spectrum:b=0.4", "--save-frames", str(path))
        found = self.inspect(path)["files"][0]
        frames = found["frames"]
        self.assertEqual((found["errors"], [frame["type"] for frame in frames]),
                         ([], ["hello", "layer", "layer", "finish", "answer request"]))
        self.assertEqual(frames[0]["content"]["prompt_tokens"], report["prompt_tokens"])
        encoded = frames[1]["content"]["tokens"]["encoded"]
        self.assertEqual(encoded, report["wire_tokens_encoded"])
        self.assertEqual(sum(frames[1]["content"]["tiers"].values()), encoded)
        self.assertLess(path.stat().st_size, report["wire_bytes"], "replies go the other way")
        path.write_bytes(path.read_bytes()[:3000])
        self.assertIn("out_of_range", [error["code"] for frame in self.inspect(path, status=1)["files"][0]["frames"]
                                       for error in frame["errors"]])
        tiny = ["generate", "-m", self.tiny, "-p", PROMPT, "--save-frames"]
        self.refused([*tiny, str(self.dir), "--disaggregated"], 1, "--save-frames", "cannot be written")
        self.refused([*tiny, "/dev/full", "--disaggregated", "--wire", "fp16"], 1, "--save-frames", "cannot be written")
        self.refused([*tiny, str(path)], 2, "--save-frames", "--disaggregated")

    def test_a_target_for_the_first_token_chooses_the_budget_and_is_reported(self):
        sent = ("--disaggregated", "--wire", "spectrum:b=0.5", "--link-gbps", "0.005")
        report = self.generate(*sent, "--ttft-target", "1")
        self.assertEqual((report["ttft_target_ms"], report["ttft_target_met"], report["budget_lowest"]), (1, False, 0.25))
        self.assertGreater(report["ttft_lowest_ms"], 1)
        self.assertAlmostEqual(report["link_gbps_measured"], 0.005, delta=0.002)
        loose = self.generate(*sent, "--ttft-target", "60000")
        self.assertEqual((loose["ttft_target_met"], loose["budget_highest"]), (True, 1))
        self.assertLess(report["wire_bytes"], loose["wire_bytes"])
        plain = self.generate(*sent)
        self.assertEqual((plain["budget"], plain["ttft_target_ms"], plain["ttft_lowest_ms"]), (0.5, None, None))
        table = self.run_kvant("generate", "-m", self.tiny, "-p", PROMPT, "-n", "2", *sent, "--ttft-target",
                               "1").stderr.decode()
        self.assertRegex(table, r"target +1 ms +missed by \d+ ms +out of reach: \d+ ms at the lowest budget")
        self.assertRegex(table, r"line +as measured +0\.00\d+ Gbit/s")
        tiny = ["generate", "-m", self.tiny, "-p", PROMPT]
        self.refused([*tiny, "--ttft-target", "100"], 2, "--ttft-target", "--disaggregated")
        for word in ("int8", "sws:0.5"):
            self.refused([*tiny, "--disaggregated", "--wire", word, "--ttft-target", "100"], 2, "--ttft-target", word)

    def reseal(self, content):
        """Give the first frame the checksum that inspect computes."""
        found = self.inspect_any(content)
        frames = found["files"][0]["frames"]
        if frames and "checksum" in frames[0] and frames[0]["bytes"] >= 40:
            content[32:40] = int(frames[0]["checksum"]["computed"], 16).to_bytes(8, "little")

    def inspect_any(self, content):
        done = subprocess.run([KVANT, "inspect", "--json", str(self.write("resealed", bytes(content)))],
                              capture_output=True, timeout=60)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return json.loads(done.stdout)

    def interrupted(self, times):
        """Status, seconds and message of a transfer of 15 seconds that is interrupted."""
        command = [KVANT, "generate", "-m", self.tiny, "-p", PROMPT, "--disaggregated", "--wire", "fp16", "--link-gbps", "0.0001",
                   "--threads", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            time.sleep(4)  # the prompt is computed in milliseconds
            self.assertIsNone(process.poll(), "the transfer is over already")
            begin = time.monotonic()
            for _ in range(times):
                process.send_signal(signal.SIGINT)
                time.sleep(0.002)
            output, message = process.communicate(timeout=120)
        self.assertEqual(output, b"")
        return process.returncode, time.monotonic() - begin, message.decode()

    def test_ctrl_c_ends_a_slow_transfer_at_once(self):
        status, seconds, message = self.interrupted(1)
        self.assertEqual((status, message), (1, "kvant: generation cancelled\n"))
        self.assertLess(seconds, 1)

    def test_a_second_ctrl_c_kills(self):
        status, seconds, _ = self.interrupted(2)
        self.assertEqual(status, -signal.SIGINT)
        self.assertLess(seconds, 1)

    def test_ctrl_c_ends_an_evaluation_and_leaves_its_table(self):
        text, table = self.dir / "long.txt", self.dir / "kept.csv"
        text.write_text("".join(f"word{i * 7 % 23} " for i in range(40000)))
        table.write_text("of before\n")
        command = [KVANT, "eval", "ppl", "-m", self.tiny, "--text", text, "--window-tokens", "256", "--prompt-tokens",
                   "200", "--windows", "800", "--kv", "int8,int4,pairs:2.0", "--csv", table, "--threads", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            time.sleep(2)
            self.assertIsNone(process.poll(), "the evaluation is over already")
            process.send_signal(signal.SIGINT)
            output, message = process.communicate(timeout=60)
        self.assertEqual((process.returncode, output), (1, b""), message)
        self.assertIn(b"cancelled", message)
        self.assertEqual(table.read_text(), "of before\n")

    def test_files_are_written_where_links_lead_and_nowhere_else(self):
        place, link, nowhere, pipe = (self.dir / name for name in ("place", "link", "nowhere", "pipe"))
        link.symlink_to(place)
        nowhere.symlink_to(self.dir / "no" / "such")
        os.mkfifo(pipe)
        mine = self.dir / "link.partial"
        mine.write_text("mine")
        place.unlink(missing_ok=True)
        tiny = ["generate", "-m", self.tiny, "-p", PROMPT, "-n", "2"]
        self.refused([*tiny, "--session", nowhere], 1, "leads nowhere")
        self.refused([*tiny, "--session", pipe], 1, "regular file")
        self.run_kvant(*tiny, "--session", place)
        self.run_kvant(*tiny, "--session", link)
        self.assertTrue(link.is_symlink() and nowhere.is_symlink() and pipe.is_fifo())
        self.assertEqual(mine.read_text(), "mine")
        self.assertEqual([path.name for path in self.dir.glob("place*")], ["place"])

    def test_sessions_written_at_once_are_whole(self):
        path = self.dir / "busy.session"
        command = [KVANT, "generate", "-m", self.tiny, "-p", PROMPT, "-n", "40", "--ignore-eos", "--kv", "fp16", "--session",
                   path, "--threads", "1"]
        for _ in range(4):
            running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
            for process in running:
                message = process.communicate(timeout=120)[1]
                self.assertEqual(process.returncode, 0, message)
            self.run_kvant("inspect", path)
        self.assertEqual([each.name for each in self.dir.glob("busy*")], ["busy.session"])

    def test_ctrl_c_ends_a_generation_with_an_error(self):
        command = [KVANT, "generate", "-m", self.tiny, "-p", PROMPT, "-n", "300", "--ignore-eos", "--threads", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.read(1)  # the answer has begun
            process.send_signal(signal.SIGINT)
            message = process.communicate(timeout=120)[1].decode()
        self.assertEqual(process.returncode, 1, message)
        self.assertIn("cancelled", message)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
