"""The published sockets of one container: listens here while it runs, connects inside.

    proxy.py LOCK READY_FD GO_FD CONTAINER HOST_PATH INSIDE_PATH [HOST_PATH INSIDE_PATH …]

It holds LOCK as long as it lives. It writes to READY_FD when it listens, which is before the container
starts; GO_FD tells it the pid of the container's first process, or its end that there is none.
A connection is accepted whether or not anything listens inside; one that cannot be passed on ends the
listener, and its socket is removed (apple/containerization, UnixSocketRelay, up to 1.x).
"""

import fcntl
import os
import signal
import socket
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import engine


def remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass


def carry(source, target):
    try:
        while True:
            data = source.recv(65536)
            if not data:
                break
            target.sendall(data)
    except OSError:
        pass
    for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        try:
            end.shutdown(how)
        except OSError:
            pass


def relay(outer, inner):
    back = threading.Thread(target=carry, args=(inner, outer), daemon=True)
    back.start()
    carry(outer, inner)
    back.join()
    outer.close()
    inner.close()


def accept(listener, path, inside, pid):
    while True:
        try:
            outer = listener.accept()[0]
        except OSError:
            return
        inner = socket.socket(socket.AF_UNIX)
        try:
            inner.connect(f"/proc/{pid}/root{inside}")
        except OSError:
            inner.close()
            outer.close()
            listener.close()
            remove(path)
            return
        threading.Thread(target=relay, args=(outer, inner), daemon=True).start()


def main():
    lock, ready, go, container, *pairs = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    listeners = []
    for path, inside in zip(pairs[::2], pairs[1::2]):
        remove(path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(128)
        listeners.append((listener, path, inside))
    os.write(int(ready), b"x")
    os.close(int(ready))
    pid = os.read(int(go), 32).decode()
    if pid:
        for each in listeners:
            threading.Thread(target=accept, args=(*each, pid), daemon=True).start()
        try:
            engine.call("POST", f"/containers/{container}/wait", seconds=None)
        except (OSError, engine.EngineError):
            pass  # removed, or the engine has ended
    for _, path, _ in listeners:
        remove(path)
    os._exit(0)  # with all connections


if __name__ == "__main__":
    main()
