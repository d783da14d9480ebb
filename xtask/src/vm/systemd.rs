//! The machine with systemd: Debian's packages unpacked beside the payload, systemd as init, the command a
//! service of it. Owns what differs from the small machine; never what runs. Called by `vm`.

use anyhow::Result;
use gantry_tests::debian;

use crate::cpio::Cpio;

/// What the kernel is told besides: nobody reads systemd's own lines between the tests'.
pub(super) const APPEND: &str =
    " systemd.show_status=0 systemd.log_target=journal systemd.unified_cgroup_hierarchy=1";

/// With v1, and v2 beside it for systemd's own processes.
pub(super) const APPEND_HYBRID: &str =
    " systemd.show_status=0 systemd.log_target=journal systemd.unified_cgroup_hierarchy=0";

/// Where the tree is before it is the root.
const TREE: &str = "/debian";

/// Loads modules, then puts Debian's tree and ours, in this order, into a tmpfs and leaves for it.
pub(super) const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
echo "gantry-vm began"
mount -t proc proc /proc
for module in $(cat /modules/order); do insmod /modules/$module || exit 1; done
mount -t tmpfs -o mode=755,size=90% tmpfs /newroot
for folder in debian lib lib64 usr etc gantry; do
  [ -e /$folder ] || continue
  to=/newroot/$folder; [ $folder != debian ] || to=/newroot
  mkdir -p $to && cp -a /$folder/. $to/ || exit 1
  [ $folder = lib ] || [ $folder = lib64 ] || rm -rf /$folder
done
cp /bin/busybox /newroot/usr/bin/busybox
cp /gantry-vm /newroot/gantry-vm
chroot /newroot /usr/bin/busybox --install -s /usr/bin 2>/dev/null
mkdir -p /newroot/proc /newroot/sys /newroot/dev /newroot/run /newroot/tmp /newroot/var /newroot/root
umount /proc
exec switch_root /newroot /lib/systemd/systemd
"#;

/// The tests stand where an administrator's runtime would: in a delegated service.
const SERVICE: &str = r#"[Unit]
Description=The tests
After=basic.target
Requires=basic.target
[Service]
Type=oneshot
ExecStart=/bin/sh /gantry/service
StandardInput=null
Delegate=yes
KillMode=process
TasksMax=infinity
TimeoutStartSec=infinity
Environment=PATH=/usr/sbin:/usr/bin:/sbin:/bin:/gantry HOME=/root GANTRY_TEST_SYSTEMD=1
"#;

const SCRIPT: &str = r#"exec >/dev/ttyS0 2>&1
hostname gantry-vm
mkdir -p /var/lib /var/log
sh /gantry/command </dev/null
echo "gantry-vm ended with $?"
sleep 1
busybox poweroff -f
"#;

/// Adds the tree and the service.
pub(super) fn add(cpio: &mut Cpio) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("gantry-systemd-").tempdir()?;
    debian::systemd_tree(folder.path())?;
    cpio.tree(folder.path(), TREE)?;
    cpio.file("/etc/machine-id", 0o444, b"6a616e7472796a616e7472796a616e74\n")?;
    cpio.file("/gantry/service", 0o644, SCRIPT.as_bytes())?;
    cpio.file("/etc/systemd/system/default.target", 0o644, b"[Unit]\nRequires=gantry-vm.service\n")?;
    cpio.file("/etc/systemd/system/gantry-vm.service", 0o644, SERVICE.as_bytes())
}
