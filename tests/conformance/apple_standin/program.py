"""From an argv to a verb: the log of calls, the stopped services, exit codes."""

import json
import os
import sys

import engine
import grammar
import images
import shapes
import verbs

NEWEST = "1.2.2"
NOT_STARTED = (
    'interrupted: "XPC connection error: Connection invalid"\n'
    "Ensure container system service has been started with `container system start`."
)


def system_start(options, words, version):
    if not (options.get("enable_kernel_install") or options.get("disable_kernel_install")):
        # The original asks at the terminal and waits.
        raise shapes.CannotError('invalidState: "no answer to: install the default kernel? [Y/n]"')
    if os.path.exists(_mark()):
        os.unlink(_mark())


def system_stop(options, words, version):
    with open(_mark(), "w", encoding="utf-8"):
        pass


def system_status(options, words, version):
    known = version if _is_started() else ""
    state = "running" if _is_started() else "unregistered"
    if options.get("format") == "json":
        said = {"status": state, "appRoot": "", "installRoot": "", "apiServerVersion": known}
        print(json.dumps(said))
    elif known:
        print(f"status  {state}")
    else:
        print("apiserver is not running and not registered with launchd")
    sys.exit(0 if known else 1)


def system_version(options, words, version):
    found = [{"version": version, "buildType": "release", "commit": "0", "appName": "container"}]
    if _is_started():
        about = f"container-apiserver version {version} (build: release, commit: 0)"
        found.append({**found[0], "version": about, "appName": "container-apiserver"})
    if options.get("format") == "json":
        print(json.dumps(found))
    else:
        print("COMPONENT  VERSION  BUILD  COMMIT")


def _mark():
    return os.path.join(verbs.state_folder(), "stopped")


def _is_started():
    return os.environ.get("APPLE_STANDIN_STOPPED") != "1" and not os.path.exists(_mark())


def run(options, words, version):
    raise shapes.CannotError("the stand-in does not play run: the driver creates, then starts")


VERBS = {
    "create": verbs.create,
    "run": run,
    "start": verbs.start,
    "stop": verbs.stop,
    "kill": verbs.kill,
    "delete": verbs.delete,
    "list": verbs.listing,
    "inspect": verbs.inspect,
    "logs": verbs.logs,
    "exec": verbs.execute,
    "build": images.build,
    "image list": images.listing,
    "image inspect": images.inspect,
    "image pull": images.pull,
    "image delete": images.delete,
    "image tag": images.tag,
    "network list": images.network_list,
    "network inspect": images.network_inspect,
    "system start": system_start,
    "system stop": system_stop,
    "system status": system_status,
    "system version": system_version,
}


def main(argv):
    if log := os.environ.get("APPLE_STANDIN_LOG"):
        line = (json.dumps(argv) + "\n").encode()
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, line)  # at once, so that calls side by side do not mix
        os.close(fd)
    version = os.environ.get("APPLE_STANDIN_VERSION", NEWEST)
    if argv == ["--version"]:
        print(f"container CLI version {version} (build: release, commit: 0)")
        return
    try:
        name, options, words = grammar.parse(argv)
        if shapes.is_old(version) and "shm_size" in options:
            raise grammar.UsageError("Unknown option '--shm-size'")
    except grammar.UsageError as error:
        sys.stderr.write(f"Error: {error}\nUsage: container <subcommand>\n")
        sys.exit(64)
    try:
        if not name.startswith("system ") and not _is_started():
            raise shapes.CannotError(NOT_STARTED)
        VERBS[name](options, words, version)
        sys.stdout.flush()
    except (shapes.CannotError, engine.EngineError, OSError) as error:
        sys.stdout.flush()
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
