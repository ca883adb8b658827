"""What `container` 1.x takes, as tables, and a reader that takes nothing else.

Rules of swift-argument-parser as far as they concern us: options of `create`, `run` and `exec` come
before the first positional, whatever follows it is the process's argv, `--` included; elsewhere they
may be mixed. `--opt v`, `--opt=v`, `-o v`, `-o=v`, packed flags (`-it`). No joined values, and a value
that begins with `-` only after `=`.
"""

import re


class UsageError(Exception):
    """Exit code 64."""


FLAG = "flag"
TEXT = "text"
MANY = "many"
INTEGER = "integer"


def choice(*values):
    return ("choice", values)


# One entry for each option: its names, then its kind. The first long name is its key.
DEBUG = {"--debug": FLAG}
PROCESS = {
    "--env -e": MANY,
    "--env-file": MANY,
    "--gid": INTEGER,
    "--interactive -i": FLAG,
    "--tty -t": FLAG,
    "--user -u": TEXT,
    "--uid": INTEGER,
    "--workdir --cwd -w": TEXT,
    "--ulimit": MANY,
}
RESOURCE = {"--cpus -c": INTEGER, "--memory -m": TEXT}
MANAGEMENT = {
    "--arch -a": TEXT,
    "--cap-add": MANY,
    "--cap-drop": MANY,
    "--cidfile": TEXT,
    "--detach -d": FLAG,
    "--dns": MANY,
    "--dns-domain": TEXT,
    "--dns-option": MANY,
    "--dns-search": MANY,
    "--no-dns": FLAG,
    "--entrypoint": TEXT,
    "--init": FLAG,
    "--init-image": TEXT,
    "--kernel -k": TEXT,
    "--label -l": MANY,
    "--mount": MANY,
    "--name": TEXT,
    "--network": MANY,
    "--os": TEXT,
    "--publish -p": MANY,
    "--platform": TEXT,
    "--publish-socket": MANY,
    "--read-only": FLAG,
    "--rm --remove": FLAG,
    "--rosetta": FLAG,
    "--runtime": TEXT,
    "--ssh": FLAG,
    "--shm-size": TEXT,
    "--tmpfs": MANY,
    "--virtualization": FLAG,
    "--volume -v": MANY,
}
FETCH = {"--scheme": choice("http", "https", "auto"), "--max-concurrent-downloads": INTEGER}
CREATE = {**PROCESS, **RESOURCE, **MANAGEMENT, **FETCH, **DEBUG}
FORMAT = {"--format": choice("json", "table", "yaml", "toml")}
PULL_PROGRESS = choice("auto", "none", "ansi", "plain", "color")


class Verb:
    """Options and positionals of one verb; `least` and `most` count positionals."""

    def __init__(self, options, least=0, most=0, passthrough=False):
        self.kinds = {}
        self.keys = {}
        for names, kind in {**options, **DEBUG}.items():
            key = names.split()[0].lstrip("-").replace("-", "_")
            for name in names.split():
                self.kinds[name] = kind
                self.keys[name] = key
        self.least, self.most, self.passthrough = least, most, passthrough


ENDLESS = 10**6
VERBS = {
    "create": Verb(CREATE, 1, ENDLESS, passthrough=True),
    "run": Verb({**CREATE, "--progress": choice("none", "ansi", "plain")}, 1, ENDLESS, True),
    "start": Verb({"--attach -a": FLAG, "--interactive -i": FLAG}, 1, 1),
    "stop": Verb({"--all -a": FLAG, "--signal -s": TEXT, "--time -t": INTEGER}, 0, ENDLESS),
    "kill": Verb({"--all -a": FLAG, "--signal -s": TEXT}, 0, ENDLESS),
    "delete": Verb({"--all -a": FLAG, "--force -f": FLAG}, 0, ENDLESS),
    "list": Verb({"--all -a": FLAG, **FORMAT, "--quiet -q": FLAG}),
    "inspect": Verb({}, 1, ENDLESS),
    "logs": Verb({"--boot": FLAG, "--follow -f": FLAG, "-n": INTEGER}, 1, 1),
    "exec": Verb({**PROCESS, "--detach -d": FLAG}, 2, ENDLESS, passthrough=True),
    "build": Verb(
        {
            "--file -f": TEXT,
            "--tag -t": MANY,
            "--build-arg": MANY,
            "--target": TEXT,
            "--no-cache": FLAG,
            "--pull": FLAG,
            "--quiet -q": FLAG,
            "--progress": choice("auto", "plain", "tty"),
            **RESOURCE,
            "--platform": MANY,
            "--secret": MANY,
            "--output -o": MANY,
        },
        0,
        1,
    ),
    "image list": Verb({**FORMAT, "--quiet -q": FLAG, "--verbose -v": FLAG}),
    "image inspect": Verb({}, 1, ENDLESS),
    "image pull": Verb(
        {
            "--scheme": choice("http", "https", "auto"),
            "--progress": PULL_PROGRESS,
            "--arch -a": TEXT,
            "--os": TEXT,
            "--platform": TEXT,
            "--max-concurrent-downloads": INTEGER,
        },
        1,
        1,
    ),
    "image delete": Verb({"--all -a": FLAG, "--force -f": FLAG}, 0, ENDLESS),
    "image tag": Verb({}, 2, 2),
    "network list": Verb({**FORMAT, "--quiet -q": FLAG}),
    "network inspect": Verb({}, 1, ENDLESS),
    "system start": Verb(
        {
            "--app-root": TEXT,
            "--install-root": TEXT,
            "--log-root": TEXT,
            "--enable-kernel-install": FLAG,
            "--disable-kernel-install": FLAG,
            "--timeout": INTEGER,
        }
    ),
    "system stop": Verb({"--prefix -p": TEXT}),
    "system status": Verb({"--prefix -p": TEXT, **FORMAT}),
    "system version": Verb({**FORMAT}),
}
ALIASES = {"rm": "delete", "ls": "list", "i": "image", "s": "system", "n": "network"}
GROUPS = ("image", "network", "system")


def verb_of(argv):
    """The verb's name and what follows it."""
    if not argv:
        raise UsageError("Missing expected subcommand")
    first = ALIASES.get(argv[0], argv[0])
    if first not in GROUPS:
        if first not in VERBS or " " in first:
            raise UsageError(f"Unknown option or subcommand '{argv[0]}'")
        return first, argv[1:]
    if len(argv) < 2:
        raise UsageError(f"Missing expected subcommand of '{first}'")
    name = f"{first} {ALIASES.get(argv[1], argv[1])}"
    if name not in VERBS:
        raise UsageError(f"Unknown subcommand '{argv[1]}' of '{first}'")
    return name, argv[2:]


def parse(argv):
    """Verb, options by key, positionals.

    Raises:
        UsageError: 64.
    """
    name, rest = verb_of(argv)
    verb = VERBS[name]
    options, positionals = {}, []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            positionals.append(word)
            if verb.passthrough:
                positionals += rest
                break
            continue
        if word == "--":
            raise UsageError("'--' is never needed here, and in some places is an argument")
        _option(verb, word, rest, options)
    if len(positionals) < verb.least:
        raise UsageError("Missing expected argument")
    if len(positionals) > verb.most:
        raise UsageError(f"Unexpected argument '{positionals[verb.most]}'")
    return name, options, positionals


def _option(verb, word, rest, options):
    name, equals, value = word.partition("=")
    kind = verb.kinds.get(name)
    if kind is None:
        if re.fullmatch("-[a-zA-Z]{2,}", word):  # packed flags, and nothing but flags
            letters = [f"-{letter}" for letter in word[1:]]
            if all(verb.kinds.get(letter) == FLAG for letter in letters):
                for letter in letters:
                    options[verb.keys[letter]] = True
                return
        raise UsageError(f"Unknown option '{name}'")
    if kind == FLAG:
        if equals:
            raise UsageError(f"The option '{name}' takes no value")
        options[verb.keys[name]] = True
        return
    if not equals:
        if not rest or rest[0].startswith("-"):
            raise UsageError(f"Missing value for '{name}'")
        value = rest.pop(0)
    if kind == INTEGER:
        if not re.fullmatch("-?[0-9]+", value):
            raise UsageError(f"The value '{value}' is invalid for '{name}'")
        value = int(value)
    elif kind not in (TEXT, MANY) and value not in kind[1]:
        raise UsageError(f"The value '{value}' is invalid for '{name}'; one of {kind[1]}")
    key = verb.keys[name]
    if kind == MANY:
        options.setdefault(key, []).append(value)
    elif key in options:
        raise UsageError(f"'{name}' is given twice")
    else:
        options[key] = value
