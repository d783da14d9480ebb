# What the cases share. /dist has what `cargo xtask dist` makes.

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# equal WHAT EXPECTED FOUND
equal() {
    [ "$2" = "$3" ] || fail "$1: expected '$2', found '$3'"
}

# Every path but dpkg's own notes and logs: kind, mode, owner, target, and the content of files.
everything() {
    find / \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /dist -o -path '/var/log/*' \
        -o -path '/var/lib/dpkg/*-old' -o -path /var/lib/dpkg/status -o -path /var/lib/dpkg/diversions \
        -o -path /var/lib/dpkg/lock -o -path /var/lib/dpkg/triggers/Lock -o -path '/var/cache/ldconfig/*' \) -prune \
        -o -type f -printf '%y %m %u:%g %p ' -exec sha256sum '{}' ';' -o -printf '%y %m %u:%g %p %l\n' |
        sed 's|\([0-9a-f]\{64\}\)  /.*|\1|' | sort
}

# unchanged BEFORE: as everything said then.
unchanged() {
    everything >/tmp/now
    diff "$1" /tmp/now || fail "the system is another one than before"
}

quietly() {
    "$@" >/tmp/said 2>&1 || {
        cat /tmp/said >&2
        fail "$*"
    }
}

install() { quietly dpkg --install /dist/gantry_*_amd64.deb; }
remove() { quietly dpkg --remove gantry; }
purge() { quietly dpkg --purge gantry; }
