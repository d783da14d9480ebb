# The cluster's own packages: the unit is in the one, kubeadm's drop-in in the other. Some versions have them
# below /lib, which is a link to usr/lib, and dpkg goes by names.

# package NAME VERSION: of what is in /tmp/package.
package() {
    mkdir /tmp/package/DEBIAN
    printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: x <x@x>\nDescription: x\n' "$1" "$2" \
        >/tmp/package/DEBIAN/control
    [ ! -d /tmp/package/etc ] || echo /etc/default/kubelet >/tmp/package/DEBIAN/conffiles
    quietly dpkg-deb --build /tmp/package /tmp/package.deb
    quietly dpkg --install /tmp/package.deb
    rm -r /tmp/package
}

# kubelet_packages VERSION UNITS
kubelet_packages() {
    mkdir -p "/tmp/package$2" /tmp/package/usr/bin /tmp/package/etc/default /tmp/package/var/lib/kubelet
    printf '#!/bin/sh\necho other %s\n' "$1" >/tmp/package/usr/bin/kubelet
    chmod 755 /tmp/package/usr/bin/kubelet
    printf '[Service]\nExecStart=/usr/bin/kubelet --other=%s\n' "$1" >"/tmp/package$2/kubelet.service"
    chmod 600 "/tmp/package$2/kubelet.service"
    echo KUBELET_EXTRA_ARGS= >/tmp/package/etc/default/kubelet
    touch /tmp/package/var/lib/kubelet/.kubelet-keep
    package kubelet "$1"
    mkdir -p "/tmp/package$2/kubelet.service.d"
    printf '[Service]\n# other %s\n' "$1" >"/tmp/package$2/kubelet.service.d/10-kubeadm.conf"
    package kubeadm "$1"
}

# ours VERSION: ours is in force, and theirs of that version aside.
ours() {
    equal "kubelet" /usr/lib/gantry/gantry "$(readlink --canonicalize-existing /usr/bin/kubelet)"
    grep -q 'Gantry kubelet' "$units/kubelet.service" || fail "another unit"
    grep -q KUBELET_EXTRA_ARGS "$units/kubelet.service.d/10-kubeadm.conf" || fail "another drop-in"
    equal "the one aside" "other $1" "$(/usr/bin/kubelet.distrib)"
    aside=.distrib
    [ $units = /usr/lib/systemd/system ] || aside=.distrib-lib
    grep -q -e "--other=$1" "$units/kubelet.service$aside" || fail "no unit aside"
    grep -q "other $1" "$units/kubelet.service.d/10-kubeadm.conf$aside" || fail "no drop-in aside"
}

# theirs VERSION: as its packages have it.
theirs() {
    equal "given back" "other $1" "$(kubelet)"
    equal "dpkg's own look" "" "$(dpkg --verify kubelet kubeadm)"
    grep -q -e "--other=$1" "$units/kubelet.service" || fail "the unit was not given back"
    equal "what is aside" "" "$(find / -xdev -name '*.distrib*')"
    equal "diversions" "" "$(dpkg-divert --list '*kubelet*')"
}

for units in /usr/lib/systemd/system /lib/systemd/system; do
    everything >/tmp/nothing
    kubelet_packages 1 $units
    everything >/tmp/before
    install
    ours 1
    # Whether it is enabled is not ours to say.
    [ ! -L /etc/systemd/system/multi-user.target.wants/kubelet.service ] || fail "somebody's unit was enabled"
    purge
    unchanged /tmp/before

    # One that is upgraded in the meantime is given back as it is then.
    install
    kubelet_packages 2 $units
    ours 2
    install
    ours 2
    remove
    theirs 2
    purge

    # One that comes later, and goes before.
    quietly dpkg --purge kubelet kubeadm
    unchanged /tmp/nothing
    install
    kubelet_packages 3 $units
    ours 3
    quietly dpkg --purge kubelet kubeadm
    equal "kubelet" /usr/lib/gantry/gantry "$(readlink --canonicalize-existing /usr/bin/kubelet)"
    grep -q 'Gantry kubelet' "$units/kubelet.service" || fail "their removal took our unit"
    equal "dpkg's own look" "" "$(dpkg --verify gantry)"
    purge
    unchanged /tmp/nothing
done

# A version that moves them from the one name to the other.
units=/usr/lib/systemd/system
kubelet_packages 1 /lib/systemd/system
install
kubelet_packages 2 $units
ours 2
purge
theirs 2
