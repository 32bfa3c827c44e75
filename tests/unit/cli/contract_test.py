"""The command line's contract, on the real program: contract_test.py KVANT KVANT_FIXTURE"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

KVANT, FIXTURE = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
COMMANDS = ("bench", "eval", "generate", "models")
NUMBERS = ("prompt_tokens", "completion_tokens", "ttft_ms", "tpot_ms", "prefill_ms", "transfer_ms", "kv_bytes",
           "kv_bytes_fp16", "wire_bytes", "wire_bytes_fp16")
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

    def generate(self, *words, prompt=PROMPT, **more):
        """The report of a short answer of the tiny model, which ends by length."""
        done = self.run_kvant("generate", "-m", self.tiny, "-p", prompt, "-n", "6", "--ignore-eos", "--json", *words,
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
        self.refused([], 2, "subcommand")
        self.refused(["dance"], 2)
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
        self.refused([*tiny, "--link-gbps", "-1", "--disaggregated"], 2, "--link-gbps")

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

    def test_bad_prompts_are_named(self):
        tiny = ["generate", "-m", self.tiny]
        self.refused([*tiny, "-p", ""], 2, "the prompt is empty")
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

    def test_a_bad_grammar_is_refused(self):
        grammar = self.dir / "bad.gbnf"
        grammar.write_text("root ::= (")
        self.refused(["generate", "-m", self.tiny, "-p", "x", "--grammar", str(grammar)], 2, "grammar")
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
