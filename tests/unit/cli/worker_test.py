"""Two processes, one prefilling and one decoding: worker_test.py KVANT KVANT_FIXTURE"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

KVANT, FIXTURE = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
TIMES = ("ttft_ms", "tpot_ms", "prefill_ms", "transfer_ms", "link_gbps_measured")
PROMPT = "the quick brown fox jumps over the lazy dog and runs away " * 6
TOKEN = "a secret that nobody guesses"
POINTS = 20
SLOW = ("--wire", "fp16", "--link-gbps", "0.01")  # the prompt takes more than a second on this line
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("KVANT_")} | {"KVANT_THREADS": "1"}


class Worker:
    """A decode-worker on a free port; its lines of standard error as they come."""

    def __init__(self, model, *words, listen="0", env=None):
        self.process = subprocess.Popen([KVANT, "decode-worker", "--listen", listen, "-m", model, *words],
                                        env=CLEAN | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.lines = []
        self.arrived = threading.Condition()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.address = re.search(r"listening on (\S+)", self.wait_for("listening")).group(1)

    def read(self):
        for line in self.process.stderr:
            with self.arrived:
                self.lines.append(line.rstrip("\n"))
                self.arrived.notify_all()
        with self.arrived:
            self.lines.append("")
            self.arrived.notify_all()

    def wait_for(self, text, seconds=60):
        """The first line with `text`, which is taken out with those before it."""
        with self.arrived:
            found = self.arrived.wait_for(lambda: [line for line in self.lines if text in line or line == ""], seconds)
            if not found or found[0] == "":
                raise AssertionError(f"no line with {text!r}: {self.lines}")
            self.lines = self.lines[self.lines.index(found[0]) + 1:]
            return found[0]

    def end(self, how=signal.SIGTERM, seconds=20):
        """Status, standard output and seconds of an end by signal."""
        begin = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(seconds)
        passed = time.monotonic() - begin
        self.reader.join(seconds)
        if not self.process.stdout.closed:
            self.output = self.process.stdout.read()
            self.process.stdout.close()
            self.process.stderr.close()
        return self.process.returncode, self.output, passed

    def resident(self):
        return int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))


class WorkerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.model = str(cls.dir / "tiny.gguf")
        cls.other = str(cls.dir / "other.gguf")
        for path, seed in ((cls.model, "1"), (cls.other, "2")):
            subprocess.run([FIXTURE, "tiny", path, "--layers", "12", "--seed", seed], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def worker(self, *words, model=None, **more):
        worker = Worker(model or self.model, *words, **more)
        self.addCleanup(worker.end, signal.SIGKILL)
        return worker

    def start(self, *words, env=None, prompt=PROMPT, tokens=("-n", "12", "--ignore-eos"), model=None):
        process = subprocess.Popen([KVANT, "generate", "-m", model or self.model, "-p", prompt, *tokens, "--json", *words],
                                   env=CLEAN | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close(), process.stderr.close()))
        return process

    def generate(self, *words, status=0, seconds=60, **more):
        """The report, or the error, of an answer."""
        process = self.start(*words, **more)
        output, message = process.communicate(timeout=seconds)
        self.assertEqual(process.returncode, status, message + output)
        return json.loads(output)

    def refused(self, worker, *words, code, text, status=1, env=None):
        error = self.generate("--decode-worker", worker.address, *words, status=status, env=env)["error"]
        self.assertEqual(error["code"], code, error)
        self.assertIn(text, error["message"])

    def assert_serves(self, worker):
        self.assertEqual(self.generate("--decode-worker", worker.address)["text"], self.expected())
        self.assertIn("12 answered", worker.wait_for("answered"))

    def expected(self):
        if not hasattr(type(self), "expected_text"):
            type(self).expected_text = self.generate("--disaggregated")["text"]
        return self.expected_text

    # ---- what is answered ----

    def test_the_report_is_that_of_two_engines_in_one_process(self):
        worker = self.worker()
        (self.dir / "yes.gbnf").write_text('root ::= "a"*')
        for words in ((), ("--wire", "fp16"), ("--wire", "int4"), ("--wire", "int8,eq=off,sinks=0"),
                      ("--temperature", "0.9", "--seed", "7", "--repeat-penalty", "1.3"),
                      ("--grammar", str(self.dir / "yes.gbnf"))):
            here = self.generate("--disaggregated", *words)
            there = self.generate("--decode-worker", worker.address, *words)
            for name in TIMES:
                self.assertGreater(there.pop(name), 0)
                here.pop(name)
            self.assertEqual(there, here)
            self.assertIn("0 B of cache in use", worker.wait_for("session"))

    def test_end_tokens_end_the_answer_there(self):
        worker = self.worker()
        words = ("--temperature", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0")
        here = self.generate("--disaggregated", *words, tokens=("-n", "300"))
        there = self.generate("--decode-worker", worker.address, *words, tokens=("-n", "300"))
        self.assertEqual((there["text"], there["finish_reason"]), (here["text"], here["finish_reason"]))

    def test_one_two_and_three_tokens_are_as_many_everywhere(self):
        worker = self.worker()
        grammar = self.dir / "nothing.gbnf"
        grammar.write_text('root ::= ""')
        cases = [(str(count), (), (count, "length")) for count in (1, 2, 3)]
        cases.append(("5", ("--grammar", str(grammar)), None))  # the first token ends the answer
        for limit, words, expected in cases:
            tokens = ("-n", limit) if words else ("-n", limit, "--ignore-eos")
            answers = []
            for way in (("--kv", "fp16"), ("--disaggregated", "--wire", "fp16"),
                        ("--decode-worker", worker.address, "--wire", "fp16")):
                report = self.generate(*way, *words, tokens=tokens)
                answers.append((report["text"], report["completion_tokens"], report["finish_reason"]))
            self.assertEqual(answers[1:], answers[:1] * 2)
            self.assertEqual(answers[0][1:], expected or (answers[0][1], "stop"))
            plain = subprocess.run([KVANT, "generate", "-m", self.model, "-p", PROMPT, *tokens, *words, "--kv", "fp16"],
                                   env=CLEAN, capture_output=True, text=True, timeout=60)
            self.assertEqual(plain.stdout, answers[0][0] + "\n")

    def fingerprints(self, name, **more):
        """What a hello says of model and tokenizer."""
        path = self.dir / name
        self.generate("--disaggregated", "--save-frames", str(path), **more)
        report = json.loads(subprocess.run([KVANT, "inspect", "--json", str(path)], env=CLEAN, capture_output=True,
                                           timeout=60).stdout)
        hello = report["files"][0]["frames"][0]["content"]
        return hello["model_fingerprint"], hello["tokenizer_fingerprint"], hello["rope_digest"]

    def test_processes_of_any_environment_know_a_model_as_the_same(self):
        here = self.fingerprints("here.frames")
        odd = {"LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Tokyo", "KVANT_ISA": "scalar"}
        self.assertEqual(self.fingerprints("there.frames", env=odd), here)
        self.assertNotEqual(self.fingerprints("other.frames", model=self.other)[0], here[0])
        worker = self.worker(env=odd)
        self.assertEqual(self.generate("--decode-worker", worker.address)["completion_tokens"], 12)

    def test_a_second_prefill_side_waits_for_the_first(self):
        worker = self.worker()
        both = [self.start("--decode-worker", worker.address, *SLOW) for _ in range(2)]
        texts = [json.loads(process.communicate(timeout=60)[0])["text"] for process in both]
        self.assertEqual(texts[0], texts[1])
        worker.wait_for("session 2: ")

    def test_the_worker_ends_after_its_sessions_and_counts_them(self):
        worker = self.worker("--sessions", "2", "--json")
        self.assert_serves(worker)
        self.refused(worker, env={"KVANT_TOKEN": TOKEN}, code="mismatch", text="token")
        worker.process.wait(20)
        status, output, _ = worker.end()
        summary = json.loads(output)
        self.assertEqual((status, summary["sessions"], summary["failed"], summary["kv_bytes"]), (0, 2, 1, 0))

    # ---- who is let in ----

    def test_the_token_is_asked_for_on_both_sides(self):
        path = self.dir / "token"
        path.write_text(TOKEN + "\n")
        path.chmod(0o600)
        worker = self.worker("--token-file", str(path))
        self.refused(worker, code="mismatch", text="the listening side has one, this side has none")
        self.assertIn("token: the connecting side has none", worker.wait_for("session 1: failed, mismatch"))
        self.refused(worker, env={"KVANT_TOKEN": "another that is long enough"}, code="mismatch",
                     text="token: the other end has another one")
        worker.wait_for("session 2: failed, mismatch")
        self.assertEqual(self.generate("--decode-worker", worker.address, "--token-file", str(path))["warnings"], [])
        worker.wait_for("session 3: ")
        self.generate("--decode-worker", worker.address, env={"KVANT_TOKEN": TOKEN})
        worker.wait_for("session 4: ")
        self.refused(worker, env={"KVANT_TOKEN": "short"}, status=2, code="invalid_argument", text="must have 16 to 1024")
        path.chmod(0o644)
        report = self.generate("--decode-worker", worker.address, "--token-file", str(path))
        self.assertIn("every user of this machine can read it", report["warnings"][0])

    def test_an_open_port_needs_a_token(self):
        done = subprocess.run([KVANT, "decode-worker", "--listen", "0.0.0.0:0", "-m", self.model], env=CLEAN,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--listen 0.0.0.0:0 is open to the network: give a token", done.stderr)

    def test_who_does_not_belong_is_refused_by_name_and_the_next_is_served(self):
        worker = self.worker(model=self.other)
        self.refused(worker, code="mismatch", text="model_fingerprint: sender 0x")
        worker.wait_for("session 1: failed, mismatch: model_fingerprint: sender 0x")
        small = self.worker("--context", "200")
        self.refused(small, code="capacity_exceeded", text="tokens are needed, the receiver has 200")
        small.wait_for("session 1: failed, capacity_exceeded")
        self.generate("--decode-worker", small.address, prompt="short")
        small.wait_for("session 2: ")

    def test_prompts_that_are_refused_leave_nothing_behind(self):
        worker = self.worker("--context", "200")
        refuse = lambda: self.refused(worker, code="capacity_exceeded", text="tokens are needed, the receiver has 200")
        refuse()
        worker.wait_for("session 1: ")
        resident, files, threads = worker.resident(), worker.files(), worker.threads()
        for number in range(POINTS):
            begin = time.monotonic()
            refuse()
            self.assertLess(time.monotonic() - begin, 5, "of --timeout 300")
            self.assertIn("0 B of cache in use", worker.wait_for(f"session {number + 2}: failed, capacity_exceeded"))
        self.assertEqual((worker.files(), worker.threads()), (files, threads))
        self.assertLess(worker.resident(), resident + (4 << 20))
        self.generate("--decode-worker", worker.address, prompt="short")

    def test_a_stranger_is_passed_over(self):
        worker = self.worker("--timeout", "2")
        resident = worker.resident()
        host, port = worker.address.rsplit(":", 1)
        for words in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), b""):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(words)
                time.sleep(0.2)
        self.assert_serves(worker)
        self.assertLess(worker.resident(), resident + (50 << 20))

    def cut_after(self, worker, num_bytes):
        """A port that leads to the worker for so many bytes, then nowhere."""
        host, port = worker.address.rsplit(":", 1)
        listener = socket.create_server(("127.0.0.1", 0))

        def lead():
            client, _ = listener.accept()
            with listener, client, socket.create_connection((host, int(port))) as inner:
                inner.sendall(client.recv(num_bytes) if num_bytes > 0 else b"")
                time.sleep(0.1)

        thread = threading.Thread(target=lead)
        thread.start()
        self.addCleanup(thread.join)
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def test_a_connection_that_is_cut_before_it_stands_ends_in_time_and_the_next_is_served(self):
        worker = self.worker("--timeout", "3")
        for num_bytes in (0, 1, 8, 64):
            begin = time.monotonic()
            error = self.generate("--decode-worker", self.cut_after(worker, num_bytes), "--timeout", "3", status=1)["error"]
            self.assertIn(error["code"], ("timeout", "transport_closed", "io_error"), num_bytes)
            self.assertLess(time.monotonic() - begin, 3 + 3)
            self.assert_serves(worker)

    def test_an_address_that_cannot_be_had_is_said_before_a_model_is_loaded(self):
        worker = self.worker()
        missing = str(self.dir / "missing.gguf")
        for listen, text in ((worker.address, worker.address), ("127.0.0.1:70000", "127.0.0.1:70000"),
                             ("nobody.invalid:1", "nobody.invalid")):
            begin = time.monotonic()
            done = subprocess.run([KVANT, "decode-worker", "--listen", listen, "-m", missing], env=CLEAN,
                                  capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertLess(time.monotonic() - begin, 5)
            self.assertIn(text, done.stderr)
            self.assertNotIn("missing.gguf", done.stderr)
        self.assert_serves(worker)

    def test_a_worker_that_is_started_again_is_found_where_it_was(self):
        first = self.worker()
        self.assert_serves(first)
        prefill = self.start_transfer(first, "--timeout", "10")
        first.end(signal.SIGKILL)
        self.assertIn("error", json.loads(prefill.communicate(timeout=30)[0]))
        again = self.worker(listen=first.address)
        self.assertEqual(again.address, first.address)
        for _ in range(3):
            self.assert_serves(again)

    def test_nobody_listens(self):
        worker = self.worker()
        worker.end()
        error = self.generate("--decode-worker", worker.address, "--timeout", "3", status=1)["error"]
        self.assertIn(error["code"], ("timeout", "transport_closed"))
        self.assertIn(worker.address, error["message"])

    def test_a_flag_without_meaning_is_refused(self):
        for words, text in ((("--decode-worker", "1", "--disaggregated"), "give one of them"),
                            (("--decode-worker", "nonsense"), "'nonsense' is not HOST:PORT")):
            self.assertIn(text, self.generate(*words, status=2)["error"]["message"])

    # ---- how it ends ----

    def test_signals_end_an_idle_worker_at_once(self):
        for how in (signal.SIGINT, signal.SIGTERM):
            status, output, seconds = self.worker("--json").end(how)
            self.assertEqual((status, json.loads(output)["sessions"]), (0, 0))
            self.assertLess(seconds, 2)

    def test_signals_end_both_sides_of_a_transfer_at_once(self):
        for how in (signal.SIGINT, signal.SIGTERM):
            worker = self.worker("--json")
            for victim in ("prefill", "worker"):
                prefill = self.start("--decode-worker", worker.address, "--wire", "fp16", "--link-gbps", "0.0005")
                time.sleep(2)  # of about 30
                begin = time.monotonic()
                (prefill if victim == "prefill" else worker.process).send_signal(how)
                output, _ = prefill.communicate(timeout=20)
                self.assertLess(time.monotonic() - begin, 3)
                self.assertEqual(json.loads(output)["error"]["code"], "cancelled")
                self.assertIn("cancelled", worker.wait_for("failed, cancelled"))
            worker.process.wait(20)
            status, output, _ = worker.end()
            self.assertEqual((status, json.loads(output)["failed"]), (0, 2))

    def transfer_seconds(self, worker):
        """How long a slow transfer takes."""
        report = self.generate("--decode-worker", worker.address, *SLOW)
        worker.wait_for("answered")
        self.assertGreater(report["transfer_ms"], 300, "too fast to be interrupted")
        return report["transfer_ms"] / 1000

    def start_transfer(self, worker, *words):
        """A prefill side of which the worker knows."""
        idle = worker.files()
        prefill = self.start("--decode-worker", worker.address, *SLOW, *words)
        deadline = time.monotonic() + 30
        while worker.files() == idle:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)
        return prefill

    def test_a_prefill_side_killed_at_any_point_leaves_a_worker_that_serves_the_next(self):
        worker = self.worker("--timeout", "10")
        whole = self.transfer_seconds(worker)
        self.assert_serves(worker)
        resident, files, threads = worker.resident(), worker.files(), worker.threads()
        reasons = []
        for point in range(POINTS):
            prefill = self.start_transfer(worker)
            time.sleep(whole * point / POINTS)
            prefill.kill()
            begin = time.monotonic()
            self.assertEqual(self.generate("--decode-worker", worker.address)["text"], self.expected())
            self.assertLess(time.monotonic() - begin, 10)
            line = worker.wait_for("session ")  # of the killed one, unless it died before it was let in, or was done
            reasons.append(line)
            self.assertIn("0 B of cache in use", line)
            if "failed" in line:
                self.assertIn("12 answered", worker.wait_for("session "))
        self.assertGreater(len([line for line in reasons if "failed, transport_closed" in line]), POINTS // 2, reasons)
        self.assertLess(worker.resident(), resident + (8 << 20))
        self.assertEqual((worker.files(), worker.threads()), (files, threads))

    def test_a_worker_killed_at_any_point_is_named_by_the_prefill_side(self):
        whole = self.transfer_seconds(self.worker())
        codes = []
        for point in range(POINTS):
            worker = self.worker()
            prefill = self.start_transfer(worker, "--timeout", "10")
            time.sleep(whole * point / POINTS)
            worker.end(signal.SIGKILL)
            begin = time.monotonic()
            output, message = prefill.communicate(timeout=30)
            self.assertLess(time.monotonic() - begin, 12)
            report = json.loads(output)
            codes.append(report.get("error", {}).get("code", "answered"))
            self.assertEqual(prefill.returncode, 1 if "error" in report else 0, message)
        self.assertGreater(codes.count("transport_closed"), POINTS // 2, codes)
        self.assertLessEqual(set(codes), {"transport_closed", "timeout", "answered"})

    def test_a_side_that_hangs_is_given_up_at_the_deadline(self):
        worker = self.worker("--timeout", "2")
        whole = self.transfer_seconds(worker)
        prefill = self.start_transfer(worker)
        time.sleep(whole / 2)
        prefill.send_signal(signal.SIGSTOP)
        worker.wait_for("failed, timeout", seconds=10)
        prefill.kill()
        self.assert_serves(worker)
        prefill = self.start_transfer(worker, "--timeout", "2")
        time.sleep(whole / 2)
        worker.process.send_signal(signal.SIGSTOP)
        output, _ = prefill.communicate(timeout=20)
        self.assertEqual(json.loads(output)["error"]["code"], "timeout")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
