"""What the scripts that measure write into documents: tables, what stands between two marks, and on which machine."""
import math, os


def table(head, rows):
    """Lines of Markdown; all but the first column to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]


def mean(ratios):
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def machine():
    """The processor, the kernel, and how busy it is."""
    cpu = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    return f"{cpu}, Linux {os.uname().release}, load {open('/proc/loadavg').read().split()[0]} at the end"


def write_between(path, name, lines):
    """Puts lines between `<!-- NAME: begin -->` and its end."""
    text = open(path).read()
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in text or end not in text:
        raise SystemExit(f"{path}: no line {begin} before {end}")
    head, rest = text.split(begin, 1)
    with open(path, "w") as out:
        out.write(head + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1])
