# Gantry in place of kubelet and containerd, under every name that kind and kubeadm use. Sourced by node.sh; says how the
# runtime is started.
install -d "$tree/usr/lib/gantry" "$tree/etc/gantry"
for program in gantry gantry-monitor gantry-pause gantry-unpack; do
    install -m 0755 "$own/$program" "$tree/usr/lib/gantry/$program"
    strip "$tree/usr/lib/gantry/$program"
done
for name in usr/bin/gantry usr/bin/kubelet usr/local/bin/ctr usr/local/bin/containerd \
    opt/cni/bin/bridge opt/cni/bin/host-local opt/cni/bin/loopback opt/cni/bin/portmap opt/cni/bin/ptp; do
    ln -sf /usr/lib/gantry/gantry "$tree/$name"
done
cat >"$tree/etc/gantry/runtime.toml" <<TOML
# kind tells kubeadm this path.
socket = "unix:///run/containerd/containerd.sock"
systemd_cgroup = true
TOML
cat >"$tree/etc/systemd/system/containerd.service" <<UNIT
# Under the name that kind looks for: logs of an export, restarts, the kubelet's --runtime-cgroups.
[Unit]
Description=Gantry container runtime
After=network.target local-fs.target dbus.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=/usr/bin/gantry runtime --config /etc/gantry/runtime.toml
Environment=GANTRY_LOG=info
TimeoutStartSec=10min
Restart=always
RestartSec=1
KillMode=process
Delegate=yes
OOMPolicy=continue
OOMScoreAdjust=-999
TasksMax=infinity
LimitNOFILE=infinity
LimitNPROC=infinity
LimitCORE=infinity

[Install]
WantedBy=multi-user.target
UNIT
serve='gantry runtime --socket unix:///run/containerd/containerd.sock'
