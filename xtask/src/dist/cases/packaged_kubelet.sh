# kubelet_package VERSION: with the files of the cluster's own packages.
kubelet_package() {
    rm -rf /tmp/package
    mkdir -p /tmp/package/DEBIAN /tmp/package/usr/bin /tmp/package/usr/lib/systemd/system/kubelet.service.d
    printf 'Package: kubelet\nVersion: %s\nArchitecture: amd64\nMaintainer: x <x@x>\nDescription: x\n' "$1" \
        >/tmp/package/DEBIAN/control
    printf '#!/bin/sh\necho other %s\n' "$1" >/tmp/package/usr/bin/kubelet
    chmod 755 /tmp/package/usr/bin/kubelet
    printf '[Service]\nExecStart=/usr/bin/kubelet\n' >/tmp/package/usr/lib/systemd/system/kubelet.service
    printf '[Service]\n' >/tmp/package/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf
    quietly dpkg-deb --build /tmp/package /tmp/kubelet.deb
    quietly dpkg --install /tmp/kubelet.deb
}

kubelet_package 1
everything >/tmp/before
install
equal "the one aside" "other 1" "$(/usr/bin/kubelet.distrib)"
equal "kubelet" /usr/lib/gantry/gantry "$(readlink --canonicalize-existing /usr/bin/kubelet)"
grep -q KUBELET_EXTRA_ARGS /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf || fail "not ours"
# Whether it is enabled is not ours to say.
[ ! -L /etc/systemd/system/multi-user.target.wants/kubelet.service ] || fail "somebody's unit was enabled"
purge
unchanged /tmp/before

# One that is upgraded in the meantime is given back as it is then.
install
kubelet_package 2
equal "the one aside" "other 2" "$(/usr/bin/kubelet.distrib)"
remove
equal "given back" "other 2" "$(kubelet)"
equal "dpkg's own look" "" "$(dpkg --verify kubelet)"
grep -q KUBELET_EXTRA_ARGS /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf && fail "still ours"
purge

# One that comes later, and goes before.
quietly dpkg --purge kubelet
everything >/tmp/before
install
kubelet_package 3
equal "the one aside" "other 3" "$(/usr/bin/kubelet.distrib)"
quietly dpkg --purge kubelet
equal "kubelet" /usr/lib/gantry/gantry "$(readlink --canonicalize-existing /usr/bin/kubelet)"
purge
unchanged /tmp/before
