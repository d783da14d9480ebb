# A libvirtd for one tier, in the namespaces that it is started in: /run and /etc are those of kind's engine already.
# $1: a folder for what libvirt keeps
set -eu
folder=$1
for name in lib cache log; do
    mkdir -p "$folder/$name" "/var/$name/libvirt"
    mount --bind "$folder/$name" "/var/$name/libvirt"
done
mkdir -p /var/lib/libvirt/images /var/lib/libvirt/dnsmasq /run/libvirt
# The network of this name is not Vagrant's.
rm -f /etc/libvirt/qemu/networks/autostart/*
# qemu as root, with nothing of a host around it: no labels, no cgroups, no namespaces of its own.
cat >/etc/libvirt/qemu.conf <<'CONF'
user = "root"
group = "root"
dynamic_ownership = 0
security_driver = "none"
cgroup_controllers = [ ]
stdio_handler = "file"
namespaces = [ ]
CONF
cat >/etc/libvirt/libvirtd.conf <<'CONF'
auth_unix_ro = "none"
auth_unix_rw = "none"
unix_sock_group = "root"
CONF
exec setpriv --pdeathsig KILL -- libvirtd
