mkdir -p /opt/cni/bin
echo other >/opt/cni/bin/bridge
ln -s /nowhere /opt/cni/bin/ptp
everything >/tmp/before
install
equal "a file" other "$(head -c 5 /opt/cni/bin/bridge)"
equal "a link" /nowhere "$(readlink /opt/cni/bin/ptp)"
equal "what was not there" /usr/lib/gantry/gantry "$(readlink /opt/cni/bin/portmap)"
purge
unchanged /tmp/before

# A plugin that comes later keeps the folder.
rm -r /opt/cni
install
echo other >/opt/cni/bin/vlan
purge
equal "plugins" vlan "$(ls /opt/cni/bin)"
