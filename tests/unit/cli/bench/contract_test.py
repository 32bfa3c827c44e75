"""What `kvant bench` promises, on the real program: contract_test.py KVANT KVANT_FIXTURE. Nothing here is timed."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

KVANT, FIXTURE = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
SMALL = ("--memory-mb", "8", "--quick", "--threads", "2")
ARM_FIELDS = {"name", "median", "spread", "unit", "bytes", "gb_s"}


class BenchContractTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.tiny = str(pathlib.Path(cls.folder.name) / "tiny.gguf")
        subprocess.run([FIXTURE, "tiny", cls.tiny], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_bench(self, *words, status=0, env=None):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("KVANT_")}
        done = subprocess.run([KVANT, "bench", *words], env=clean | (env or {}), capture_output=True, timeout=600)
        self.assertEqual(done.returncode, status, f"{words}\n{done.stdout}\n{done.stderr}")
        return done

    def report(self, *words, base=0, **more):
        """The JSON report, with what every bench promises checked."""
        report = json.loads(self.run_bench(*words, "--json", **more).stdout)
        base = report["arms"][base if isinstance(base, int) else self.names(report).index(base(report))]
        self.assertEqual(len(report["ratio"]), len(report["arms"]))
        for arm, ratio in zip(report["arms"], report["ratio"]):
            self.assertEqual(set(arm), ARM_FIELDS)
            self.assertGreater(arm["median"], 0)
            self.assertGreaterEqual(arm["spread"], 0)
            self.assertAlmostEqual(ratio, arm["median"] / base["median"])
        self.assertIn(report["isa"], ("scalar", "avx2", "avx512-vnni"))
        self.assertEqual(report["threads"], 2)
        return report

    @staticmethod
    def names(report):
        return [arm["name"] for arm in report["arms"]]

    def test_codec(self):
        report = self.report("codec", *SMALL)
        codecs = ("int8", "int4", "int4-affine")
        self.assertEqual(self.names(report), ["memcpy", *(f"{way} {codec}" for codec in codecs
                                                          for way in ("encode", "decode"))])
        for arm in report["arms"]:
            self.assertEqual(arm["unit"], "GB/s")
            self.assertAlmostEqual(arm["gb_s"], arm["median"])

    def test_codec_takes_precisions_and_rows(self):
        report = self.report("codec", *SMALL, "--kv", "fp16,int8,int8,eq=off", "--head-dim", "40")
        self.assertEqual(self.names(report), ["memcpy", "encode fp16", "decode fp16", "encode int8", "decode int8"])
        self.assertEqual(report["head_dim"], 40)

    def test_attention(self):
        shape = ("--head-dim", "64", "--kv-heads", "2", "--q-heads", "6")
        report = self.report("attention", *SMALL, *shape, "--context", "1024,2048")
        self.assertEqual(self.names(report), [f"{kv} {context}" for context in (1024, 2048)
                                              for kv in ("fp16", "int8", "int4", "int4,eq=off")])
        self.assertEqual([arm["bytes"] for arm in report["arms"][4:6]],
                         [2048 * 2 * 2 * 128, 2 * 2 * (4 * 128 + 2044 * 66)])
        self.assertGreater(report["read_gb_s"], 0)
        for arm, share, over in zip(report["arms"], report["share_of_read"], report["over_fp16"]):
            self.assertAlmostEqual(share, arm["gb_s"] / report["read_gb_s"])
            fp16 = next(other for other in report["arms"] if other["name"] == "fp16 " + arm["name"].split()[1])
            self.assertAlmostEqual(over, arm["median"] / fp16["median"])

    def test_attention_over_the_tiers_of_a_spectrum(self):
        shape = ("--head-dim", "64", "--kv-heads", "2", "--q-heads", "6")
        report = self.report("attention", *SMALL, *shape, "--context", "512,1024", "--kv",
                             "int8,spectrum:b=0.4,eq=off,sinks=0")
        word = "spectrum:b=0.4,eq=off,sinks=0"
        self.assertEqual(self.names(report), ["int8 512", word + " 512", "int8 1024", word + " 1024"])
        self.assertEqual(report["arms"][3]["bytes"], 2 * 2 * (614 * 66 + 410 * 34))
        self.assertEqual(report["tiers"][1],
                         word + " 1024: 0 tokens at fp16, 614 int8, 410 int4, 0 dropped, chosen at random")

    def test_attention_over_pair_pages(self):
        shape = ("--head-dim", "64", "--kv-heads", "2", "--q-heads", "6", "--context", "1024")
        report = self.report("attention", *SMALL, *shape, "--kv", "fp16,pnmix:3/1@50%,v=2,pairs:2.0,vg=32")
        self.assertEqual(self.names(report), ["fp16 1024", "pnmix:3/1@50% 1024", "pairs:2,vg=32 1024"])
        # keys of 2 bits, values of 2 or 4; fp16 scale and zero a channel and page, and a value group and token
        page = 128 * 64 * 2 // 8 + 4 * 64
        self.assertEqual([arm["bytes"] for arm in report["arms"][1:]],
                         [8 * 2 * (page + 128 * (64 * 2 // 8 + 4)), 8 * 2 * (page + 128 * (64 * 4 // 8 + 8))])
        self.assertIn(b"vg", self.run_bench("attention", "--kv", "pairs:2,vg=24", status=2).stderr)

    def test_pack(self):
        report = self.report("pack", *SMALL, "--head-dim", "64")
        self.assertEqual(self.names(report), ["memcpy", "pnmix:3/1@50%", "pairs:2"])
        self.assertIsNone(report["packed_mb"][0])
        bytes_of_page = 128 * 64 * 4 // 8 + 4 * 64 + 4 * 128
        self.assertAlmostEqual(report["packed_mb"][1] * 1e6, report["arms"][1]["bytes"] // (2 * 128 * 64 * 2) * bytes_of_page)
        self.assertIn(b"int8", self.run_bench("pack", "--kv", "int8", status=2).stderr)

    def test_a_gpu_that_is_not_there_is_named(self):
        for bench in ("attention", "codec", "pack"):
            done = subprocess.run([KVANT, "bench", bench, "--device", "cuda", "--quick", "--json"], capture_output=True,
                                  timeout=600)
            report = json.loads(done.stdout)
            if done.returncode == 0:  # there is one: then it is the report
                self.assertIn("device", report)
                self.assertTrue(report["isa"].startswith("sm_"))
                continue
            self.assertEqual(done.returncode, 1)
            self.assertEqual(report["error"]["code"], "not_found")
            self.assertRegex(report["error"]["message"], "no usable GPU|no CUDA kernels")

    def test_what_the_gpu_does_not_measure_is_refused(self):
        self.assertIn(b"--kv", self.run_bench("pack", "--device", "cuda", "--kv", "pairs:2", status=2).stderr)
        self.assertIn(b"--kv", self.run_bench("codec", "--device", "cuda", "--kv", "int8", status=2).stderr)

    def test_decode(self):
        words = ("-m", self.tiny, "--quick", "--threads", "2", "--kv", "fp16,int4", "--context", "256")
        report = self.report("decode", *words)
        self.assertEqual(self.names(report), ["depth-0", "fp16", "int4"])
        self.assertEqual((report["context"], report["reference"], report["kl"][:2]), (256, "fp16", [None, 0.0]))
        self.assertGreater(report["kl"][2], 0)
        self.assertEqual(report["share_of_depth_0"], report["ratio"])
        self.assertIsNone(report["prefill_tok_s"][0])
        layers, heads, head_dim = 2, 2, 32
        token_bytes = layers * heads * 2 * head_dim * 2
        self.assertEqual([arm["bytes"] for arm in report["arms"][:2]], [64 * token_bytes, 256 * token_bytes])
        self.assertLess(report["arms"][2]["bytes"], report["arms"][1]["bytes"])

    def test_decode_against_llama_cpp(self):
        words = ("-m", self.tiny, "--quick", "--threads", "2", "--context", "256", "--compare", "llama.cpp")
        report = self.report("decode", *words, base=lambda report: report["rival"])
        self.assertEqual(self.names(report), ["depth-0", "fp16", "int8", "int4", "llama.cpp f16 flash",
                                              "llama.cpp f16"])
        arms = {arm["name"]: arm for arm in report["arms"]}
        rivals = {name: arm["median"] for name, arm in arms.items() if "llama.cpp" in name}
        self.assertEqual(report["rival"], max(rivals, key=rivals.get))
        self.assertAlmostEqual(report["limit"], arms["depth-0"]["median"] / rivals[report["rival"]])
        self.assertEqual(arms["llama.cpp f16"]["bytes"], arms["fp16"]["bytes"])
        self.assertEqual(max(report["prefill_ratio"][4:]), 1)
        self.assertEqual((report["reference"], report["kl"][4]), ("llama.cpp f16 flash", 0))

    def test_without_json_a_table_is_on_standard_output_and_nothing_on_standard_error(self):
        done = self.run_bench("codec", *SMALL)
        self.assertRegex(done.stdout.decode(), r"(?m)^memcpy +\d+\.\d+ .*GB/s")
        self.assertEqual(done.stderr, b"")

    def test_every_flag_has_its_environment_twin(self):
        for bench in ("codec", "attention", "decode"):
            text = self.run_bench(bench, "--help").stdout.decode()
            flags = re.findall(r"^  (?:-\w,)?--([a-z-]+)(.*)", text, re.MULTILINE)
            self.assertGreater(len(flags), 4)
            for name, rest in flags:
                if name != "help":
                    self.assertIn(f"(Env:KVANT_{name.upper().replace('-', '_')})", rest, name)
        env = {"KVANT_MEMORY_MB": "8", "KVANT_QUICK": "true", "KVANT_THREADS": "2", "KVANT_KV": "int8"}
        self.assertEqual(len(self.report("codec", env=env)["arms"]), 3)

    def test_wrong_usage_is_status_2(self):
        for words, expected in (((), "no command"), (("dance",), "dance"), (("codec", "--dance"), "--dance"),
                                (("codec", "--compare", "llama.cpp"), "--compare"),
                                (("codec", "--head-dim", "33"), "--head-dim"), (("codec", "--kv", "int3"), "int3"),
                                (("attention", "--q-heads", "9"), "--q-heads"),
                                (("codec", "--kv", "int8,sws:0.5"), "no prompt"),
                                (("attention", "--context", "0"), "--context"),
                                (("attention", "--context", "4"), "from 128"),
                                (("decode", "--compare", "vllm"), "--compare"),
                                (("decode", "-m", self.tiny, "--context", "1e3"), "--context")):
            done = self.run_bench(*words, status=2)
            self.assertEqual(done.stdout, b"")
            self.assertIn(expected, done.stderr.decode())
        self.assertIn(b"missing.gguf", self.run_bench("decode", "-m", "missing.gguf", status=1).stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
