"""What the options mean, what is refused with `Error: …`, and the JSON of both generations."""

import datetime as dt
import os
import re
import stat

NAME = re.compile("^[a-zA-Z0-9][a-zA-Z0-9_.-]+$")
SOCKET_BYTES = 103
MIB = 1 << 20
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
EPOCH_2001 = 978_307_200


class CannotError(Exception):
    """`Error: …`, exit code 1."""


def check_name(name):
    if not NAME.match(name) or not 2 <= len(name) <= 63:
        raise CannotError(f'invalidArgument: "invalid entity name {name}"')
    return name


def memory(text):
    """Bytes, in steps of a MiB."""
    found = re.fullmatch("([0-9]+)([KMGTP]?)B?", text.upper())
    if not found:
        raise CannotError(f'invalidArgument: "invalid memory {text}"')
    return int(found[1]) * UNITS[found[2]] // MIB * MIB


def environment(given):
    """`KEY=value`; a bare KEY is taken from our own environment."""
    pairs = {}
    for each in given:
        name, equals, value = each.partition("=")
        if equals:
            pairs[name] = value
        elif name in os.environ:
            pairs[name] = os.environ[name]
    return pairs


def labels(given):
    return {each.partition("=")[0]: each.partition("=")[2] for each in given}


def volume(text):
    """`HOST:CTR[:options]`."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(parts):
        raise CannotError(f'invalidArgument: "invalid volume format {text}"')
    source, target = parts[:2]
    options = parts[2].split(",") if len(parts) == 3 else []
    if "/" not in source:
        raise CannotError("named volumes are not played by the stand-in")
    if not os.path.exists(source):
        raise CannotError(f"invalidArgument: \"path '{source}' does not exist\"")
    if not target.startswith("/"):
        raise CannotError(f'invalidArgument: "mount destination {target}"')
    if set(options) - {"ro", "rw"}:
        raise CannotError(f'invalidArgument: "volume options {options}"')
    return {
        "type": "bind",
        "source": os.path.abspath(source),
        "target": target,
        "ro": "ro" in options,
    }


def mount(text):
    """`type=bind|virtiofs|tmpfs,source=,target=,readonly[,size=,mode=]`."""
    found = {"ro": False}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        key = {"src": "source", "dst": "target", "destination": "target", "readonly": "ro"}.get(
            key, key
        )
        if key == "ro":
            found["ro"] = True
            continue
        if key not in ("type", "source", "target", "size", "mode"):
            raise CannotError(
                f'invalidArgument: "unknown directive {key} when parsing mount {text}"'
            )
        if not equals or not value:
            raise CannotError(f'invalidArgument: "invalid directive format missing value {part}"')
        found[key] = value
    kind = found.get("type")
    if kind == "virtiofs":
        kind = found["type"] = "bind"
    if kind not in ("bind", "tmpfs"):
        raise CannotError(f'invalidArgument: "unsupported mount type {kind}"')
    if kind == "bind":
        if "size" in found or "mode" in found:
            raise CannotError('invalidArgument: "unsupported option for bind mount"')
        source = found.get("source", "")
        if not os.path.exists(source):
            raise CannotError(f"invalidArgument: \"path '{source}' does not exist\"")
        if not os.path.isdir(source):
            raise CannotError(f"invalidArgument: \"path '{source}' is not a directory\"")
        found["source"] = os.path.abspath(source)
    elif "source" in found:
        raise CannotError('invalidArgument: "cannot specify source for tmpfs mount"')
    if not found.get("target", "").startswith("/"):
        raise CannotError('invalidArgument: "mount destination cannot be empty"')
    if "size" in found:
        found["size"] = memory(found["size"])
    return found


def published(text):
    """`HOST:CTR`; a socket that is there is refused, any other file is deleted."""
    parts = text.split(":")
    if len(parts) != 2 or not all(part.startswith("/") for part in parts):
        raise CannotError(f'invalidArgument: "invalid publish-socket format {text}"')
    host, inside = parts
    if len(os.fsencode(host)) > SOCKET_BYTES or len(os.fsencode(inside)) > SOCKET_BYTES:
        raise CannotError(f'invalidArgument: "socket path too long {text}"')
    try:
        mode = os.lstat(host).st_mode
    except FileNotFoundError:
        os.makedirs(os.path.dirname(host), exist_ok=True)
    else:
        if stat.S_ISSOCK(mode):
            raise CannotError(
                f'invalidArgument: "host socket {host} already exists and may be in use"'
            )
        os.unlink(host)
    return {"hostPath": host, "containerPath": inside}


def ulimit(text):
    found = re.fullmatch("([a-z]+)=([0-9]+)(?::([0-9]+))?", text)
    if not found:
        raise CannotError(f'invalidArgument: "invalid ulimit {text}"')
    soft = int(found[2])
    return {"Name": found[1], "Soft": soft, "Hard": int(found[3] or soft)}


def is_old(version):
    return int(version.split(".")[0]) < 1


def seen(version, configuration, state, started):
    """One container as `inspect` and `list` show it; `started` in seconds since 1970, or None."""
    if is_old(version):
        shape = {"status": state, "configuration": _old(configuration), "networks": []}
        if started is not None:
            shape["startedDate"] = started - EPOCH_2001
        return shape
    status = {"state": state, "networks": []}
    if started is not None:
        when = dt.datetime.fromtimestamp(started, dt.timezone.utc)
        status["startedDate"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"id": configuration["id"], "configuration": configuration, "status": status}


def _old(configuration):
    sockets = [
        {name: "file://" + path for name, path in each.items()}
        for each in configuration["publishedSockets"]
    ]
    return {**configuration, "publishedSockets": sockets}
