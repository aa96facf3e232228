"""Runs a program of the bundle in this interpreter, each import by itself: imported.py INTERNAL START NAME.

With `-X importtime` the interpreter writes each module to stderr when it has been imported, so one
comes after those that it imports; a line tells where the program's own begin.
"""

import sys

_, sys.prefix, start, name = sys.argv
# With no name of a program's, nothing is loaded beforehand.
sys.argv = ["", ""]
with open(start, encoding="utf-8") as file:
    exec(compile(file.read(), start, "exec"), {"__name__": "start"})  # noqa: S102
from rdma_cni.main import main  # noqa: E402

sys.stderr.write("import time: begin\n")
sys.exit(main([name]))
