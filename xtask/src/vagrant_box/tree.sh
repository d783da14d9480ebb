# Debian with what a Kubernetes node needs, as a folder, a kernel beside it, and a disk of it. In a mount namespace of
# its own. The user vagrant and her well-known key are what makes it a Vagrant box, as Vagrant's documents ask for.
# $1: an empty folder of work, $2: keyring, $3: suite, $4: Debian's address, $5: a folder with kubeadm and kubectl
set -eu
work=$1 keyring=$2 suite=$3 mirror=$4 programs=$5
tree=$work/tree
packages=systemd,systemd-sysv,systemd-resolved,libpam-systemd,dbus,udev,openssh-server,sudo,iproute2,iptables,nftables,conntrack
packages=$packages,kmod,ethtool,socat,ca-certificates,curl,procps,iputils-ping,rsync
packages=$packages,linux-image-cloud-amd64,initramfs-tools,zstd
mount --make-rprivate /
debootstrap --variant=minbase --keyring="$keyring" --include="$packages" "$suite" "$tree" "$mirror"

install -m 0755 "$programs/kubeadm" "$programs/kubectl" "$tree/usr/bin/"

echo debian >"$tree/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 debian\n' >"$tree/etc/hosts"
echo '/dev/vda / ext4 defaults 0 1' >"$tree/etc/fstab"
# The first boot makes an ID of its own.
: >"$tree/etc/machine-id"
rm -f "$tree/var/lib/dbus/machine-id" "$tree/etc/resolv.conf"
ln -s /run/systemd/resolve/resolv.conf "$tree/etc/resolv.conf"
# Cards are eth0, eth1, … in their order (net.ifnames=0): the first is the way out, others are for whoever sets up the
# machine.
printf '[Match]\nName=eth0\n[Network]\nDHCP=yes\n' >"$tree/etc/systemd/network/80-first.network"
chroot "$tree" systemctl enable systemd-networkd ssh >/dev/null 2>&1
# Timers of apt and others would wake up amid a test.
chroot "$tree" systemctl mask apt-daily.timer apt-daily-upgrade.timer systemd-networkd-wait-online.service \
    >/dev/null 2>&1
echo 'UseDNS no' >"$tree/etc/ssh/sshd_config.d/vagrant.conf"

chroot "$tree" useradd --create-home --shell /bin/bash vagrant
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >"$tree/etc/sudoers.d/vagrant"
chmod 0440 "$tree/etc/sudoers.d/vagrant"
install -d -m 0700 "$tree/home/vagrant/.ssh"
cat >"$tree/home/vagrant/.ssh/authorized_keys" <<'KEY'
ssh-rsa AAAAB3NzaC1yc2EAAAABIwAAAQEA6NF8iallvQVp22WDkTkyrtvp9eWW6A8YVr+kz4TjGYe7gHzIw+niNltGEFHzD8+v1I2YJ6oXevct1YeS0o9HZyN1Q9qgCgzUFtdOKLv6IedplqoPkcmF0aYet2PkEDo3MlTBckFXPITAMzF8dJSIFo9D8HfdOV0IAdx4O7PtixWKn5y2hMNG0zQPyUecp4pzC6kivAIhyfHilFR61RGL+GPXQ2MWZWFYbAGjyiYJnAmCP3NOTd0jMZEnDkbUvxhMmBYSdETk1rRgm+R4LOzFUGaHqHDLKLX+FIPKcF96hrucXzcWyLbIbEgE98OHlnVYCzRdK8jlqm8tehUc9c9WhQ== vagrant insecure public key
KEY
chmod 0600 "$tree/home/vagrant/.ssh/authorized_keys"
chroot "$tree" chown -R vagrant:vagrant /home/vagrant

rm -rf "$tree/var/cache/apt/archives"/*.deb "$tree/var/lib/apt/lists"/* "$tree/var/log"/*.log
cp "$tree"/boot/vmlinuz-* "$work/vmlinuz"
cp "$tree"/boot/initrd.img-* "$work/initrd.img"
truncate --size 8G "$work/disk.raw"
mke2fs -q -t ext4 -L gantry -d "$tree" "$work/disk.raw"
rm -rf "$tree"
