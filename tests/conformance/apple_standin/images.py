"""Images, their building, and networks."""

import io
import json
import os
import sys

import engine
from shapes import CannotError

NETWORKS = {"default": "bridge", "none": "none"}


def _put(text):
    sys.stdout.write(f"{text}\n")


def _look(reference):
    try:
        return engine.call("GET", f"/images/{reference}/json")
    except engine.EngineError as error:
        if error.status == 404:
            return None
        raise


def fetch(reference):
    """As `create` does it: one that is not there is pulled without a word."""
    about = _look(reference)
    if about is None:
        pull({}, [reference], "")
        about = _look(reference)
    if about is None:
        raise CannotError(f'notFound: "image not found: {reference}"')
    return about


def pull(options, words, version):
    head, colon, tag = words[0].rpartition(":")
    if not colon or "/" in tag:
        head, tag = words[0], "latest"
    errors = []

    def hear(line):
        said = json.loads(line)
        if "error" in said:
            errors.append(said["error"])

    try:
        engine.call(
            "POST", "/images/create", {"fromImage": head, "tag": tag}, seconds=None, lines=hear
        )
    except engine.EngineError as error:
        errors.append(str(error))
    if errors:
        raise CannotError(f'notFound: "{words[0]}: {errors[0]}"')


def listing(options, words, version):
    found = engine.call("GET", "/images/json")
    names = [name for each in found for name in each.get("RepoTags") or ()]
    if options.get("quiet"):
        for name in names:
            _put(name)
    elif options.get("format", "table") == "json":
        _put(json.dumps([{"reference": name} for name in names]))
    else:
        _put("NAME  TAG  DIGEST")


def inspect(options, words, version):
    found = []
    for word in words:
        about = _look(word)
        if about is None:
            raise CannotError(f'notFound: "image not found: {word}"')
        found.append(
            {
                "id": about["Id"],
                "configuration": {"name": word, "descriptor": {"digest": about["Id"]}},
                "variants": [
                    {
                        "platform": {"os": "linux", "architecture": "arm64"},
                        "digest": about["Id"],
                        "size": about.get("Size", 0),
                        "config": {"config": about.get("Config") or {}},
                    }
                ],
            }
        )
    _put(json.dumps(found, indent=2))


def delete(options, words, version):
    if not words or options.get("all"):
        raise CannotError("the stand-in deletes images by name, and not those of others")
    for word in words:
        if _look(word) is None:
            raise CannotError(f'notFound: "image not found: {word}"')
        engine.call("DELETE", f"/images/{word}", {"force": 1} if options.get("force") else None)
        _put(word)


def tag(options, words, version):
    source, target = words
    if _look(source) is None:
        raise CannotError(f'notFound: "image not found: {source}"')
    head, _, label = target.rpartition(":")
    engine.call("POST", f"/images/{source}/tag", {"repo": head or target, "tag": label or "latest"})


def build(options, words, version):
    import tarfile

    folder = words[0] if words else "."
    dockerfile = options.get("file") or os.path.join(folder, "Dockerfile")
    if not os.path.isdir(folder) or not os.path.isfile(dockerfile):
        raise CannotError(f'invalidArgument: "no Dockerfile in {folder}"')
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(folder, arcname=".")
        archive.add(dockerfile, arcname=".apple-standin.Dockerfile")
    arguments = dict(each.split("=", 1) for each in options.get("build_arg", ()))
    tags = options.get("tag") or [os.urandom(8).hex()]
    query = {
        "t": tags[0],
        "dockerfile": ".apple-standin.Dockerfile",
        "buildargs": json.dumps(arguments),
        "rm": 1,
        "forcerm": 1,
        **({"nocache": 1} if options.get("no_cache") else {}),
    }
    errors = []

    def hear(line):
        said = json.loads(line)
        sys.stderr.write(said.get("stream", ""))
        sys.stderr.flush()
        if "error" in said:
            errors.append(said["error"])

    engine.call("POST", "/build", query, raw=data.getvalue(), seconds=None, lines=hear)
    if errors:
        raise CannotError(f'unknown: "{errors[0]}"')
    for other in tags[1:]:
        tag({}, [tags[0], other], version)
    if not options.get("quiet"):
        _put(f"Successfully built {tags[0]}")


# ---------------------------------------------------------------- networks


def engine_network(name):
    """What the engine calls it."""
    if name in NETWORKS:
        return NETWORKS[name]
    try:
        engine.call("GET", f"/networks/{name}")
    except engine.EngineError:
        raise CannotError(f'notFound: "network {name} not found"') from None
    return name


def network_list(options, words, version):
    names = ["default", *(each["Name"] for each in engine.call("GET", "/networks"))]
    _put(json.dumps([{"id": name} for name in names]) if "format" in options else "\n".join(names))


def network_inspect(options, words, version):
    for word in words:
        if word == "none":
            raise CannotError('notFound: "network none not found"')
        engine_network(word)
    _put(json.dumps([{"id": word, "state": "running"} for word in words]))
