# What `.ci/run` and `.ci/all` source. As root it installs what the machine lacks, makes an ordinary
# user, and gives that user a clean clone. It must do so on a machine where nothing of ours has run.
set -euo pipefail

lacks() { for each in "$@"; do command -v "$each" >/dev/null || return 0; done; return 1; }

postgres() { command -v postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres'; } >/dev/null

has_python() { # NAME: whether the user can make an environment with it
    (cd / && "$OLDPWD/.ci/as_user" "$1" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))') 2>/dev/null
}

apt() { apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"; }

install_packages() { # `set -e` does not hold in what `quietly` runs
    export DEBIAN_FRONTEND=noninteractive
    apt update -qq &&
        apt install -y -qq bubblewrap git git-lfs docker.io podman catatonit runc make || return 1
    if ! postgres; then # without a database that runs: each test makes its own
        mkdir -p /etc/postgresql-common
        echo 'create_main_cluster = false' >>/etc/postgresql-common/createcluster.conf
        apt install -y -qq postgresql || return 1
    fi
    if lacks npm; then apt install -y -qq nodejs npm || return 1; fi
    if ! has_python python3; then apt install -y -qq python3 python3-venv || return 1; fi
}

quietly() { # COMMAND...: its output only where it fails
    local said
    said=$("$@" 2>&1 </dev/null) || { printf '%s\n' "$said" | tail -n 60 >&2; return 1; }
}

prepare() { # NAME: everything up to an environment in $house, the user's clone of that name
    id oubliette-ci >/dev/null 2>&1 || useradd --create-home --shell /bin/bash oubliette-ci
    house=$(getent passwd oubliette-ci | cut -d: -f6)/$1
    if lacks bwrap git git-lfs dockerd podman catatonit runc npm make || ! postgres || ! has_python python3; then
        quietly install_packages
    fi
    for python in python3 python3.13 python3.12 python3.11; do
        if has_python "$python"; then break; fi
    done
    rm -rf "$house"
    # What is committed, and nothing else. `safe.directory`: the checkout may be another user's.
    git -c safe.directory='*' clone --quiet --no-hardlinks . "$house"
    chown -R oubliette-ci: "$house"
    (
        cd "$house"
        quietly .ci/as_user make setup PYTHON="$python"
        # All that comes from elsewhere comes now: what is red afterwards is no matter of a network.
        quietly .ci/as_user .venv/bin/python -c 'from tests.unit.kit import pykka_sdist; pykka_sdist.fetch()'
    )
    quietly .ci/agents
}
