"""What the scripts that measure share: how they call bpf-opt, and what they write into documents: tables, what stands between two marks,
on which machine and of which build."""
import glob, math, os, struct, subprocess, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.path.join(ROOT, "target/release/bpf-opt")


class Failed(Exception):
    """What could not be done, in words."""


def tool(binary, *words, codes=(0,), limit=None):
    """What bpf-opt prints. Any other exit code, and more seconds than the limit, are a failure, with the first line of its complaint."""
    try:
        run = subprocess.run([binary, *words], capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{' '.join(words[:2])}: not done in {limit:g} s") from late
    if run.returncode not in codes:
        raise Failed(f"{' '.join(words[:2])}: {(run.stderr.strip().splitlines() or [f'exit code {run.returncode}'])[0]}")
    return run.stdout


def does_not_load(said, path):
    """Is the complaint that libbpf does not load this very object?"""
    return f"{path}: the object does not load" in said


def objects(places):
    """Objects, and those of folders in their order."""
    return [o for p in places for o in (sorted(glob.glob(os.path.join(p, "*.o"))) if os.path.isdir(p) else [p])]


def named(path):
    """An object's name without its ending."""
    return os.path.basename(path).removesuffix(".o")


def kept_as(work, path):
    """Where results on an object are kept: objects of two folders may have one name."""
    return os.path.join(work, f"{os.path.basename(os.path.dirname(os.path.abspath(path)))}-{named(path)}")


def slots(path):
    """Of all sections of code of an object."""
    data = open(path, "rb").read()
    offset, = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    headers = (struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count))
    return sum(h[5] // 8 for h in headers if h[1] == 1 and h[2] & 4)


def table(head, rows):
    """Lines of Markdown; all but the first column to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]


def mean(ratios):
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def build():
    """The commit, and whether what the program is made of has changed since; nothing outside of a git tree."""
    git = lambda *words: subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
    try:
        commit = git("describe", "--always")
        changed = git("diff", "--quiet", "HEAD", "--", "crates", "Cargo.toml", "Cargo.lock").returncode
    except FileNotFoundError:
        return ""
    return "" if commit.returncode else f", build {commit.stdout.strip()}{' with changes' if changed else ''}"


# Of when the script began: it may run for an hour.
BUILD = build()


def machine():
    """The processor, the kernel, how busy it is, and the build."""
    cpu = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    return f"{cpu}, Linux {os.uname().release}, load {open('/proc/loadavg').read().split()[0]} at the end{BUILD}"


def measured(target):
    """When, by what and where: the beginning of a section's first line."""
    return f"Measured on {time.strftime('%F', time.gmtime())} by `make {target}`: {machine()}"


def write_between(path, name, lines):
    """Puts lines between `<!-- NAME: begin -->` and its end."""
    text = open(path).read()
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in text or end not in text:
        raise SystemExit(f"{path}: no line {begin} before {end}")
    head, rest = text.split(begin, 1)
    with open(path, "w") as out:
        out.write(head + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1])
