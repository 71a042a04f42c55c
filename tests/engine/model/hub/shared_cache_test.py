"""Shares one cache between two programs: huggingface_hub finds the files of `hydrant pull` without
a request, and vice versa. Both fetch from a stand-in of the hub on loopback, so huggingface_hub
checks its protocol too.

usage: shared_cache_test.py HYDRANT        exit status 77: huggingface_hub is not installed
"""
import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "some-org/tiny"
# Large files, as stored in Git LFS.
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "README.md": b"not needed to serve it",
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": bytes(range(256)) * 4000,
    "model-00002-of-00002.safetensors": bytes(reversed(range(256))) * 3000,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    ).encode(),
    "gguf/tiny.Q8_0.gguf": b"GGUF" * 1000,
}


def is_large(name):
    return name.endswith((".safetensors", ".gguf"))


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag(name):
    return hashlib.sha256(FILES[name]).hexdigest() if is_large(name) else git_sha1(FILES[name])


def tree():
    entries = [{"type": "directory", "path": "gguf", "size": 0, "oid": "a" * 40}]
    for name, data in FILES.items():
        entry = {"type": "file", "path": name, "size": len(data), "oid": git_sha1(data)}
        if is_large(name):
            entry["lfs"] = {"oid": etag(name), "size": len(data), "pointerSize": 134}
        entries.append(entry)
    return entries


class Hub(http.server.BaseHTTPRequestHandler):
    def answer(self, body, headers=None, status=200):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        info = {"sha": COMMIT, "id": REPO, "modelId": REPO, "siblings": [{"rfilename": name} for name in FILES]}
        if path in (f"/api/models/{REPO}/revision/main", f"/api/models/{REPO}"):
            return self.answer(json.dumps(info).encode())
        if path == f"/api/models/{REPO}/tree/{COMMIT}":
            return self.answer(json.dumps(tree()).encode())
        for revision in (COMMIT, "main"):
            name = path.removeprefix(f"/{REPO}/resolve/{revision}/")
            if name in FILES:
                headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(name)}"'}
                return self.answer(FILES[name], headers)
        return self.answer(b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, 404)

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def pull(hydrant, model, environment):
    run = subprocess.run([hydrant, "pull", model], env=environment, capture_output=True, text=True, timeout=120)
    check(run.returncode == 0, f"hydrant pull {model}: exit code {run.returncode}\n{run.stdout}{run.stderr}")
    return pathlib.Path(run.stdout.strip())


def ours_for_python(hydrant, environment, folder):
    import huggingface_hub

    cache = folder / "ours"
    snapshot = pull(hydrant, REPO, {**environment, "HF_HUB_CACHE": str(cache)})
    gguf = pull(hydrant, REPO + ":q8_0", {**environment, "HF_HUB_CACHE": str(cache)})
    pulled = [name for name in FILES if name != "README.md"]
    for name in pulled:
        path = huggingface_hub.hf_hub_download(REPO, name, cache_dir=cache, local_files_only=True)
        check(pathlib.Path(path).read_bytes() == FILES[name], f"the bytes of {name}")
        check(os.readlink(path).startswith("../"), f"{name} is a relative link")
    check(gguf.read_bytes() == FILES["gguf/tiny.Q8_0.gguf"], "the GGUF file's path")
    found = huggingface_hub.snapshot_download(
        REPO, cache_dir=cache, local_files_only=True, ignore_patterns=["README.md"]
    )
    check(pathlib.Path(found) == snapshot, "the snapshot's folder")
    info = huggingface_hub.scan_cache_dir(cache)
    check(not info.warnings, f"scan_cache_dir warns: {info.warnings}")
    (repo,) = info.repos
    (revision,) = repo.revisions
    check((repo.repo_id, repo.nb_files) == (REPO, len(pulled)), f"scan_cache_dir: {repo}")
    check((revision.commit_hash, revision.refs) == (COMMIT, {"main"}), f"scan_cache_dir: {revision}")


def pythons_for_us(hydrant, environment, folder):
    import huggingface_hub

    cache = folder / "pythons"
    found = huggingface_hub.snapshot_download(REPO, cache_dir=cache)
    offline = {**environment, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    check(pull(hydrant, REPO, offline) == pathlib.Path(found), "the folder that snapshot_download made")
    check(pull(hydrant, REPO + ":Q8_0", offline).read_bytes() == FILES["gguf/tiny.Q8_0.gguf"], "a file of it")
    # Older versions keep no list of a commit's files.
    for tree_file in cache.glob("models--*/trees/*"):
        tree_file.unlink()
    check(pull(hydrant, REPO, offline) == pathlib.Path(found), "the same without a list of files")
    (pathlib.Path(found) / "model-00002-of-00002.safetensors").unlink()
    run = subprocess.run([hydrant, "pull", REPO], env=offline, capture_output=True, text=True, timeout=120)
    check(run.returncode == 1 and "model-00002-of-00002" in run.stderr, f"a missing shard: {run.stderr}")


def main():
    hydrant = os.path.abspath(sys.argv[1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        environment = {**kept, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(folder)}
        os.environ.clear()
        os.environ.update({**environment, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
        try:
            import huggingface_hub
        except ImportError:
            print("skipped: huggingface_hub is not installed")
            return 77
        ours_for_python(hydrant, environment, folder)
        pythons_for_us(hydrant, environment, folder)
        print(f"one cache with huggingface_hub {huggingface_hub.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
