"""Takes the place of bpf-opt in tests: objects are lines `function slots`."""

import hashlib
import json
import os
import sys
import time


def functions(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if text.startswith("!"):
        sys.stderr.write(f"bpf-opt: {path}: is no object\n")
        return None
    return [line.split() for line in text.splitlines()]


def part(line):
    return hashlib.sha256(" ".join(line).encode()).hexdigest()[:32]


def main():
    words = sys.argv[1:]
    if "--help" in words:
        print("--make-parts")
        return 0
    if words[0] == "rules":
        return 0
    words = words[1:]
    value = {w: words[i + 1] for i, w in enumerate(words[:-1])}
    inputs = [w for w in words if w.endswith(".o") and value.get("-o") != w]
    if "--list-parts" in words:
        code = 0
        for path in inputs:
            found = functions(path)
            named = [{"function": f[0], "section": "s", "slots": int(f[1]), "part": part(f)} for f in found or []]
            print(
                json.dumps({"input": path, "functions": named, "error": None if found is not None else "is no object"})
            )
            code = code if found is not None else 2
        return code
    found = functions(inputs[0])
    if found is None:
        return 2
    time.sleep(float(os.environ.get("STUB_SECONDS", "0")))
    folder = value["--parts"]
    os.makedirs(folder, exist_ok=True)
    if "--make-parts" in words:
        wanted = {words[i + 1] for i, w in enumerate(words) if w == "--program"}
        for line in found:
            if line[0] in wanted and not line[0].startswith("bad"):
                with open(os.path.join(folder, part(line) + ".json"), "w", encoding="utf-8") as file:
                    file.write(" ".join(line))
        return 0
    with open(value["-o"], "w", encoding="utf-8") as out:
        for line in found:
            with open(os.path.join(folder, part(line) + ".json"), encoding="utf-8") as file:
                out.write(f"better {file.read()}\n")
    with open(value["--json"], "w", encoding="utf-8") as report:
        slots = sum(int(line[1]) for line in found)
        totals = {
            "functions": len(found),
            "changed": len(found),
            "slots_before": slots,
            "slots_after": slots - len(found),
        }
        parts = {"taken": len(found), "made": 0, "again": False}
        json.dump({"totals": totals, "parts": parts, "gate": os.environ.get("STUB_GATE", "skipped")}, report)
    return 0


sys.exit(main())
