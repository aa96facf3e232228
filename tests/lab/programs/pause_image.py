"""Makes an image with one static program: pause_image.py PROGRAM OUT.tar NAME.

It is what pod sandboxes run in a guest that reaches no registry.
"""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path


def archive(files: dict[str, tuple[bytes, int]]) -> bytes:
    """A tar of files: their content and mode."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, (data, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def main() -> None:
    program, out, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    layer = archive({program.name: (program.read_bytes(), 0o755)})
    layers = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    # The lab's guest is one: see the kernel's package in `lab`.
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": [f"/{program.name}"]}, "rootfs": layers}
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    files = {"layer.tar": layer, config_name: config, "manifest.json": manifest}
    out.write_bytes(archive({name: (data, 0o644) for name, data in files.items()}))


if __name__ == "__main__":
    main()
