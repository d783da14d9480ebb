everything >/tmp/before
install
echo '# mine' >>/etc/gantry/runtime.toml
rm /etc/systemd/system/multi-user.target.wants/kubelet.service
everything >/tmp/installed
# The same version again is an upgrade to dpkg.
install
unchanged /tmp/installed
purge
unchanged /tmp/before
