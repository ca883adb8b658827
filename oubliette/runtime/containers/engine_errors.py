"""Errors of engines and images by cause; each message has the meaning and a remedy."""

from __future__ import annotations

import re
from typing import Final

from oubliette.errors import DeadlineExceeded, NotFound, RuntimeFailure, Unavailable

SAID: Final = 600  # characters of an engine's own message that an error repeats


class ImageError(RuntimeFailure):
    """An image is unavailable; a subclass has the cause if the engine's message shows it."""

    code = "image"


class ImageNotFound(ImageError):
    """The registry answers, and has no such image or tag, or hides it."""

    code = "image_not_found"


class RegistryUnreachable(ImageError):
    """The registry does not answer."""

    code = "registry_unreachable"


class RegistryDenied(ImageError):
    """The registry requires a login, or another one."""

    code = "registry_denied"


class RegistryUntrusted(ImageError):
    """The registry's TLS certificate is not trusted, or it has no TLS."""

    code = "registry_untrusted"


class RegistryBusy(ImageError):
    """The registry has reached its rate limit for this address or user."""

    code = "registry_busy"


class PullTimeout(ImageError, DeadlineExceeded):
    """The pull did not end in time."""

    code = "pull_timeout"


class BuildFailed(ImageError):
    """A step of a build failed; the message ends with the build's last lines."""

    code = "build_failed"


class BuildTimeout(BuildFailed, DeadlineExceeded):
    """The build did not end in time."""

    code = "build_timeout"


BUILT: Final = "localhost/"
"""Prefix of the names of images that `image_rebuild` builds."""
REBUILD: Final = "oubliette image rebuild TYPE builds it"
_OWN: Final = "or load an image yourself and set containers.image"
# In this order: an engine wraps one error into another, the innermost is the most specific.
_KINDS: Final[tuple[tuple[str, type[ImageError], str, str], ...]] = (
    (
        r"toomanyrequests|rate limit",
        RegistryBusy,
        "the registry {registry} gives no more for now",
        f"{{engine}} login {{registry}}, wait, {_OWN}",
    ),
    (
        r"x509|certificate|gave HTTP response to HTTPS client|tls: ",
        RegistryUntrusted,
        "the registry {registry} is not trusted",
        "give {engine} its certificate, or list it among {engine}'s insecure registries",
    ),
    (
        # Docker Hub reports this for missing images as well.
        r"pull access denied|requested access to the resource is denied",
        RegistryDenied,
        "the registry {registry} does not show it",
        f"check its name, {{engine}} login {{registry}}, {_OWN}",
    ),
    (
        (
            r"manifest unknown|name unknown|not found: does not exist|manifest for .* not found"
            r"|repository .* not found|NAME_UNKNOWN|MANIFEST_UNKNOWN|\b404\b"
        ),
        ImageNotFound,
        "the registry {registry} has no such image",
        f"check its name and tag, {_OWN}",
    ),
    (
        (
            r"unauthori[sz]ed|authentication required|no basic auth|\b401\b|\b403\b|denied"
            r"|invalid username/password"
        ),
        RegistryDenied,
        "the registry {registry} wants a login",
        f"{{engine}} login {{registry}}, {_OWN}",
    ),
    (
        (
            r"connection refused|no such host|no route to host|network is unreachable|i/o timeout"
            r"|Client\.Timeout|deadline exceeded|handshake timeout|connection reset"
            r"|server misbehaving"
            r"|Temporary failure in name resolution|\bEOF\b|\b50[0234]\b"
        ),
        RegistryUnreachable,
        "the registry {registry} cannot be reached",
        f"check the network of this machine (proxy, DNS), {_OWN}",
    ),
)


def registry_of(image: str) -> str:
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first
    return "docker.io"


def pull_failed(engine: str, image: str, said: str) -> ImageError:
    """The error for an engine's message about a failed pull of `image`."""
    if image.startswith(BUILT):
        return ImageNotFound(
            f"the image {image} is not built: its name is that of images which are built on this"
            " machine, no registry has it",
            hint=f"{REBUILD} (oubliette image list names the types), {_OWN}",
        )
    words = {"engine": engine, "registry": registry_of(image)}
    short = said.strip()[-SAID:]
    for pattern, kind, meaning, hint in _KINDS:
        if re.search(pattern, said, re.IGNORECASE):
            what = meaning.format(**words)
            return kind(
                f"the image {image} cannot be pulled: {what} ({short})", hint=hint.format(**words)
            )
    return ImageError(
        f"the image {image} cannot be pulled: {short}",
        hint=f"check the name, {engine} login, {_OWN}",
    )


def pull_timeout(engine: str, image: str, timeout: float, got: str) -> PullTimeout:
    """Return the error for a pull that was not done in time; `got` is its progress."""
    return PullTimeout(
        f"the image {image} was not pulled within {timeout:g} s ({got or 'nothing came'})",
        hint=f"{engine} pull {image}, or raise containers.pull_timeout_seconds",
    )


_NO_PYTHON: Final = (
    r"executable file .*not found|exec python3 failed|failed to exec pid1|this is Python \d"
    r"|No module named|exit code 127|no such file or directory: unknown"
    r"|ended before it was ready \(exit code 1\)$"  # without a word, which a Python would leave
)


def python_hint(image: str | None, said: str) -> str | None:
    """The remedy if a container's guest did not start for want of a Python, else None."""
    if not re.search(_NO_PYTHON, said, re.IGNORECASE):
        return None
    return (
        f"the image {image} needs python3, 3.9 or later, on PATH and with its standard library; set"
        " containers.image, or the type's image, to one that has it"
    )


def build_timeout(image: str, timeout: float, lines: str) -> BuildTimeout:
    return BuildTimeout(
        f"the image {image} was not built within {timeout:g} s: {lines.strip()[-SAID:]}",
        hint="raise containers.build_timeout_seconds",
    )


def build_failed(image: str, reason: str, lines: str) -> BuildFailed:
    end = f"\n{lines.strip()[-2000:]}" if lines.strip() else ""
    return BuildFailed(
        f"the image {image} cannot be built: {reason.strip()[-SAID:]}{end}",
        hint="build_args of its type may set what the Dockerfile takes, such as BASE_IMAGE; without"
        " a network INSTALL_PACKAGES=0 on a base image that has everything",
    )


class EngineMissing(Unavailable):
    """The engine does not listen at its address, or refuses access."""

    code = "engine_missing"


class EngineRefused(RuntimeFailure):
    """The engine answered with an error."""

    code = "engine_refused"

    def __init__(self, message: str, *, status: int = 500, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class EngineNotFound(NotFound):
    """The engine has no such container, image or network."""
