"""A table of what `kvant generate --disaggregated --json` reported: precision_table.py REPORT..."""
import json
import sys
import textwrap

HEADER = ("sent as", "wire bytes", "of fp16", "TTFT", "tok/s", "answer")
ANSWER_COLUMNS = 64


def cells(report):
    share = report["wire_bytes"] / report["wire_bytes_fp16"]
    speed = f"{1000 / report['tpot_ms']:.1f}" if report["tpot_ms"] else "-"
    return (report["wire"], f"{report['wire_bytes']:,}", f"{share:.3f}", f"{report['ttft_ms']:.0f} ms", speed)


def table(reports):
    rows = [HEADER[:-1]] + [cells(report) for report in reports]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row, answer):
        return "  ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])] + [answer]).rstrip()

    yield line(HEADER[:-1], HEADER[-1])
    yield line(["-" * width for width in widths], "-" * ANSWER_COLUMNS)
    blank = [""] * len(widths)
    for report, row in zip(reports, rows[1:]):
        answer = textwrap.wrap(" ".join(report["text"].split()), ANSWER_COLUMNS) or [""]
        yield line(row, answer[0])
        for more in answer[1:]:
            yield line(blank, more)


def main(paths):
    reports = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            reports.append(json.load(file))
    first = reports[0]
    link = f"{first['link_gbps']} Gbit/s" if first["link_gbps"] else "unlimited rate"
    print(f"\n{first['prompt_tokens']} prompt tokens, link of {link}, {first['isa']}, {first['threads']} threads\n")
    print("\n".join(table(reports)))


if __name__ == "__main__":
    main(sys.argv[1:])
