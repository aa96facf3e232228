"""The frozen program's first module: makes the bundle's modules importable, and starts the one that was called.

It stands in for PyInstaller's own bootstrap, which costs 0.4 of a bare interpreter's
start (three modules of its own, a search of every `sys.path` entry for each import,
zlib for each module). The plugin is started once for each interface of each pod, so
its start is its speed. Here an import is one look-up in an index, one pread and one
unmarshal. build.spec writes the file that this reads.
"""

import _frozen_importlib
import _frozen_importlib_external
import _signal  # type: ignore[import-not-found]
import gc
import marshal
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class BundledModules:
    """Finder and loader of the modules in `modules`, the file beside the libraries.

    Its layout: the length of a first index (8 bytes, little-endian), that index, an index of the
    rest, the code objects. An index maps a module's name to (is a package, offset, length), and an
    extension module's to the path of its shared object below the bundle's directory. The first is of
    what plugins import. It also has under "name COMMAND", such as "rdma ADD", what that command always
    imports, as (offset, length) of a list of (name, is a package, code object), and under "" the place of
    the other.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        # Left open: the program goes on with its own modules when the bundle is replaced meanwhile.
        self._file = posix.open(home + "/modules", posix.O_RDONLY | posix.O_CLOEXEC)
        self._index = self._load(8, int.from_bytes(posix.pread(self._file, 8, 0), "little"))

    def _load(self, offset: int, length: int) -> "Any":
        return marshal.loads(posix.pread(self._file, length, offset))

    def _entry(self, name: str) -> "Any":
        if name not in self._index:
            rest = self._index.get("")
            if rest:
                # Another thread may be doing the same.
                self._index.update(self._load(*rest))
                self._index.pop("", None)
        return self._index.get(name)

    def preload(self, command: str) -> None:
        """Have the modules that `command` always imports, at once, in an order in which each finds those before it.

        The import system takes longer to find, lock and describe a module than its code takes to run.
        """
        entry = self._index.get(command)
        if entry is None:
            return
        module, all_modules, specification = type(sys), sys.modules, _frozen_importlib.ModuleSpec
        for name, is_package, code in self._load(*entry):
            made = all_modules[name] = module(name)
            names = made.__dict__
            parent, _, child = name.rpartition(".")
            # Each `from ... import` asks whether the module is still being made.
            spec = names["__spec__"] = specification(name, None, is_package=is_package)
            spec._initializing = False  # type: ignore[attr-defined]
            names["__file__"] = f"{self._home}/{code.co_filename}"
            names["__package__"] = name if is_package else parent
            if is_package:
                names["__path__"] = [f"{self._home}/{name.replace('.', '/')}"]
            exec(code, names)  # noqa: S102
            if parent:
                setattr(all_modules[parent], child, made)

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        entry = self._entry(name)
        if entry is None:
            return None
        if isinstance(entry, str):
            location = f"{self._home}/{entry}"
            loader = _frozen_importlib_external.ExtensionFileLoader(name, location)
            spec = _frozen_importlib.ModuleSpec(name, loader, origin=location)
            spec.has_location = True
            return spec
        spec = _frozen_importlib.ModuleSpec(name, self, is_package=entry[0])  # type: ignore[arg-type]
        if entry[0]:
            spec.submodule_search_locations = [f"{self._home}/{name.replace('.', '/')}"]
        return spec

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: object) -> None:
        names = module.__dict__
        _, offset, length = self._entry(names["__name__"])
        code = self._load(offset, length)
        names["__file__"] = f"{self._home}/{code.co_filename}"
        exec(code, names)  # noqa: S102


# A stream that the caller closed: what is opened next would be it, and the result be written into
# that, or the file of modules be read for a configuration. What stands there fails when it is used.
for _fd, _mode in ((0, posix.O_WRONLY), (1, posix.O_RDONLY), (2, posix.O_WRONLY)):
    try:
        posix.fstat(_fd)
    except OSError:
        posix.open("/dev/null", _mode)

# Until the program has its own handlers a SIGINT, which program.c has held back so far, ends it as a SIGTERM
# does: the one that comes with this module would write a traceback.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
if __name__ == "__main__":
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))

# Before the path finder, which would look into three places first.
_modules = BundledModules(sys.prefix)
sys.meta_path.insert(2, _modules)  # type: ignore[arg-type]
sys.frozen = True  # type: ignore[attr-defined]
if __name__ == "__main__":
    _name = sys.argv[0].rpartition("/")[2]
    # A plugin ends before there would be anything to collect.
    if _name == "rdma-cni":
        gc.enable()
    _command = posix.environ.get(b"CNI_COMMAND", b"").decode("ascii", "replace")
    _modules.preload(f"{_name} {_command}")
    from rdma_cni.main import program

    program(sys.argv)
