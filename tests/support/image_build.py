"""Carries out a Dockerfile without a Docker engine: each instruction in a root of its own, made of overlay mounts.

What it knows is what our Dockerfile uses; anything else fails the build. It needs root, Linux namespaces and overlayfs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from docker_files import Instruction, Stage, ignore_patterns, is_ignored

QUIET = ("ARG", "EXPOSE", "VOLUME", "STOPSIGNAL")


@dataclass(frozen=True)
class Image:
    """What a stage left.

    Args:
        layers: folders of files, the uppermost first.
        env, user, folder: of what runs in it. entrypoint, command, health: of a container.
    """

    layers: tuple[Path, ...]
    env: Mapping[str, str]
    user: str = "0:0"
    folder: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()


class Builder:
    """Builds stages, each once.

    Args:
        stages: of the Dockerfile. context: the folder that is built from; base: the root file system that `FROM` an image means.
        work: for the layers. arguments: `--build-arg`. shown: folders of the host that a command may read, by where they appear.
        log: gets what the commands print.
    """

    def __init__(
        self, stages: dict[str, Stage], context: Path, base: Path, work: Path, *,
        arguments: Mapping[str, str], env: Mapping[str, str], shown: Mapping[str, Path], log: Path,
    ) -> None:  # fmt: skip
        self._stages = stages
        self._context = context
        self._work = work
        self._arguments = arguments
        self._env = env
        self._shown = shown
        self._log = log
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._built = {"": Image((base,), {"PATH": path})}

    def image(self, name: str) -> Image:
        """The image of a stage. AssertionError when a command of it fails."""
        if name not in self._built:
            stage = self._stages[name]
            below = self.image(stage.base) if stage.base in self._stages else self._built[""]
            layer = self._work / name / "layer"
            layer.mkdir(parents=True)
            image = replace(below, layers=(layer, *below.layers), command=(), health=below.health)
            given: dict[str, str] = {}
            for one in stage.instructions:
                image = self._step(image, one, given, below)
            self._built[name] = image
        return self._built[name]

    def _step(self, image: Image, one: Instruction, given: dict[str, str], below: Image) -> Image:
        if one.name == "RUN":
            self._run(image, one, given, below)
        elif one.name == "COPY":
            self._copy(image, one, below)
        elif one.name == "ENV":
            pairs = dict(zip(one.value[::2], one.value[1::2], strict=True))
            added = {key: value.replace("$PATH", image.env["PATH"]) for key, value in pairs.items()}
            return replace(image, env={**image.env, **added})
        elif one.name == "WORKDIR":
            with self._root(image, below) as root:
                (root / one.value[0].lstrip("/")).mkdir(parents=True, exist_ok=True)
            return replace(image, folder=one.value[0])
        elif one.name == "USER":
            return replace(image, user=one.value[0])
        elif one.name == "ENTRYPOINT":
            return replace(image, entrypoint=one.value)
        elif one.name == "CMD":
            return replace(image, command=one.value)
        elif one.name == "HEALTHCHECK":
            return replace(image, health=one.value[1:])
        elif one.name == "ARG":
            name, _, default = one.value[0].partition("=")
            given[name] = self._arguments.get(name, default)
        else:
            assert one.name in QUIET, one.name
        return image

    @contextmanager
    def _root(self, image: Image, below: Image) -> Iterator[Path]:
        """The stage's root, into whose layer writes go."""
        layer = image.layers[0]
        root, scratch = layer.parent / "root", layer.parent / "scratch"
        root.mkdir(exist_ok=True)
        scratch.mkdir(exist_ok=True)
        lower = ":".join(str(path) for path in below.layers)
        options = f"lowerdir={lower},upperdir={layer},workdir={scratch}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True)
        try:
            yield root
        finally:
            subprocess.run(["umount", root], check=True)

    def _run(self, image: Image, one: Instruction, given: Mapping[str, str], below: Image) -> None:
        assert image.user == "0:0" and not one.json
        with self._root(image, below) as root, self._log.open("a") as log:
            log.write(f"\n---- line {one.line}: {one.value[0]}\n")
            log.flush()
            shows = [f"mkdir -p {root}{place} && mount --bind {path} {root}{place}" for place, path in self._shown.items()]
            script = "\n".join([
                "set -e", f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev", *shows,
                f'cd / && exec chroot {root} /bin/sh -c "cd {image.folder} && $RUN"',
            ])  # fmt: skip
            # What follows may not depend on the host's variables: only those of the image, and what says where packages are.
            env = {**image.env, **given, **self._env, "RUN": one.value[0], "HOME": "/root"}
            command = ["/usr/bin/unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", script]
            done = subprocess.run(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            for place in self._shown:
                (root / place.lstrip("/")).rmdir()
        assert done.returncode == 0, f"line {one.line} ended with {done.returncode}: {self._log}"

    def _copy(self, image: Image, one: Instruction, below: Image) -> None:
        flags = dict(flag.removeprefix("--").split("=", 1) for flag in one.flags)
        assert set(flags) <= {"from", "chmod"}
        *sources, target = one.value
        with self._root(image, below) as root:
            place = root / os.path.join(image.folder, target).lstrip("/")
            if "from" in flags:
                origin = self.image(flags["from"])
                [source] = sources
                with self._merged(origin) as files:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    subprocess.run(["cp", "--archive", files / source.lstrip("/"), place], check=True)
                return
            patterns = ignore_patterns(self._context)
            for source in sources:
                for path in self._files(source):
                    name = path.relative_to(self._context)
                    assert source == "." or not is_ignored(str(name), patterns)
                    if is_ignored(str(name), patterns):
                        continue
                    goal = place / name if source == "." else place / name.name if target.endswith("/") else place
                    goal.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, goal)
                    goal.chmod(int(flags["chmod"], 8) if "chmod" in flags else path.stat().st_mode & 0o777)

    def _files(self, source: str) -> Iterator[Path]:
        """The files of the context that git knows: what lies about beside them is not part of what is tested."""
        if source != ".":
            yield self._context / source
            return
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=self._context, capture_output=True, text=True, check=True)
        yield from (self._context / name for name in listed.stdout.split("\0") if name and (self._context / name).is_file())

    @contextmanager
    def _merged(self, image: Image) -> Iterator[Path]:
        with merged(image.layers, self._work / "merged") as root:
            yield root


@contextmanager
def merged(layers: tuple[Path, ...], place: Path) -> Iterator[Path]:
    """Layers as one read-only tree."""
    place.mkdir()
    options = "lowerdir=" + ":".join(str(path) for path in layers)
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
        place.rmdir()
