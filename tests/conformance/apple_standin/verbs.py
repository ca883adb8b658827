"""What is done with containers: each verb carried out on an engine."""

import datetime as dt
import fcntl
import glob
import json
import math
import os
import shutil
import signal
import sys
import time

import engine
import images
import shapes
import streams
from shapes import CannotError

LABEL = "apple-standin"
CONFIG = "apple-standin.configuration"
SECONDS = 30.0
IN_EVERY_IMAGE = ("/tmp", "/run")  # with the mode that everybody asks for
PROCESSES = 16_384  # what podman may ask for in a service that is limited itself


def put(text):
    sys.stdout.write(f"{text}\n")


def lock_path(container):
    return os.path.join(state_folder(), f"{container}.lock")


def state_folder():
    folder = os.environ.get("APPLE_STANDIN_STATE") or f"/tmp/apple-standin-{os.geteuid()}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def until_unpublished(container):
    """Wait until the published sockets of a container that has ended are gone."""
    try:
        lock = os.open(lock_path(container), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.alarm(int(SECONDS))
    fcntl.flock(lock, fcntl.LOCK_EX)
    signal.alarm(0)
    os.close(lock)


def name_of(container):
    return f"apple-{container}"


def look(container):
    try:
        return engine.call("GET", f"/containers/{name_of(container)}/json")
    except engine.EngineError as error:
        if error.status == 404:
            raise CannotError(f'notFound: "container not found: {container}"') from None
        raise


def configuration_of(about):
    labels = about.get("Labels") or about["Config"]["Labels"]
    return json.loads(labels[CONFIG])


def running(about):
    return about["State"]["Status"] in ("running", "paused")


def started_at(about):
    """Only of one that runs: a service that was started anew knows no more than that."""
    if not running(about):
        return None
    text = about["State"]["StartedAt"]
    head, _, _ = text.partition(".")
    when = dt.datetime.fromisoformat(head.rstrip("Z")[:19])
    if not text.endswith("Z") and text[-6] in "+-":
        when -= dt.datetime.fromisoformat(f"2000-01-01T00:00:00{text[-6:]}").utcoffset()
    return when.replace(tzinfo=dt.timezone.utc).timestamp()


def shown(version, about):
    state = "running" if running(about) else "stopped"
    return shapes.seen(version, configuration_of(about), state, started_at(about))


# ---------------------------------------------------------------- create


def create(options, words, version):
    image, arguments = words[0], words[1:]
    container = shapes.check_name(options.get("name") or os.urandom(16).hex())
    if options.get("cpus", 1) < 1:
        raise CannotError('invalidArgument: "cpus"')
    mounts = [{"type": "tmpfs", "target": path, "ro": False} for path in options.get("tmpfs", ())]
    if any(":" in one["target"] for one in mounts):
        raise CannotError('invalidArgument: "--tmpfs takes a path and no options"')
    mounts += [shapes.volume(text) for text in options.get("volume", ())]
    mounts += [shapes.mount(text) for text in options.get("mount", ())]
    sockets = [shapes.published(text) for text in options.get("publish_socket", ())]
    networks = options.get("network", [])
    if "none" in networks and len(networks) > 1:
        raise CannotError('unsupported: "no other networks may be created along with network none"')
    network = images.engine_network(networks[0] if networks else "default")
    about = images.fetch(image)
    command = (about.get("Config") or {}).get("Cmd") or []
    entrypoint = (about.get("Config") or {}).get("Entrypoint") or []
    if "entrypoint" in options:
        entrypoint, command = [options["entrypoint"]], []
    memory = shapes.memory(options["memory"]) if "memory" in options else 1 << 30
    cpus = options.get("cpus", 4)
    ulimits = [shapes.ulimit(text) for text in options.get("ulimit", ())]
    labels = shapes.labels(options.get("label", ()))
    configuration = {
        "id": container,
        "image": {"reference": image, "descriptor": {"digest": about["Id"], "size": 0}},
        "mounts": [
            {"source": one.get("source", ""), "destination": one["target"], "type": {}}
            for one in mounts
        ],
        "publishedPorts": [],
        "publishedSockets": sockets,
        "labels": labels,
        "networks": [] if network == "none" else [{"network": "default"}],
        "resources": {"cpus": cpus, "memoryInBytes": memory},
        "readOnly": bool(options.get("read_only")),
        "useInit": bool(options.get("init")),
        "capAdd": options.get("cap_add", []),
        "capDrop": options.get("cap_drop", []),
        "platform": {"os": "linux", "architecture": "arm64"},
    }
    user = options.get("user") or ""
    if "uid" in options:
        user = f"{options['uid']}:{options.get('gid', options['uid'])}"
    host = {
        "NetworkMode": network,
        **_mounts(container, mounts),
        "ReadonlyRootfs": bool(options.get("read_only")),
        "CapDrop": options.get("cap_drop", []),
        "CapAdd": options.get("cap_add", []),
        "Init": bool(options.get("init")),
        "Ulimits": [
            *(one for one in ulimits if one["Name"] != "nproc"),
            {"Name": "nproc", "Soft": PROCESSES, "Hard": PROCESSES},
        ],
        # Each has a kernel of its own, where the processes of its user are all that there are.
        "PidsLimit": next((one["Soft"] for one in ulimits if one["Name"] == "nproc"), 0),
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": min(cpus, os.cpu_count() or 1) * 10**9,
        "IpcMode": "private",
    }
    if "shm_size" in options:
        host["ShmSize"] = shapes.memory(options["shm_size"])
    body = {
        "Image": image,
        "Entrypoint": entrypoint,
        "Cmd": arguments or command,
        "User": user,
        "WorkingDir": options.get("workdir", ""),
        "Env": [f"{k}={v}" for k, v in shapes.environment(options.get("env", ())).items()],
        "Labels": {**labels, LABEL: "1", CONFIG: json.dumps(configuration)},
        "Hostname": container[:63],
        "HostConfig": host,
    }
    try:
        engine.call("POST", "/containers/create", {"name": name_of(container)}, body)
    except engine.EngineError as error:
        if error.status == 409 or "already in use" in str(error):  # its volumes too
            raise CannotError(f'exists: "container already exists: {container}"') from None
        _remove_volumes(container)
        raise CannotError(f'internalError: "{error}"') from None
    if options.get("cidfile"):
        with open(options["cidfile"], "x", encoding="utf-8") as file:
            file.write(container)
    put(container)


def _mounts(container, mounts):
    """Mounts as the engine takes them.

    An engine's own tmpfs takes over the mode of the image's folder, whatever was asked for. A volume
    that is a tmpfs does not on docker; on podman only a folder of this side does not.
    """
    host = {"Mounts": [], "Tmpfs": {}, "Binds": []}
    podman = any("Podman" in one["Name"] for one in engine.call("GET", "/version")["Components"])
    for one in mounts:
        target = one["target"]
        if one["type"] == "bind":
            bind = {"Type": "bind", "Source": one["source"], "ReadOnly": one["ro"]}
            host["Mounts"].append({**bind, "Target": target})
        elif "mode" not in one or target in IN_EVERY_IMAGE:
            host["Tmpfs"][target] = _tmpfs(one)
        elif podman:
            folder = f"{_memory_of(container)}{len(host['Mounts'])}"
            os.makedirs(folder)
            os.chmod(folder, int(one["mode"], 8))
            host["Mounts"].append({"Type": "bind", "Source": folder, "Target": target})
        else:
            options = {"type": "tmpfs", "device": "tmpfs", "o": _tmpfs(one)}
            name = f"{name_of(container)}-{len(host['Binds'])}"
            volume = {"Name": name, "Driver": "local", "DriverOpts": options}
            engine.call("POST", "/volumes/create", None, volume)
            host["Binds"].append(f"{name}:{target}:nocopy")
    return host


def _memory_of(container):
    return os.path.join(state_folder(), f"{container}.memory-")


def _folders_in_memory(container):
    return glob.glob(glob.escape(_memory_of(container)) + "*")


def _forget_memory(container):
    """As at the end of a machine: what was in its memory is gone."""
    for folder in _folders_in_memory(container):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _tmpfs(one):
    parts = ["rw", "nosuid", "nodev", "exec"]
    parts += [f"size={one['size']}"] if "size" in one else []
    parts += [f"mode={one['mode']}"] if "mode" in one else []
    return ",".join(parts)


def _remove_volumes(container):
    for folder in _folders_in_memory(container):
        shutil.rmtree(folder)
    number = 0
    while True:
        try:
            engine.call("DELETE", f"/volumes/{name_of(container)}-{number}")
        except engine.EngineError as error:
            if error.status != 404:
                raise
            return
        number += 1


# ---------------------------------------------------------------- start and its end


def start(options, words, version):
    (container,) = words
    about = look(container)
    if running(about):
        if options.get("attach") or options.get("interactive"):
            raise CannotError(
                'invalidArgument: "attach is currently unsupported on already running containers"'
            )
        put(container)
        return
    until_unpublished(container)
    _forget_memory(container)
    path = f"/containers/{name_of(container)}"
    link = begun = None
    if options.get("attach"):
        link, begun = engine.hijack(f"{path}/attach", {"stream": 1, "stdout": 1, "stderr": 1})
    go = _publish(configuration_of(about))
    try:
        try:
            engine.call("POST", f"{path}/start")
        except engine.EngineError as error:
            raise CannotError(f'internalError: "failed to start container: {error}"') from None
        if go is not None:
            os.write(go, str(look(container)["State"]["Pid"] or "").encode())
    finally:
        if go is not None:
            os.close(go)
    if link is None:
        put(container)
        return

    def forward(number):
        engine.call("POST", f"{path}/kill", {"signal": number})

    streams.pump(link, begun, stdin=False, forward=forward)
    sys.exit(engine.call("POST", f"{path}/wait", seconds=None)["StatusCode"])


def _publish(configuration):
    """Listen for the published sockets; the descriptor that tells the listener to go on."""
    sockets = configuration["publishedSockets"]
    if not sockets:
        return None
    import subprocess  # 6 ms that only this verb needs

    ready, tell_ready = os.pipe()
    hear_go, go = os.pipe()
    container = configuration["id"]
    argv = [sys.executable, "-S", os.path.join(os.path.dirname(__file__), "proxy.py")]
    argv += [lock_path(container), str(tell_ready), str(hear_go), name_of(container)]
    for each in sockets:
        argv += [each["hostPath"], each["containerPath"]]
    with open(os.path.join(state_folder(), "proxy.log"), "ab") as log:
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            pass_fds=(tell_ready, hear_go),
        )
    os.close(tell_ready)
    os.close(hear_go)
    said = os.read(ready, 1)
    os.close(ready)
    if not said:
        os.close(go)
        raise CannotError('internalError: "the socket cannot be published"')
    return go


def _targets(options, words):
    if bool(options.get("all")) == bool(words):
        raise CannotError('invalidArgument: "containers, or --all, and not both"')
    if words:
        return [(word, look(word)) for word in words]
    return [(configuration_of(about)["id"], about) for about in _everything()]


def _everything():
    query = {"all": 1, "filters": json.dumps({"label": [f"{LABEL}=1"]})}
    found = []
    for each in engine.call("GET", "/containers/json", query):
        try:
            found.append(engine.call("GET", f"/containers/{each['Id']}/json"))
        except engine.EngineError as error:
            if error.status != 404:
                raise
    return found


def signal_number(text):
    text = text.upper()
    if text.isdigit():
        return int(text)
    name = text if text.startswith("SIG") else f"SIG{text}"
    try:
        return int(signal.Signals[name])
    except KeyError:
        raise CannotError(f'invalidArgument: "invalid signal {text}"') from None


def _signal(container, number):
    try:
        engine.call("POST", f"/containers/{name_of(container)}/kill", {"signal": number})
    except engine.EngineError as error:
        if error.status not in (404, 409, 500):
            raise
        if running(look(container)):
            raise


def _wait(container, seconds):
    try:
        engine.call("POST", f"/containers/{name_of(container)}/wait", seconds=max(seconds, 0.001))
    except TimeoutError:
        return False
    except engine.EngineError as error:
        if error.status != 404:
            raise
    return True


def stop(options, words, version):
    number = signal_number(options.get("signal", "SIGTERM"))
    for container, about in _targets(options, words):
        if running(about):
            _signal(container, number)
            if not _wait(container, options.get("time", 5)):
                _signal(container, 9)
                _wait(container, SECONDS)
            until_unpublished(container)
        put(container)


def kill(options, words, version):
    number = signal_number(options.get("signal", "KILL"))
    for container, about in _targets(options, words):
        if running(about):
            _signal(container, number)
            put(container)


def delete(options, words, version):
    for container, about in _targets(options, words):
        if running(about) and not options.get("force"):
            if options.get("all"):
                continue
            raise CannotError('invalidState: "container is running"')
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                query = {"force": 1, "v": 1}
                engine.call("DELETE", f"/containers/{name_of(container)}", query)
            except engine.EngineError as error:
                if error.status == 409 and time.monotonic() < deadline:
                    _wait(container, 1)  # somebody else removes it right now
                    continue
                if error.status != 404 and "no such container" not in str(error):
                    raise
            break
        until_unpublished(container)
        _remove_volumes(container)
        try:
            os.unlink(lock_path(container))
        except FileNotFoundError:
            pass
        put(container)


# ---------------------------------------------------------------- looks


def listing(options, words, version):
    found = [about for about in _everything() if options.get("all") or running(about)]
    if options.get("quiet"):
        for about in found:
            put(configuration_of(about)["id"])
    elif options.get("format", "table") == "json":
        put(json.dumps([shown(version, about) for about in found]))
    else:
        put("ID  IMAGE  OS  ARCH  STATE  ADDR")


def inspect(options, words, version):
    found = []
    for word in words:
        try:
            found.append(shown(version, look(word)))
        except CannotError:
            if not shapes.is_old(version):
                raise
    put(json.dumps(found, indent=2))


def logs(options, words, version):
    (container,) = words
    look(container)
    if options.get("follow") or options.get("boot"):
        raise CannotError("the stand-in does not play --follow and --boot")
    query = {"stdout": 1, "stderr": 1, "tail": options.get("n", "all")}
    data = engine.call("GET", f"/containers/{name_of(container)}/logs", query)
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    place = [0]

    def read(count):
        piece = data[place[0] : place[0] + count]
        place[0] += count
        return piece

    for _, piece in streams.demultiplex(read):
        sys.stdout.write(piece.decode("utf-8", "replace"))


# ---------------------------------------------------------------- exec


def execute(options, words, version):
    container, argv = words[0], words[1:]
    about = look(container)
    if not running(about):
        raise CannotError(f'invalidState: "container {container} is not running"')
    stdin = bool(options.get("interactive"))
    user = options.get("user", "")
    if "uid" in options:
        user = f"{options['uid']}:{options.get('gid', options['uid'])}"
    body = {
        "Cmd": argv,
        "AttachStdin": stdin,
        "AttachStdout": not options.get("detach"),
        "AttachStderr": not options.get("detach"),
        "Tty": False,
        "User": user,
        "Env": [f"{k}={v}" for k, v in shapes.environment(options.get("env", ())).items()],
    }
    if "workdir" in options:
        body["WorkingDir"] = options["workdir"]
    try:
        made = engine.call("POST", f"/containers/{name_of(container)}/exec", None, body)["Id"]
        if options.get("detach"):
            engine.call("POST", f"/exec/{made}/start", None, {"Detach": True, "Tty": False})
            put(made)
            return
        link, begun = engine.hijack(f"/exec/{made}/start", None, {"Detach": False, "Tty": False})
    except engine.EngineError as error:
        raise CannotError(f'internalError: "failed to exec process: {error}"') from None

    def forward(number):
        pid = engine.call("GET", f"/exec/{made}/json").get("Pid")
        if pid:
            os.kill(pid, number)

    streams.pump(link, begun, stdin=stdin, forward=forward)
    deadline = time.monotonic() + 3
    while True:
        try:
            ended = engine.call("GET", f"/exec/{made}/json")
        except engine.EngineError as error:
            raise CannotError(f'interrupted: "{error}"') from None
        if not ended["Running"]:
            break
        if time.monotonic() > deadline:
            raise CannotError('timeout: "the output of the process is held open by another"')
        time.sleep(math.ldexp(1, -6))
    sys.stdout.flush()
    os._exit(ended["ExitCode"] & 255 if ended["ExitCode"] is not None else 1)
