everything >/tmp/before
install
mkdir -p /var/lib/gantry/layers/a /run/gantry/monitors /var/lib/kubelet/pods
# As pods leave them.
mkdir -p /var/lib/cni/networks/gantry /var/lib/cni/results /var/log/pods
touch /var/lib/cni/networks/gantry/lock
echo x >/var/lib/gantry/layers/a/b
remove
[ -f /var/lib/gantry/layers/a/b ] || fail "removal took the state along"
mkdir /var/lib/gantry/mounted
mount -t tmpfs tmpfs /var/lib/gantry/mounted
echo precious >/var/lib/gantry/mounted/file
if dpkg --purge gantry >/tmp/said 2>&1; then
    fail "purged through a mount"
fi
equal "a file on a mount" precious "$(cat /var/lib/gantry/mounted/file)"
umount /var/lib/gantry/mounted
purge
grep -q '/var/lib/kubelet stays' /tmp/said || fail "$(cat /tmp/said)"
[ ! -e /var/log/pods ] || fail "an empty folder of logs is left"
rm -r /var/lib/kubelet
unchanged /tmp/before
