"""Makes an OCI image of the bundle, as a tar that `ctr images import` takes: image.py BUNDLE OUT.tar NAME.

One layer with the bundle and nothing else: it brings its own libc. The entrypoint installs it into
the host's directory of CNI plugins, mounted at /host/opt/cni/bin, and then waits.
OCI image specification, image layout 1.0.0.
"""

import gzip
import hashlib
import io
import json
import platform
import sys
import tarfile
from pathlib import Path

_ENTRYPOINT = ["/rdma-cni/rdma-cni", "install", "--bin-dir", "/host/opt/cni/bin", "--wait"]
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def layer(bundle: Path) -> bytes:
    """A tar of the bundle, with nothing in it that two builds would have different."""

    def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = 0
        return info

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for directory in ("proc", "sys", "tmp"):
            info = tarfile.TarInfo(directory)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for path in [bundle, *sorted(bundle.rglob("*"))]:
            tar.add(path, f"rdma-cni/{path.relative_to(bundle)}", recursive=False, filter=anonymous)
    return out.getvalue()


def reference(name: str) -> str:
    """A name as CRI looks for it: without a host in it, it would look in the default registry's part of its store."""
    host, slash, _ = name.partition("/")
    return name if slash and ("." in host or ":" in host or host == "localhost") else f"localhost/{name}"


def image(bundle: Path, name: str) -> dict[str, bytes]:
    """The files of the image layout."""
    blobs = {}

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    tar = layer(bundle)
    machine = platform.machine()
    config = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": _ENTRYPOINT, "Env": ["PATH=/rdma-cni"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(gzip.compress(tar, mtime=0), "layer.v1.tar+gzip")],
    }
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    return {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}


def main() -> None:
    bundle, out, name = Path(sys.argv[1]), Path(sys.argv[2]), reference(sys.argv[3])
    with tarfile.open(out, "w") as tar:
        for path, data in image(bundle, name).items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    print(f"{out}: {name}, {out.stat().st_size >> 20} MB")  # noqa: T201


if __name__ == "__main__":
    main()
